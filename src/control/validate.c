#include "control/validate.h"

#include <stdio.h>

#define BAD(...) hf_err_http(err, -EINVAL, 400, __VA_ARGS__)

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static bool has_control(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return true;
    }
    return false;
}

static const json_t *member(const json_t *body, const char *field)
{
    const json_t *v = json_object_get(body, field);
    return v && !json_is_null(v) ? v : NULL;
}

int hf_validate_int(const json_t *body, const char *field, int64_t min, int64_t max, int64_t *ret,
                    struct hf_err *err)
{
    const json_t *v = member(body, field);
    if (!v)
        return 0;
    if (!json_is_integer(v))
        return BAD("validation error: \"%s\" must be an integer, not %s", field, type_name(v));
    int64_t n = json_integer_value(v);
    if (n < min || n > max)
        return BAD("validation error: \"%s\" must be from %lld to %lld", field, (long long)min,
                   (long long)max);
    *ret = n;
    return 1;
}

int hf_validate_text(const json_t *body, const char *field, size_t max, const char **ret, struct hf_err *err)
{
    const json_t *v = member(body, field);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return BAD("validation error: \"%s\" must be a string, not %s", field, type_name(v));
    size_t n = json_string_length(v);
    if (n > max)
        return BAD("validation error: \"%s\" is longer than %zu bytes", field, max);
    if (has_control(json_string_value(v), n))
        return BAD("validation error: \"%s\" has control characters", field);
    *ret = json_string_value(v);
    return 1;
}

static int boolean(const json_t *body, const char *field, bool *ret, struct hf_err *err)
{
    const json_t *v = member(body, field);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return BAD("validation error: \"%s\" must be a boolean, not %s", field, type_name(v));
    *ret = json_is_true(v);
    return 1;
}

/* An object of strings within the limits. */
static int map_of_strings(const json_t *v, const char *field, size_t entries_max, size_t bytes_max,
                          struct hf_err *err)
{
    if (!json_is_object(v))
        return BAD("validation error: \"%s\" must be an object of strings, not %s", field, type_name(v));
    if (json_object_size(v) > entries_max)
        return BAD("validation error: \"%s\" has more than %zu entries", field, entries_max);
    size_t bytes = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (!json_is_string(value))
            return BAD("validation error: \"%s\".\"%.64s\" must be a string, not %s", field, key,
                       type_name(value));
        bytes += strlen(key) + json_string_length(value);
    }
    if (bytes > bytes_max)
        return BAD("validation error: \"%s\" is larger than %zu bytes", field, bytes_max);
    return 0;
}

int hf_validate_metadata(const json_t *v, const char *field, struct hf_err *err)
{
    int r = map_of_strings(v, field, HF_METADATA_ENTRIES_MAX, HF_METADATA_BYTES_MAX, err);
    if (r < 0)
        return r;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (has_control(key, strlen(key)) || has_control(json_string_value(value), json_string_length(value)))
            return BAD("validation error: \"%s\" has control characters in a key or value", field);
        if (strncmp(key, HF_RESERVED_METADATA, sizeof(HF_RESERVED_METADATA) - 1) == 0)
            return BAD("validation error: keys of \"%s\" that begin with \"%s\" are reserved", field,
                       HF_RESERVED_METADATA);
    }
    return 0;
}

int hf_validate_env(const json_t *v, const char *field, struct hf_err *err)
{
    int r = map_of_strings(v, field, HF_ENV_ENTRIES_MAX, HF_ENV_BYTES_MAX, err);
    if (r < 0)
        return r;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (!*key || strchr(key, '=') || has_control(key, strlen(key)))
            return BAD("validation error: \"%s\" has a name that can't be an environment variable's", field);
    }
    return 0;
}

