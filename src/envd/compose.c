/* POST /files/compose: joins files into one inside the kernel (reflinks where the file system can) and
 * removes the sources. The destination appears whole, by rename, or not at all. */
#include <fcntl.h>
#include <stdio.h>

#include "base/id.h"
#include "base/path.h"
#include "envd/files.h"

#define COPY_STEP (1u << 30) /* bytes asked of one copy_file_range */

struct compose {
    struct envd *e;
    struct hf_req *req;
    struct hf_buf body;
    bool busy, answered, closed;
    uv_work_t work;
    struct envd_user user;
    char *dest;
    char **sources, **given; /* resolved; as the client wrote them, for messages */
    size_t n;
    struct hf_err err;
};

static void compose_free(struct compose *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->sources[i]);
        free(c->given[i]);
    }
    free(c->sources);
    free(c->given);
    free(c->dest);
    hf_buf_done(&c->body);
    free(c);
}

/* ---- worker ---- */

static int copy_plain(int from, int to)
{
    hf_auto_free char *p = hf_xmalloc(FILES_CHUNK);
    for (;;) {
        ssize_t n = read(from, p, FILES_CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;
        int r = hf_write_all(to, p, (size_t)n);
        if (r < 0)
            return r;
    }
}

static int copy_all(int from, int to)
{
    bool any = false;
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, COPY_STEP, 0);
        if (n > 0) {
            any = true;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        /* 0 at once may also be a kernel file that claims to be empty; plain reading tells. */
        if (n == 0 && any)
            return 0;
        if (n < 0 && errno != EXDEV && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP &&
            errno != EBADF)
            return -errno;
        return copy_plain(from, to);
    }
}

static int check_source(struct compose *c, size_t i)
{
    struct stat st;
    if (strcmp(c->sources[i], c->dest) == 0)
        return hf_err_http(&c->err, -EINVAL, 400, "source path \"%s\" cannot be the same as destination",
                           c->given[i]);
    if (fstatat(AT_FDCWD, c->sources[i], &st, 0) < 0)
        return hf_err_http(&c->err, -ENOENT, 404, "source file not found: %s", c->given[i]);
    if (!S_ISREG(st.st_mode))
        return hf_err_http(&c->err, -EINVAL, 400, "source path is not a regular file: %s", c->given[i]);
    return 0;
}

static int append_source(struct compose *c, size_t i, int to)
{
    struct stat st;
    hf_auto_close int from = fs_open_read(c->sources[i], &st, &c->err);
    if (from < 0)
        return from;
    int r = copy_all(from, to);
    return r < 0 ? fs_err(&c->err, r, "composing source", c->given[i]) : 0;
}

