/* The multipart parser: the first byte is the length of a boundary that follows, then comes the body. The
 * events must not depend on how the body is cut into pieces. */
#include <stdio.h>

#include "envd/multipart.h"

#define LOG_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int on_part(void *self, struct hf_str name, struct hf_str filename, struct hf_err *err)
{
    int r = hf_buf_adds(self, "<");
    r = r < 0 ? r : hf_buf_add(self, name.p ? name.p : "", name.n);
    r = r < 0 ? r : hf_buf_adds(self, "|");
    r = r < 0 ? r : hf_buf_add(self, filename.p ? filename.p : "", filename.n);
    return r < 0 ? r : hf_buf_adds(self, ">");
}

static int on_data(void *self, const char *p, size_t n, struct hf_err *err)
{
    return hf_buf_add(self, p, n);
}

static int on_part_end(void *self, struct hf_err *err)
{
    return hf_buf_adds(self, "$");
}

static int run(struct hf_str type, const char *p, size_t n, size_t step, struct hf_buf *log)
{
    static const struct multipart_events events = {on_part, on_data, on_part_end};
    struct multipart m;
    struct hf_err err = {0};
    int r = multipart_init(&m, type, &events, log, &err);
    if (r < 0)
        return r;
    for (size_t pos = 0; r == 0 && pos < n; pos += step)
        r = multipart_feed(&m, p + pos, HF_MIN(step, n - pos), &err);
    if (r == 0)
        r = multipart_finish(&m, &err);
    multipart_done(&m);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > LOG_MAX / 4)
        return 0;
    size_t n = HF_MIN((size_t)data[0] % 80, size - 1);
    hf_auto_buf struct hf_buf type = HF_BUF_INIT(256), whole = HF_BUF_INIT(LOG_MAX),
                              pieces = HF_BUF_INIT(LOG_MAX);
    if (hf_buf_addf(&type, "multipart/form-data; boundary=\"%.*s\"", (int)n, (const char *)data + 1) < 0)
        return 0;
    struct hf_str t = {type.p, type.n};
    const char *body = (const char *)data + 1 + n;
    size_t body_n = size - 1 - n;
    int r1 = run(t, body, body_n, body_n ? body_n : 1, &whole);
    int r2 = run(t, body, body_n, 1 + data[0] / 80, &pieces);
    if (r1 != r2 || whole.n != pieces.n || (whole.n && memcmp(whole.p, pieces.p, whole.n) != 0))
        abort();
    return 0;
}
