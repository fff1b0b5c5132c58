#include "cli/show.h"

#include <stdarg.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/term.h"

#define FIELD_WIDTH 14

void hf_show_json(const json_t *j)
{
    size_t flags = JSON_ENCODE_ANY | (isatty(STDOUT_FILENO) ? JSON_INDENT(2) : JSON_COMPACT);
    if (json_dumpf(j, stdout, flags) == 0)
        (void)fputc('\n', stdout);
}

void hf_show_list(const struct hf_cli *cli, const json_t *all, const char *key, const char *none,
                  void (*print)(const struct hf_cli *cli, const json_t *all))
{
    size_t i;
    const json_t *one;
    if (cli->json) {
        hf_show_json(all);
    } else if (cli->quiet) {
        json_array_foreach(all, i, one)(void) puts(hf_show_str(one, key));
    } else if (json_array_size(all) == 0) {
        hf_cli_say(cli, "%s", none);
    } else {
        print(cli, all);
    }
}

const char *hf_show_str(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

static const char *distance(const json_t *j, const char *key, char out[32], bool future)
{
    int64_t at = 0, now = hf_real_ns();
    out[0] = '\0';
    if (hf_rfc3339_parse(hf_str_c(hf_show_str(j, key)), &at) < 0)
        return out;
    int64_t d = (future ? at - now : now - at) / 1000000000;
    return hf_human_seconds((uint64_t)HF_MAX(d, (int64_t)0), out);
}

const char *hf_show_since(const json_t *j, const char *key, char out[32])
{
    return distance(j, key, out, false);
}

const char *hf_show_until(const json_t *j, const char *key, char out[32])
{
    return distance(j, key, out, true);
}

const char *hf_show_state_color(const struct hf_cli *cli, const char *state)
{
    static const char *const good[] = {"running", "ready", "open", "active", "ok"};
    static const char *const bad[] = {"killed", "failed", "error", "fail"};
    for (size_t i = 0; i < HF_ARRAY_LEN(good); i++)
        if (strcmp(state, good[i]) == 0)
            return hf_color(cli, "green");
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        if (strcmp(state, bad[i]) == 0)
            return hf_color(cli, "red");
    return hf_color(cli, "yellow");
}

char *hf_show_map(const json_t *map)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(64 * 1024);
    const char *key;
    json_t *value;
    int r = hf_buf_adds(&b, "");
    json_object_foreach((json_t *)map, key, value)
    {
        const char *text = json_string_value(value);
        if (r == 0)
            r = hf_buf_addf(&b, "%s%s=%s", b.n ? " " : "", key, text ? text : "");
    }
    return hf_buf_take(&b);
}

void hf_show_table(const struct hf_cli *cli, const struct hf_table *t)
{
    hf_table_print(t, stdout, hf_term_width(), hf_color(cli, "bold"), hf_color(cli, "reset"));
}

void hf_show_field(const struct hf_cli *cli, const char *name, const char *fmt, ...)
{
    va_list ap;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(64 * 1024);
    va_start(ap, fmt);
    int r = hf_buf_vaddf(&b, fmt, ap);
    va_end(ap);
    if (r < 0 || b.n == 0)
        return;
    hf_auto_free char *safe = hf_text_printable(b.p);
    (void)printf("%s%-*s%s %s\n", hf_color(cli, "dim"), FIELD_WIDTH, name, hf_color(cli, "reset"), safe);
}

int hf_show_pairs(const struct hf_args *a, const char *opt, json_t **ret, struct hf_err *err)
{
    json_t *map = NULL;
    const char *pair;
    for (size_t i = 0; (pair = hf_arg_nth(a, opt, i)); i++) {
        const char *eq = strchr(pair, '=');
        hf_auto_free char *key = eq && eq != pair ? hf_xstrndup(pair, (size_t)(eq - pair)) : NULL;
        if (!map)
            map = json_object();
        if (!key || json_object_set_new(map, key, json_string(eq + 1)) < 0) {
            json_decref(map);
            return hf_err_set(err, -EINVAL, "--%s takes NAME=VALUE in UTF-8, not '%s'", opt, pair);
        }
    }
    *ret = map;
    return 0;
}
