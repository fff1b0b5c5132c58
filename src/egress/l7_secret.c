/* Header values with secrets in them. Pure; nothing here is logged. */
#include "egress/l7_int.h"

#include <stdio.h>

void hf_l7_wipe(struct hf_buf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    hf_buf_done(b);
}

/* The name between "${" and "}"; e2b.secrets. and holdfast.secrets. in front are taken off. */
static struct hf_str placeholder(struct hf_str name, const struct hf_inject *in)
{
    static const char *const prefixes[] = {"e2b.secrets.", "holdfast.secrets."};
    if (hf_str_eq(name, "SECRET"))
        return hf_str_c(in->secret);
    for (size_t i = 0; i < HF_ARRAY_LEN(prefixes); i++)
        if (hf_str_starts(name, prefixes[i]))
            return (struct hf_str){name.p + strlen(prefixes[i]), name.n - strlen(prefixes[i])};
    return (struct hf_str){NULL, 0};
}

/* The next piece of the format: text as it stands, or a placeholder's name. Returns its length. */
static size_t next_piece(const char *f, struct hf_str *ret_text, struct hf_str *ret_name)
{
    *ret_text = *ret_name = (struct hf_str){NULL, 0};
    const char *end = strncmp(f, "${", 2) == 0 ? strchr(f, '}') : NULL;
    if (end) {
        *ret_name = (struct hf_str){f + 2, (size_t)(end - f) - 2};
        return (size_t)(end - f) + 1;
    }
    const char *next = strstr(f + 1, "${");
    *ret_text = (struct hf_str){f, next ? (size_t)(next - f) : strlen(f)};
    return ret_text->n;
}

static int secret_of(struct hf_str name, const json_t *secrets, struct hf_str *ret, char *missing)
{
    char key[HF_L7_SECRET_NAME_MAX];
    (void)snprintf(key, sizeof key, "%.*s", (int)HF_MIN(name.n, sizeof key - 1), name.p ? name.p : "");
    const json_t *v = json_object_get(secrets, key);
    if (!json_is_string(v)) {
        memcpy(missing, key, sizeof key);
        return -ENOENT;
    }
    *ret = (struct hf_str){json_string_value(v), json_string_length(v)};
    return 0;
}

/* out NULL: only the length. */
static int expand(const struct hf_inject *in, const json_t *secrets, struct hf_buf *out, size_t *ret_n,
                  char *missing)
{
    *ret_n = 0;
    for (const char *f = in->format; *f;) {
        struct hf_str text, name, secret;
        f += next_piece(f, &text, &name);
        if (name.p) {
            secret = placeholder(name, in);
            int r = secret.p ? secret_of(secret, secrets, &text, missing) : -EINVAL;
            if (r < 0)
                return r;
        }
        *ret_n += text.n;
        int r = out ? hf_buf_add(out, text.p, text.n) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static bool can_stand_in_header(const struct hf_buf *b)
{
    for (size_t i = 0; i < b->n; i++) {
        unsigned char ch = (unsigned char)b->p[i];
        if ((ch < 0x20 && ch != '\t') || ch == 0x7f)
            return false;
    }
    return true;
}

int hf_l7_expand(const struct hf_inject *in, const json_t *secrets, struct hf_buf *out,
                 char ret_missing[HF_L7_SECRET_NAME_MAX])
{
    size_t n;
    ret_missing[0] = '\0';
    int r = expand(in, secrets, NULL, &n, ret_missing);
    if (r == 0 && n > HF_L7_SECRET_MAX)
        r = -EMSGSIZE;
    if (r < 0)
        return r;
    /* In one piece: a buffer that grew would leave a copy behind. */
    r = hf_buf_reserve(out, n + 1);
    if (r == 0)
        r = expand(in, secrets, out, &n, ret_missing);
    if (r == 0 && !can_stand_in_header(out))
        r = -EINVAL;
    if (r < 0)
        hf_l7_wipe(out);
    return r;
}
