/* The client without sockets: what an origin may say. The first byte chooses the protocol and how the bytes
 * are cut; every exchange must end exactly once, by its end or by a failure, or stay open. */
#include "wire/client_int.h"

static uv_loop_t loop;
static int ends;
static bool ready;

static void check(const struct hf_field *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!hf_is_token(f[i].name) || !hf_is_header_value(f[i].value) || hf_field_is_hop(f[i].name))
            abort();
}

static void on_head(struct hf_cx *cx, int status, const struct hf_field *f, size_t n, int64_t length)
{
    if (status < 200 || length < -1)
        abort();
    check(f, n);
}

static void on_fields(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    check(f, n);
}

static void on_interim(struct hf_cx *cx, int status, const struct hf_field *f, size_t n)
{
    if (status < 100 || status >= 200 || status == 101)
        abort();
    check(f, n);
}

/* Every third piece of a body makes the exchange pause; it goes on with the next turn of the loop. */
static struct hf_cx *paused;
static unsigned pieces;

static void on_data(struct hf_cx *cx, const char *p, size_t n)
{
    if (++pieces % 3)
        return;
    paused = cx;
    hf_cx_pause(cx);
}

static void over(struct hf_cx *cx)
{
    ends++;
    paused = NULL;
}

static void on_fail(struct hf_cx *cx, int r, bool answered, bool unsent)
{
    if (r >= 0)
        abort();
    over(cx);
}

static const struct hf_cx_ops ops = {.on_head = on_head,
                                     .on_interim = on_interim,
                                     .on_data = on_data,
                                     .on_trailers = on_fields,
                                     .on_end = over,
                                     .on_fail = on_fail};

static void feed(struct hf_client *c, const char *p, size_t n, size_t piece)
{
    for (size_t i = 0; i < n && !c->closing; i += piece) {
        hf_client_feed(c, p + i, HF_MIN(piece, n - i));
        if (paused)
            hf_cx_resume(paused);
        paused = NULL;
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!ready)
        (void)uv_loop_init(&loop);
    ready = true;
    if (size < 1)
        return 0;
    uv_pipe_t *pipe = hf_new(uv_pipe_t);
    (void)uv_pipe_init(&loop, pipe, 0);
    struct hf_client *c = hf_client_new(&loop, (uv_stream_t *)pipe, NULL, data[0] & 1, NULL, NULL);
    c->out.stream = NULL; /* what it says is forgotten */
    c->reading = true;
    struct hf_cx_req req = {HF_STR("GET"),           HF_STR("http"), HF_STR("a"), HF_STR("/"), NULL, 0, 0,
                            data[0] & 2 ? "x" : NULL};
    int begun = 0;
    ends = 0;
    paused = NULL;
    pieces = 0;
    for (int i = 0; i < 3; i++)
        begun += hf_cx_new(c, &req, &ops, NULL) != NULL;
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    feed(c, (const char *)data + 1, size - 1, 1u + (data[0] >> 2));
    hf_client_close(c);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    if (ends != begun)
        abort();
    return 0;
}
