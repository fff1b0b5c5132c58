/* What the daemon tells the box (/init), what the box tells (/envs), and who may ask (the access token). */
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/path.h"
#include "envd/awake.h"
#include "envd/ca.h"
#include "envd/proc.h"
#include "envd/procenv.h"
#include "envd/server.h"

static int64_t last_init_ns = INT64_MIN; /* timestamp of the newest /init */

static struct hf_str text_at(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_string(v) ? (struct hf_str){json_string_value(v), json_string_length(v)}
                             : (struct hf_str){NULL, 0};
}

static void wipe(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

void init_defaults(struct envd *e)
{
    e->env = json_object();
    e->default_user = hf_xstrdup("user");
}

void init_done(struct envd *e)
{
    wipe(hf_take_ptr(e->token));
    json_decref(hf_take_ptr(e->env));
    free(hf_take_ptr(e->default_user));
    free(hf_take_ptr(e->default_workdir));
    free(hf_take_ptr(e->sandbox_id));
    free(hf_take_ptr(e->template_id));
}

/* ---- the token ---- */

bool envd_authorize(struct envd *e, struct hf_req *req)
{
    if (!e->token || hf_req_listener_tag(req) == ENVD_TAG_CONTROL)
        return true;
    struct hf_str given = hf_req_header(req, "x-access-token");
    if (given.p && hf_str_eq_consttime(given, hf_str_c(e->token)))
        return true;
    hf_res_error(req, 401,
                 "unauthorized access, please provide a valid access token or method signing if supported");
    return false;
}

/* The first token wins. A later one must be the same, unless the daemon says that it replaces it (a clone of
 * a running box). */
static int set_token(struct envd *e, const json_t *body, struct hf_err *err)
{
    struct hf_str token = text_at(body, "accessToken");
    if (!token.n)
        return 0;
    if (memchr(token.p, '\0', token.n))
        return hf_err_http(err, -EINVAL, 400, "accessToken must not contain NUL bytes");
    if (e->token && hf_str_eq_consttime(token, hf_str_c(e->token)))
        return 0;
    if (e->token && !json_is_true(json_object_get(body, "replaceAccessToken")))
        return hf_err_http(err, -EACCES, 401, "access token does not match the one that was set first");
    wipe(e->token);
    e->token = hf_str_dup(token);
    return 0;
}

/* ---- the body of /init ---- */

static const char *const text_fields[] = {"accessToken", "timestamp",  "defaultUser", "defaultWorkdir",
                                          "sandboxId",   "templateId", "hostname",    "caBundle"};

static int check_body(const json_t *body, struct hf_err *err)
{
    if (!json_is_object(body))
        return hf_err_http(err, -EINVAL, 400, "the body must be a JSON object");
    for (size_t i = 0; i < HF_ARRAY_LEN(text_fields); i++) {
        const json_t *v = json_object_get(body, text_fields[i]);
        if (v && !json_is_null(v) && !json_is_string(v))
            return hf_err_http(err, -EINVAL, 400, "field \"%s\" must be text", text_fields[i]);
    }
    const json_t *generation = json_object_get(body, "generation");
    if (generation && (!json_is_integer(generation) || json_integer_value(generation) < 1))
        return hf_err_http(err, -EINVAL, 400, "field \"generation\" must be a number from 1 on");
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(body, "envVars"), name, value)
    {
        if (!json_is_string(value) || !name[0] || strchr(name, '='))
            return hf_err_http(err, -EINVAL, 400,
                               "envVars: \"%.100s\" must be a variable name with a text value", name);
    }
    if (json_array_size(json_object_get(body, "volumeMounts")) > 0)
        return hf_err_http(err, -ENOSYS, 501, "volumeMounts are not supported: the engine mounts volumes");
    return 0;
}

/* 1 when an older /init comes late and is to be ignored. */
static int check_timestamp(const json_t *body, int64_t *ret_ns, struct hf_err *err)
{
    struct hf_str v = text_at(body, "timestamp");
    *ret_ns = INT64_MIN;
    if (!v.p)
        return 0;
    if (hf_rfc3339_parse(v, ret_ns) < 0)
        return hf_err_http(err, -EINVAL, 400, "timestamp must be an RFC 3339 time");
    return *ret_ns < last_init_ns;
}

static void set_clock(const struct envd *e, int64_t want_ns)
{
    int64_t ahead = hf_real_ns() - want_ns;
    if (!e->is_init || (ahead > -INIT_CLOCK_BEHIND_NS && ahead < INIT_CLOCK_AHEAD_NS))
        return;
    struct timespec ts = {.tv_sec = want_ns / 1000000000, .tv_nsec = want_ns % 1000000000};
    if (clock_settime(CLOCK_REALTIME, &ts) < 0) /* a box that shares the host's clock may not */
        hf_log_debug("the clock is off and can't be set", "ahead_ms=%lld", (long long)(ahead / 1000000));
}