int hf_validate_timeout(int64_t timeout_s, const struct hf_config *cfg, struct hf_err *err)
{
    if (timeout_s <= 0)
        return BAD("Timeout must be greater than 0");
    if ((uint64_t)timeout_s <= cfg->max_timeout_s)
        return 0;
    if (cfg->max_timeout_s % 3600)
        return BAD("Timeout cannot be greater than %llu seconds", (unsigned long long)cfg->max_timeout_s);
    return BAD("Timeout cannot be greater than %llu hours", (unsigned long long)cfg->max_timeout_s / 3600);
}

int hf_validate_template_ref(const char *text, char name[HF_ROW_NAME], char tag[HF_ROW_NAME],
                             struct hf_err *err)
{
    size_t n = strlen(text);
    if (!n || n >= HF_ROW_NAME)
        return BAD("validation error: a template is named by 1 to %u characters", HF_ROW_NAME - 1);
    if (strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:") != n)
        return BAD(
            "validation error: the template's name has characters that a name can't have: use letters, "
            "digits, - _ . and one : before a tag");
    const char *colon = strchr(text, ':');
    size_t name_n = colon ? (size_t)(colon - text) : n;
    if (!name_n || (colon && (!colon[1] || strchr(colon + 1, ':'))))
        return BAD("validation error: \"%.64s\" is not a template name: expected name or name:tag", text);
    (void)snprintf(name, HF_ROW_NAME, "%.*s", (int)name_n, text);
    for (char *p = name; *p; p++)
        *p = (char)(*p >= 'A' && *p <= 'Z' ? *p | 0x20 : *p);
    (void)snprintf(tag, HF_ROW_NAME, "%s", colon ? colon + 1 : "");
    return 0;
}

int hf_validate_sandbox_id(const char *text, char id[HF_ROW_ID], struct hf_err *err)
{
    size_t n = strcspn(text, "-");
    const char *rest = text[n] ? text + n + 1 : "";
    if (!n || n >= HF_ROW_ID || strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789") != n ||
        strchr(rest, '-'))
        return BAD("Invalid sandbox ID");
    (void)snprintf(id, HF_ROW_ID, "%.*s", (int)n, text);
    return 0;
}

int hf_validate_limits(const json_t *body, struct hf_limits *ret, struct hf_err *err)
{
    const json_t *cpu = member(body, "cpuCount");
    if (cpu) {
        /* Fractions of a core are fine: 0.5 is 500 thousandths. */
        double cores = json_number_value(cpu);
        if (!json_is_number(cpu) || !(cores >= 0.01) || !(cores <= HF_CONFIG_CPU_MILLIS_MAX / 1000.0))
            return BAD("validation error: \"cpuCount\" must be a number of cores from 0.01 to %u",
                       HF_CONFIG_CPU_MILLIS_MAX / 1000u);
        ret->cpu_millis = (int64_t)(cores * 1000.0 + 0.5);
    }
    const int64_t mb = 1 << 20;
    int r = hf_validate_int(body, "memoryMB", (int64_t)HF_CONFIG_MEMORY_MIN / mb,
                            (int64_t)HF_CONFIG_MEMORY_MAX / mb, &ret->memory_bytes, err);
    if (r > 0)
        ret->memory_bytes *= mb;
    if (r >= 0)
        r = hf_validate_int(body, "diskSizeMB", (int64_t)HF_CONFIG_DISK_MIN / mb,
                            (int64_t)HF_CONFIG_DISK_MAX / mb, &ret->disk_bytes, err);
    if (r > 0)
        ret->disk_bytes *= mb;
    if (r >= 0)
        r = hf_validate_int(body, "pidsMax", HF_CONFIG_PIDS_MIN, HF_CONFIG_PIDS_MAX, &ret->pids_max, err);
    return r < 0 ? r : 0;
}

/* ---- what this version can't do ---- */

static int unsupported(struct hf_err *err, const char *what, const char *why)
{
    return hf_err_http(err, -EOPNOTSUPP, 501, "%s is not supported by this version of holdfast: %s", what,
                       why);
}

static bool filled(const json_t *v)
{
    return v && (json_is_array(v)    ? json_array_size(v) > 0
                 : json_is_object(v) ? json_object_size(v) > 0
                                     : true);
}

static int check_lifecycle(const json_t *body, struct hf_create_body *ret, struct hf_err *err)
{
    ret->pause_memory = true;
    int r = boolean(body, "autoPause", &ret->auto_pause, err);
    if (r >= 0)
        r = boolean(body, "autoPauseMemory", &ret->pause_memory, err);
    if (r < 0)
        return r;
    if (!ret->pause_memory && !ret->auto_pause)
        return BAD("autoPauseMemory=false needs autoPause=true");
    const json_t *resume = member(body, "autoResume");
    if (!resume)
        return 0;
    if (!json_is_object(resume))
        return BAD("validation error: \"autoResume\" must be an object, not %s", type_name(resume));
    r = boolean(resume, "enabled", &ret->auto_resume, err);
    if (r >= 0 && ret->auto_resume && !ret->pause_memory)
        return BAD("autoPauseMemory=false can't be combined with autoResume: what boots again is no answer "
                   "to a request");
    return r < 0 ? r : 0;
}

static int check_unsupported(const json_t *body, struct hf_create_body *ret, struct hf_err *err)
{
    bool flag;
    /* Both values hold: a sandbox is always secured by its token. */
    if (boolean(body, "secure", &flag, err) < 0)
        return -EINVAL;
    if (filled(member(body, "volumeMounts")))
        return unsupported(err, "volumeMounts",
                           "volumes of your own come later; a session has a workspace that "
                           "outlives its sandboxes: POST /v1/sessions");
    if (filled(member(body, "mcp")))
        return unsupported(err, "mcp", "there is no MCP gateway");
    const json_t *iam = member(body, "iam");
    if (filled(iam) && filled(member(iam, "tokens")))
        return unsupported(err, "iam", "there are no identity tokens");
    return check_lifecycle(body, ret, err);
}

int hf_validate_network(const json_t *body, const json_t **ret, int *ret_internet, struct hf_err *err)
{
    bool internet = false;
    const json_t *net = member(body, "network");
    if (net && !json_is_object(net))
        return BAD("validation error: \"network\" must be an object, not %s", type_name(net));
    int r = boolean(body, "allow_internet_access", &internet, err);
    if (r < 0)
        return r;
    *ret = net;
    *ret_internet = r > 0 ? internet : -1;
    return 0;
}

int hf_validate_create(const json_t *body, bool v2, const struct hf_config *cfg, struct hf_create_body *ret,
                       struct hf_err *err)
{
    struct hf_create_body out = {.timeout_s = v2 ? HF_TIMEOUT_V2_DEFAULT : HF_TIMEOUT_V1_DEFAULT};
    const char *ref = NULL;
    int r = hf_validate_text(body, "templateID", sizeof(out.template_ref) - 1, &ref, err);
    if (r == 0 || (r > 0 && !*ref))
        return BAD("validation error: \"templateID\" is required");
    if (r > 0) {
        (void)snprintf(out.template_ref, sizeof(out.template_ref), "%s", ref);
        r = hf_validate_int(body, "timeout", INT64_MIN, INT64_MAX, &out.timeout_s, err);
    }
    if (r > 0)
        r = hf_validate_timeout(out.timeout_s, cfg, err);
    if (r == 0 && (uint64_t)out.timeout_s > cfg->max_timeout_s)
        out.timeout_s = (int64_t)cfg->max_timeout_s; /* the default, where the limit is below it */
    if (r >= 0)
        r = hf_validate_limits(body, &out.limits, err);
    out.metadata = member(body, "metadata");
    if (r >= 0 && out.metadata)
        r = hf_validate_metadata(out.metadata, "metadata", err);
    out.env = member(body, "envVars");
    if (r >= 0 && out.env)
        r = hf_validate_env(out.env, "envVars", err);
    if (r >= 0)
        r = hf_validate_network(body, &out.network, &out.internet, err);
    if (r >= 0)
        r = check_unsupported(body, &out, err);
    if (r < 0)
        return r;
    *ret = out;
    return 0;
}
