/* Headers that a rule adds: which names, which values, which placeholders. */
#include "egress/policy_int.h"

/* Headers that frame or route a message: a rule that sets them would turn one request into another. */
static const char *const forbidden[] = {
    "host",    "content-length",   "transfer-encoding",   "connection", "keep-alive",     "te", "trailer",
    "upgrade", "proxy-connection", "proxy-authorization", "expect",     "http2-settings", NULL};

static bool is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int check_name(const char *rule, const char *header, char *lower, struct hf_err *err)
{
    size_t n = strlen(header);
    if (n == 0 || n > HF_POLICY_HEADER_NAME_MAX)
        return HF_POLICY_BAD("%s: a header name must have 1 to %u characters", rule,
                             HF_POLICY_HEADER_NAME_MAX);
    for (size_t i = 0; i < n; i++) {
        char c = header[i];
        if (!is_token_char(c))
            return HF_POLICY_BAD("%s: \"%.64s\" is not a header name", rule, header);
        lower[i] = (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    }
    lower[n] = '\0';
    for (size_t i = 0; forbidden[i]; i++) {
        if (strcmp(lower, forbidden[i]) == 0)
            return HF_POLICY_BAD("%s: the header \"%s\" frames the message and can't be set", rule, lower);
    }
    return 0;
}

static bool secret_name_ok(const char *p, size_t n)
{
    if (n == 0 || n > HF_POLICY_SECRET_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
              c == '-' || c == '.'))
            return false;
    }
    return true;
}

/* "${…}" without its frame. 1: ${SECRET}; 0: another good one; <0. */
static int check_placeholder(const char *rule, const char *p, size_t n, struct hf_err *err)
{
    static const char *const prefixes[] = {"e2b.secrets.", "holdfast.secrets."};
    struct hf_str s = {p, n};
    if (hf_str_eq(s, "SECRET"))
        return 1;
    for (size_t i = 0; i < HF_ARRAY_LEN(prefixes); i++) {
        size_t k = strlen(prefixes[i]);
        if (hf_str_starts(s, prefixes[i]) && secret_name_ok(p + k, n - k))
            return 0;
    }
    if (hf_str_starts(s, "e2b.identity."))
        return HF_POLICY_BAD("%s: there are no identity tokens; use ${holdfast.secrets.NAME}", rule);
    return HF_POLICY_BAD("%s: unknown placeholder ${%.*s}; use ${holdfast.secrets.NAME}", rule,
                         (int)HF_MIN(n, (size_t)64), p);
}

static int check_value(const char *rule, const char *header, const char *secret, const char *format,
                       struct hf_err *err)
{
    size_t n = strlen(format);
    bool uses = false;
    if (n > HF_POLICY_HEADER_VALUE_MAX)
        return HF_POLICY_BAD("%s: the value of \"%s\" is longer than %u bytes", rule, header,
                             HF_POLICY_HEADER_VALUE_MAX);
    for (size_t i = 0; i < n; i++) {
        if (((unsigned char)format[i] < 0x20 && format[i] != '\t') || format[i] == 0x7f)
            return HF_POLICY_BAD("%s: the value of \"%s\" has control characters", rule, header);
    }
    for (const char *p = strstr(format, "${"); p; p = strstr(p, "${")) {
        const char *end = strchr(p, '}');
        if (!end)
            return HF_POLICY_BAD("%s: the value of \"%s\" has a placeholder without its end", rule, header);
        int r = check_placeholder(rule, p + 2, (size_t)(end - p) - 2, err);
        if (r < 0)
            return r;
        uses |= r > 0;
        p = end;
    }
    if (uses && !*secret)
        return HF_POLICY_BAD("%s: \"%s\" uses ${SECRET} but \"secret\" names none", rule, header);
    if (!uses && *secret)
        return HF_POLICY_BAD("%s: \"%s\" names a secret but its format has no ${SECRET}", rule, header);
    return 0;
}

int hf_policy_inject(const char *rule, const char *header, const char *secret, const char *format,
                     json_t *inject, struct hf_err *err)
{
    char lower[HF_POLICY_HEADER_NAME_MAX + 1];
    if (!format)
        format = "${SECRET}";
    if (*secret && !secret_name_ok(secret, strlen(secret)))
        return HF_POLICY_BAD("%s: \"%.64s\" is not a secret's name (letters, digits, '.', '_', '-')", rule,
                             secret);
    int r = check_name(rule, header, lower, err);
    if (r == 0)
        r = check_value(rule, lower, secret, format, err);
    if (r < 0)
        return r;
    if (json_array_size(inject) >= HF_POLICY_INJECT_MAX)
        return HF_POLICY_BAD("%s: more than %u headers", rule, HF_POLICY_INJECT_MAX);
    size_t i;
    json_t *v;
    json_array_foreach(inject, i, v)
    {
        if (strcmp(json_string_value(json_object_get(v, "header")), lower) == 0)
            return HF_POLICY_BAD("%s: the header \"%s\" is set twice", rule, lower);
    }
    (void)json_array_append_new(
        inject, json_pack("{s:s, s:s, s:s}", "header", lower, "secret", secret, "format", format));
    return 0;
}