/* The engine has usually set it already, from outside: in the box the right to do so is dropped. */
static void set_hostname(const struct envd *e, struct hf_str want)
{
    char now[256] = "";
    (void)gethostname(now, sizeof(now) - 1);
    if (want.n && e->is_init && !hf_str_eq(want, now) && sethostname(want.p, want.n) < 0)
        hf_log_warn("can't set the host name", "err=%d", errno);
}

static void replace(char **field, struct hf_str v)
{
    if (!v.n || memchr(v.p, '\0', v.n))
        return;
    free(*field);
    *field = hf_str_dup(v);
}

static void write_marker(const char *name, const char *value)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", INIT_RUN_DIR, name);
    if (value && hf_write_file_atomic(path, value, strlen(value), 0644) < 0)
        hf_log_warn("can't write a marker file", "path=%s", path);
}

static void write_markers(const struct envd *e)
{
    if (!e->sandbox_id && !e->template_id)
        return;
    if (hf_mkdir_p(INIT_RUN_DIR, 0755) < 0) {
        hf_log_warn("can't make the marker directory", "path=%s", INIT_RUN_DIR);
        return;
    }
    write_marker(".E2B_SANDBOX", "true");
    write_marker(".E2B_SANDBOX_ID", e->sandbox_id);
    write_marker(".E2B_TEMPLATE_ID", e->template_id);
}

/* Another life: clocks may have jumped, in both directions. envd keeps no random state and no outbound
 * connections; those that were open to it have ended by themselves. */
static void live_on(struct envd *e, int64_t generation, bool clone)
{
    if (!generation || (generation == e->generation && !clone))
        return;
    if (e->generation) {
        awake_again();
        proc_resumed();
    }
    e->generation = generation;
}

/* What the programs in the box see, which is what the daemon wants to have confirmed. */
static void confirm_generation(const struct envd *e, struct hf_req *req)
{
    char text[24];
    hf_auto_free char *seen = NULL;
    size_t n = 0;
    if (!e->is_init)
        (void)snprintf(text, sizeof(text), "%lld", (long long)e->generation);
    else if (hf_read_file(INIT_GENERATION, sizeof(text) - 1, &seen, &n) == 0)
        (void)snprintf(text, sizeof(text), "%.*s", (int)strspn(seen, "0123456789"), seen);
    else
        return;
    hf_res_header(req, "X-Holdfast-Generation", text);
}

static void apply(struct envd *e, const json_t *body, int64_t timestamp_ns)
{
    json_t *vars = json_object_get(body, "envVars");
    if (json_is_object(vars)) {
        json_decref(e->env);
        e->env = json_deep_copy(vars);
    }
    replace(&e->default_user, text_at(body, "defaultUser"));
    replace(&e->default_workdir, text_at(body, "defaultWorkdir"));
    replace(&e->sandbox_id, text_at(body, "sandboxId"));
    replace(&e->template_id, text_at(body, "templateId"));
    set_hostname(e, text_at(body, "hostname"));
    if (timestamp_ns != INT64_MIN) {
        last_init_ns = timestamp_ns;
        set_clock(e, timestamp_ns);
    }
    write_markers(e);
}

static void init_body(struct hf_req *req, struct hf_str text, void *arg)
{
    struct envd *e = arg;
    struct hf_err err = {0};
    json_error_t je;
    int64_t timestamp_ns;
    json_auto_t *body = text.n ? json_loadb(text.p, text.n, 0, &je) : json_object();
    if (!body) {
        hf_res_error(req, 400, "the body is not valid JSON: %s (line %d, column %d)", je.text, je.line,
                     je.column);
        return;
    }
    int r = check_body(body, &err);
    if (r == 0)
        r = check_timestamp(body, &timestamp_ns, &err);
    int late = r;
    if (r >= 0)
        r = set_token(e, body, &err);
    if (r >= 0 && !late && text_at(body, "caBundle").p)
        r = ca_install("", text_at(body, "caBundle"), &e->ca_bundle, &err);
    if (r < 0) {
        hf_res_err(req, &err);
        return;
    }
    if (!late)
        apply(e, body, timestamp_ns);
    live_on(e, json_integer_value(json_object_get(body, "generation")),
            json_is_true(json_object_get(body, "clone")));
    if (e->generation)
        confirm_generation(e, req);
    hf_res_header(req, "X-Envd-Version", ENVD_VERSION);
    hf_res_header(req, "Cache-Control", "no-store");
    hf_res_send(req, 204, NULL, NULL, 0);
}

void init_handle(struct envd *e, struct hf_req *req)
{
    hf_req_collect(req, INIT_BODY_MAX, init_body, NULL, e);
}

void envs_handle(struct envd *e, struct hf_req *req)
{
    json_auto_t *all = procenv_global(e);
    hf_auto_free char *text = json_dumps(all, JSON_COMPACT);
    hf_res_send(req, 200, "application/json", text, text ? strlen(text) : 0);
}