static int assemble(struct compose *c, const char *dir, const char *tmp)
{
    int r = fs_mkdirs(dir, &c->user, &c->err);
    if (r < 0)
        return r;
    hf_auto_close int to = fs_openat(AT_FDCWD, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (to < 0)
        return fs_err(&c->err, to, "creating destination file in", dir);
    if (fchown(to, c->user.uid, c->user.gid) < 0)
        r = fs_err(&c->err, -errno, "changing file ownership of", c->dest);
    for (size_t i = 0; r == 0 && i < c->n; i++)
        r = append_source(c, i, to);
    if (r == 0 && close(hf_take_fd(&to)) < 0)
        r = fs_err(&c->err, -errno, "closing destination file", c->dest);
    if (r == 0 && rename(tmp, c->dest) < 0)
        r = fs_err(&c->err, -errno, "finalizing compose", c->dest);
    if (r < 0)
        (void)unlink(tmp);
    return r;
}

static void work(uv_work_t *w)
{
    struct compose *c = HF_CONTAINER_OF(w, struct compose, work);
    for (size_t i = 0; i < c->n; i++) {
        if (check_source(c, i) < 0)
            return;
    }
    char id[17];
    hf_random_id(id, sizeof(id) - 1);
    hf_auto_free char *dir = path_dir(c->dest);
    hf_auto_free char *name = hf_xasprintf(".holdfast-compose-%s", id);
    hf_auto_free char *tmp = path_join(dir, name);
    if (assemble(c, dir, tmp) < 0)
        return;
    for (size_t i = 0; i < c->n; i++)
        (void)unlink(c->sources[i]);
}

/* ---- loop ---- */

static void fail(struct compose *c)
{
    c->answered = true;
    hf_res_err(c->req, &c->err);
}

static void answer(struct compose *c)
{
    json_t *o = files_written_json(c->dest);
    hf_auto_free char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    c->answered = true;
    hf_res_send(c->req, 200, "application/json", text ? text : "{}", text ? strlen(text) : 2);
}

/* busy stays set while the server may call back: it keeps c alive. */
static void after_work(uv_work_t *w, int status)
{
    struct compose *c = HF_CONTAINER_OF(w, struct compose, work);
    if (!c->closed)
        (c->err.r ? fail : answer)(c);
    c->busy = false;
    if (c->closed)
        compose_free(c);
}

static struct hf_str text_of(const json_t *v)
{
    return (struct hf_str){json_string_value(v), json_string_length(v)};
}

static int add_source(struct envd *e, struct compose *c, const json_t *v)
{
    struct hf_str text = text_of(v);
    if (!text.p)
        return hf_err_http(&c->err, -EINVAL, 400, "source_paths must be a list of texts");
    char *path = NULL;
    int r = envd_resolve_path(e, &c->user, text, &path, &c->err);
    if (r < 0)
        return hf_err_wrap(&c->err, "error resolving source path");
    c->sources[c->n] = path;
    c->given[c->n++] = hf_str_dup(text);
    return 0;
}

static int read_request(struct envd *e, struct compose *c, const json_t *o)
{
    const json_t *sources = json_object_get(o, "source_paths"), *dest = json_object_get(o, "destination");
    const json_t *username = json_object_get(o, "username");
    size_t n = json_array_size(sources);
    if (!n)
        return hf_err_http(&c->err, -EINVAL, 400, "source_paths must not be empty");
    if (n > FILES_COMPOSE_SOURCES_MAX)
        return hf_err_http(&c->err, -EINVAL, 400, "source_paths has %zu entries, at most %u are taken", n,
                           FILES_COMPOSE_SOURCES_MAX);
    if (!json_string_length(dest))
        return hf_err_http(&c->err, -EINVAL, 400, "destination is required");
    const char *name = json_string_length(username) ? json_string_value(username) : e->default_user;
    if (envd_user_lookup(e, name, &c->user, NULL) < 0)
        return hf_err_http(&c->err, -ENOENT, 401, "error looking up user '%s': user: unknown user %s", name,
                           name);
    int r = envd_resolve_path(e, &c->user, text_of(dest), &c->dest, &c->err);
    if (r < 0)
        return hf_err_wrap(&c->err, "error resolving destination path");
    c->sources = hf_xcalloc(n, sizeof(*c->sources));
    c->given = hf_xcalloc(n, sizeof(*c->given));
    for (size_t i = 0; r == 0 && i < n; i++)
        r = add_source(e, c, json_array_get(sources, i));
    return r;
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    struct compose *c = hf_req_data(req);
    if (c->answered || hf_buf_add(&c->body, p, n) == 0)
        return;
    (void)hf_err_http(&c->err, -EMSGSIZE, 413, "the request body is larger than %u bytes",
                      FILES_COMPOSE_BODY_MAX);
    fail(c);
}

static void on_end(struct hf_req *req)
{
    struct compose *c = hf_req_data(req);
    if (c->answered)
        return;
    json_error_t je;
    json_t *o = json_loadb(c->body.n ? c->body.p : "", c->body.n, 0, &je);
    int r = o ? read_request(c->e, c, o)
              : hf_err_http(&c->err, -EINVAL, 400, "invalid request body: %s", je.text);
    json_decref(o);
    if (r < 0) {
        fail(c);
        return;
    }
    c->busy = true;
    if (uv_queue_work(hf_req_loop(req), &c->work, work, after_work) < 0)
        abort(); /* only for a NULL callback */
}

static void on_close(struct hf_req *req)
{
    struct compose *c = hf_req_data(req);
    c->closed = true;
    if (!c->busy)
        compose_free(c);
}

void files_compose(struct envd *e, struct hf_req *req)
{
    static const struct hf_req_ops ops = {.on_data = on_data, .on_end = on_end, .on_close = on_close};
    struct compose *c = hf_new(struct compose);
    c->e = e;
    c->req = req;
    c->body = HF_BUF_INIT(FILES_COMPOSE_BODY_MAX);
    hf_req_set_ops(req, &ops, c);
}
