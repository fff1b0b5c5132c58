/* holdfast secret: values that only the network helper sees, put into requests of sandboxes. A value comes
 * from stdin, a file or the terminal, never from the command line, which other users of the machine can read.
 */
#include <fcntl.h>
#include <stdio.h>

#include "cli/args.h"
#include "cli/client.h"
#include "cli/show.h"
#include "cli/term.h"
#include "cli/url.h"

#define VALUE_MAX 65536u
#define CTRL_C 3
#define CTRL_D 4
#define BACKSPACE 8
#define DELETE 127

static const struct hf_opt set_opts[] = {
    {"from-file", 'f', "FILE", "read the value from this file, as it is", NULL},
    {"metadata", 'm', "KEY=VALUE", "a note that is kept with it; may be given again", NULL},
    {0},
};

/* ---- the value ---- */

struct value {
    char text[VALUE_MAX + 1];
    size_t n;
};

static struct value *value_new(void)
{
    return hf_new(struct value);
}

static void value_free(struct value **v)
{
    if (*v)
        explicit_bzero(*v, sizeof(**v));
    free(*v);
}

static int read_all(int fd, struct value *v, struct hf_err *err)
{
    for (;;) {
        ssize_t got = read(fd, v->text + v->n, sizeof(v->text) - v->n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return hf_err_set(err, -errno, "cannot read the value: %s", strerror(errno));
        if (got == 0)
            return 0;
        v->n += (size_t)got;
        if (v->n > VALUE_MAX)
            return hf_err_set(err, -EMSGSIZE, "the value is longer than %u bytes", VALUE_MAX);
    }
}

static int read_file(const char *path, struct value *v, struct hf_err *err)
{
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
    return read_all(fd, v, err);
}

/* 1: the line is over; 0: more; -EINTR: given up. */
static int typed(struct value *v, char ch)
{
    if (ch == '\r' || ch == '\n' || ch == CTRL_D)
        return 1;
    if (ch == CTRL_C)
        return -EINTR;
    if (ch == BACKSPACE || ch == DELETE)
        v->n -= v->n > 0;
    else if (v->n < VALUE_MAX)
        v->text[v->n++] = ch;
    return 0;
}

static int read_terminal(const char *name, struct value *v, struct hf_err *err)
{
    char ch;
    (void)fprintf(stderr, "value of %s (not shown): ", name);
    if (hf_term_raw(STDIN_FILENO) < 0)
        return hf_err_set(err, -ENOTTY, "the terminal can't be kept from showing the value: use --from-file");
    int r = 0;
    while (r == 0) {
        ssize_t got = read(STDIN_FILENO, &ch, 1);
        if (got < 0 && errno == EINTR)
            continue;
        r = got == 1 ? typed(v, ch) : 1;
    }
    hf_term_restore();
    (void)fputc('\n', stderr);
    return r < 0 ? hf_err_set(err, r, "given up; nothing was changed") : 0;
}

static int read_value(const struct hf_args *args, const char *name, struct value *v, struct hf_err *err)
{
    const char *file = hf_arg(args, "from-file");
    int r;
    if (file)
        return read_file(file, v, err);
    if (isatty(STDIN_FILENO))
        return read_terminal(name, v, err);
    r = read_all(STDIN_FILENO, v, err);
    /* echo and here-documents add it; a file is taken as it is */
    if (r == 0 && v->n && v->text[v->n - 1] == '\n')
        v->n--;
    return r;
}

/* ---- set, rotate ---- */

static int add_metadata(const struct hf_args *args, json_t *body, struct hf_err *err)
{
    json_t *metadata = NULL;
    for (size_t i = 0; i < args->n_given; i++) {
        const char *pair = args->given[i].value, *eq = pair ? strchr(pair, '=') : NULL;
        if (strcmp(args->given[i].opt->name, "metadata") != 0)
            continue;
        if (!eq || eq == pair)
            return hf_err_set(err, -EINVAL, "--metadata takes KEY=VALUE, not '%s'", pair);
        if (!metadata) {
            metadata = json_object();
            (void)json_object_set_new(body, "metadata", metadata);
        }
        hf_auto_free char *key = hf_xstrndup(pair, (size_t)(eq - pair));
        (void)json_object_set_new(metadata, key, json_string(eq + 1));
    }
    return 0;
}

static int make_body(const struct hf_args *args, json_t *body, struct hf_err *err)
{
    hf_cleanup(value_free) struct value *v = value_new();
    int r = add_metadata(args, body, err);
    if (r == 0)
        r = read_value(args, args->v[0], v, err);
    if (r == 0 && v->n == 0)
        r = hf_err_set(err, -EINVAL, "the value is empty");
    json_t *text = r == 0 ? json_stringn(v->text, v->n) : NULL;
    if (r == 0 && !text)
        r = hf_err_set(err, -EINVAL, "the value is not UTF-8 text; encode it, for example with base64");
    if (r == 0)
        (void)json_object_set_new(body, "value", text);
    return r;
}

static int path_of(const char *name, struct hf_buf *path, struct hf_err *err)
{
    return hf_url_path(path, "/secrets/%s", name) < 0
               ? hf_err_set(err, -EINVAL, "the name of the secret is too long")
               : 0;
}

static int report(struct hf_cli *cli, const json_t *s)
{
    if (cli->json)
        hf_show_json(s);
    else if (cli->quiet)
        (void)puts(hf_show_str(s, "secretID"));
    else
        hf_cli_say(cli, "secret %s, version %lld", hf_show_str(s, "name"),
                   (long long)json_integer_value(json_object_get(s, "currentVersion")));
    return HF_EXIT_OK;
}

/* only_old: it must exist already. */
static int write_secret(struct hf_cli *cli, const struct hf_args *args, bool only_old)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0}, again = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    json_auto_t *body = json_object();
    int r = path_of(args->v[0], &path, &err);
    if (r == 0)
        r = make_body(args, body, &err);
    if (r < 0)
        return hf_cli_fail(cli, &err);
    r = hf_api(cli, "POST", path.p, body, &a, &err);
    if (r == 0)
        return report(cli, a.body);
    if (r != -ENOENT || only_old) {
        if (r == -ENOENT)
            hf_cli_hint(cli, "`holdfast secret set %s` makes it", args->v[0]);
        return hf_cli_fail(cli, &err);
    }
    err = (struct hf_err){0};
    cli->hint[0] = '\0';
    (void)json_object_set_new(body, "name", json_string(args->v[0]));
    r = hf_api(cli, "POST", "/secrets", body, &again, &err);
    return r < 0 ? hf_cli_fail(cli, &err) : report(cli, again.body);
}

