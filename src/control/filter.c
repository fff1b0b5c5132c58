#include "control/filter.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/id.h"
#include "wire/http.h"

static int bad(struct hf_err *err, const char *why)
{
    return hf_err_http(err, -EINVAL, 400, "Invalid metadata filter: %s", why);
}

/* The next part of *rest up to `sep`; false when nothing is left. */
static bool next_part(struct hf_str *rest, char sep, struct hf_str *part)
{
    if (!rest->p)
        return false;
    const char *end = rest->n ? memchr(rest->p, sep, rest->n) : NULL;
    size_t n = end ? (size_t)(end - rest->p) : rest->n;
    *part = (struct hf_str){rest->p, n};
    *rest = end ? (struct hf_str){end + 1, rest->n - n - 1} : (struct hf_str){NULL, 0};
    return true;
}

static int add_pair(json_t *out, struct hf_str pair, struct hf_err *err)
{
    const char *eq = pair.n ? memchr(pair.p, '=', pair.n) : NULL;
    size_t key_n = eq ? (size_t)(eq - pair.p) : 0;
    if (!eq || memchr(eq + 1, '=', pair.n - key_n - 1))
        return bad(err, "expected key=value pairs joined by &");
    hf_auto_buf struct hf_buf key = HF_BUF_INIT(HF_FILTER_BYTES_MAX),
                              value = HF_BUF_INIT(HF_FILTER_BYTES_MAX);
    if (hf_percent_decode((struct hf_str){pair.p, key_n}, true, &key) < 0 ||
        hf_percent_decode((struct hf_str){eq + 1, pair.n - key_n - 1}, true, &value) < 0)
        return bad(err, "a key or value is not valid percent-encoding");
    json_t *v = json_stringn(value.p ? value.p : "", value.n);
    if (!v || json_object_set_new(out, key.p ? key.p : "", v) < 0)
        return bad(err, "a key or value is not UTF-8");
    return 0;
}

int hf_filter_metadata(struct hf_str value, json_t **ret, struct hf_err *err)
{
    if (value.n > HF_FILTER_BYTES_MAX)
        return bad(err, "it is too long");
    hf_auto_buf struct hf_buf whole = HF_BUF_INIT(HF_FILTER_BYTES_MAX + 1);
    if (hf_percent_decode(value, true, &whole) < 0)
        return bad(err, "it is not valid percent-encoding");
    json_auto_t *out = json_object();
    struct hf_str rest = {whole.p, whole.n}, pair;
    if (!whole.n)
        rest.p = NULL; /* an empty filter matches everything */
    while (next_part(&rest, '&', &pair)) {
        int r = add_pair(out, pair, err);
        if (r < 0)
            return r;
    }
    *ret = json_incref(out);
    return 0;
}

bool hf_filter_matches(const json_t *want, const json_t *have)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)want, key, value)
    {
        const json_t *v = json_object_get(have, key);
        if (!v || !json_equal(v, value))
            return false;
    }
    return true;
}

int hf_filter_states(struct hf_str value, unsigned *ret, struct hf_err *err)
{
    unsigned bits = 0;
    struct hf_str rest = {value.p ? value.p : "", value.n}, part;
    while (next_part(&rest, ',', &part)) {
        if (hf_str_eq(part, "running"))
            bits |= HF_FILTER_RUNNING;
        else if (hf_str_eq(part, "paused"))
            bits |= HF_FILTER_PAUSED;
        else
            return hf_err_http(err, -EINVAL, 400,
                               "Invalid state: expected running, paused, or both with a comma");
    }
    *ret = bits;
    return 0;
}

/* ---- cursors ---- */

int hf_cursor_add(struct hf_buf *b, const struct hf_cursor *c)
{
    char when[HF_RFC3339_MAX];
    hf_rfc3339_ms(c->time_ms, when);
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(256), b64 = HF_BUF_INIT(512);
    int r = hf_buf_addf(&text, "%s__%s%s", when, c->id, c->asc ? "__asc" : "");
    if (r == 0)
        r = hf_base64_add(&b64, text.p, text.n);
    for (size_t i = 0; r == 0 && i < b64.n; i++) {
        char ch = b64.p[i] == '+' ? '-' : b64.p[i] == '/' ? '_' : b64.p[i];
        if (ch != '=')
            r = hf_buf_add(b, &ch, 1);
    }
    return r;
}

int hf_cursor_parse(struct hf_str text, bool asc, struct hf_cursor *ret, struct hf_err *err)
{
    static const char what[] = "Invalid next token";
    hf_auto_buf struct hf_buf plain = HF_BUF_INIT(256);
    if (!text.n || hf_unbase64_add(&plain, text) < 0 || !plain.n)
        return hf_err_http(err, -EINVAL, 400, "%s", what);
    const char *sep = memmem(plain.p, plain.n, "__", 2);
    int64_t ns;
    if (!sep || memchr(plain.p, '\0', plain.n) ||
        hf_rfc3339_parse((struct hf_str){plain.p, (size_t)(sep - plain.p)}, &ns) < 0)
        return hf_err_http(err, -EINVAL, 400, "%s", what);
    const char *id = sep + 2, *end = strstr(id, "__");
    size_t id_n = end ? (size_t)(end - id) : strlen(id);
    bool is_asc = end && strcmp(end, "__asc") == 0;
    if (!id_n || id_n >= sizeof(ret->id) || (end && !is_asc) || is_asc != asc)
        return hf_err_http(err, -EINVAL, 400, "%s", what);
    *ret = (struct hf_cursor){.time_ms = ns / 1000000, .asc = asc};
    (void)snprintf(ret->id, sizeof(ret->id), "%.*s", (int)id_n, id);
    return 0;
}
