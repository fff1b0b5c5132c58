/* What all verbs share: reporting, colours. */
#include "cli/cli.h"

#include <jansson.h>
#include <stdarg.h>

#include "cli/client.h"
#include "cli/table.h"

void hf_cli_hint(struct hf_cli *cli, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(cli->hint, sizeof(cli->hint), fmt, ap);
    va_end(ap);
}

static void report(struct hf_cli *cli, int code, const char *msg, const char *hint)
{
    if (cli->json) {
        json_t *j = json_pack("{s:i, s:s}", "code", code, "message", msg);
        if (j && *hint)
            (void)json_object_set_new(j, "hint", json_string(hint));
        if (j && json_dumpf(j, stderr, JSON_COMPACT) == 0)
            (void)fputc('\n', stderr);
        json_decref(j);
        return;
    }
    hf_auto_free char *m = hf_text_printable(msg), *h = hf_text_printable(hint);
    bool color = isatty(STDERR_FILENO) && !getenv("NO_COLOR");
    (void)fprintf(stderr, "%sholdfast:%s %s\n", color ? "\033[31m" : "", color ? "\033[0m" : "", m);
    if (*h)
        (void)fprintf(stderr, "  hint: %s\n", h);
}

/* The number in --json errors: the HTTP status that came, or the one that says the same. */
static int code_of(const struct hf_err *err)
{
    if (err->r == -ECONNREFUSED || err->r == -EHOSTUNREACH || err->r == -ESHUTDOWN)
        return 503;
    return hf_err_http_status(err);
}

int hf_cli_fail(struct hf_cli *cli, const struct hf_err *err)
{
    (void)fflush(stdout);
    report(cli, code_of(err), err->msg, cli->hint);
    return HF_EXIT_ERROR;
}

/* "sandbox " for the verbs of a group, "" for the others. */
static void group_of(const struct hf_verb *verb, char *out, size_t n)
{
    out[0] = '\0';
    for (const struct hf_verb *const *g = hf_verb_root.sub; *g; g++)
        for (const struct hf_verb *const *v = (*g)->sub; v && *v; v++)
            if (*v == verb)
                (void)snprintf(out, n, "%s ", (*g)->name);
}

int hf_cli_usage(struct hf_cli *cli, const struct hf_verb *verb, const char *fmt, ...)
{
    char msg[HF_ERR_MSG_MAX], hint[HF_ERR_MSG_MAX] = "`holdfast help` lists all commands";
    char group[32];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    group_of(verb, group, sizeof(group));
    if (verb && verb != &hf_verb_root)
        (void)snprintf(hint, sizeof(hint), "`holdfast help %s%s` shows how it is used", group, verb->name);
    report(cli, 400, msg, hint);
    return HF_EXIT_USAGE;
}

void hf_cli_say(const struct hf_cli *cli, const char *fmt, ...)
{
    va_list ap;
    if (cli->quiet || cli->json)
        return;
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void)fputc('\n', stderr);
}

const char *hf_color(const struct hf_cli *cli, const char *name)
{
    static const char *const codes[][2] = {{"green", "\033[32m"}, {"yellow", "\033[33m"},
                                           {"red", "\033[31m"},   {"bold", "\033[1m"},
                                           {"dim", "\033[2m"},    {"reset", "\033[0m"}};
    for (size_t i = 0; cli->color && i < HF_ARRAY_LEN(codes); i++)
        if (strcmp(codes[i][0], name) == 0)
            return codes[i][1];
    return "";
}