static int run_set(struct hf_cli *cli, const struct hf_args *args)
{
    return write_secret(cli, args, false);
}

static int run_rotate(struct hf_cli *cli, const struct hf_args *args)
{
    return write_secret(cli, args, true);
}

static const struct hf_verb set_verb = {
    .name = "set",
    .summary = "make a secret, or give it a new value",
    .args = "NAME",
    .min_args = 1,
    .max_args = 1,
    .opts = set_opts,
    .details =
        "The value is read from stdin (without the last line's end), from --from-file, or asked for on\n"
        "the terminal. It is kept encrypted and never shown again. Rules of a network policy use it as\n"
        "${holdfast.secrets.NAME}; sandboxes never see it.",
    .examples = "holdfast secret set openai < key.txt\n"
                "pass show openai | holdfast secret set openai",
    .run = run_set,
};

static const struct hf_verb rotate_verb = {
    .name = "rotate",
    .summary = "give an existing secret a new value, from the next request on",
    .args = "NAME",
    .min_args = 1,
    .max_args = 1,
    .opts = set_opts,
    .details = "As `set`, but the secret has to exist. Sandboxes that use it are not touched.",
    .examples = "holdfast secret rotate openai < new-key.txt",
    .run = run_rotate,
};

/* ---- ls, rm ---- */

static int fetch_all(struct hf_cli *cli, json_t *all, struct hf_err *err)
{
    hf_auto_free char *token = NULL;
    do {
        hf_auto_answer struct hf_answer a = {0};
        hf_auto_free char *path =
            token ? hf_xasprintf("/secrets?nextToken=%s", token) : hf_xstrdup("/secrets");
        int r = hf_api(cli, "GET", path, NULL, &a, err);
        if (r < 0)
            return r;
        (void)json_array_extend(all, a.body);
        free(token);
        token = *a.next_token ? hf_xstrdup(a.next_token) : NULL;
    } while (token);
    return 0;
}

static void print_table(const struct hf_cli *cli, const json_t *all)
{
    static const char *const heads[] = {"NAME", "VERSION", "ID", "CREATED", "UPDATED", NULL};
    struct hf_table t;
    size_t i;
    json_t *s;
    hf_table_init(&t, heads);
    hf_table_flag(&t, 0, HF_TABLE_FLEX);
    json_array_foreach(all, i, s)
    {
        char version[24];
        (void)snprintf(version, sizeof(version), "%lld",
                       (long long)json_integer_value(json_object_get(s, "currentVersion")));
        hf_table_cell_color(&t, hf_show_str(s, "name"), hf_color(cli, "bold"));
        hf_table_cell(&t, version);
        hf_table_cell(&t, hf_show_str(s, "secretID"));
        hf_table_cell(&t, hf_show_str(s, "createdAt"));
        hf_table_cell(&t, hf_show_str(s, "updatedAt"));
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_ls(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    json_auto_t *all = json_array();
    (void)args;
    if (fetch_all(cli, all, &err) < 0)
        return hf_cli_fail(cli, &err);
    hf_show_list(cli, all, "name", "no secrets; `holdfast secret set NAME` makes one", print_table);
    return HF_EXIT_OK;
}

static const struct hf_verb ls_verb = {
    .name = "ls",
    .alias = "list",
    .summary = "list the secrets, never their values",
    .details = "--quiet prints the names only.",
    .examples = "holdfast secret ls",
    .run = run_ls,
};

static int run_rm(struct hf_cli *cli, const struct hf_args *args)
{
    int code = HF_EXIT_OK;
    for (size_t i = 0; i < args->n; i++) {
        struct hf_err err = {0};
        hf_auto_answer struct hf_answer a = {0};
        hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
        int r = path_of(args->v[i], &path, &err);
        if (r == 0)
            r = hf_api(cli, "DELETE", path.p, NULL, &a, &err);
        if (r < 0)
            code = hf_cli_fail(cli, &err);
        else
            hf_cli_say(cli, "removed %s", args->v[i]);
    }
    return code;
}

static const struct hf_verb rm_verb = {
    .name = "rm",
    .alias = "remove",
    .summary = "forget secrets; requests that need them are refused from then on",
    .args = "NAME|ID...",
    .min_args = 1,
    .max_args = 100,
    .examples = "holdfast secret rm openai",
    .run = run_rm,
};

static const struct hf_verb *const subs[] = {&set_verb, &ls_verb, &rotate_verb, &rm_verb, NULL};

const struct hf_verb hf_verb_secret = {
    .name = "secret",
    .summary = "values for requests of sandboxes, which never see them",
    .examples = "holdfast secret set openai < key.txt",
    .sub = subs,
};
