/* holdfast key create | ls | revoke: on the data directory itself, with or without a daemon. */
#include "control/key.h"

#include <jansson.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/show.h"
#include "control/config.h"

#define DATA_OPT                                                                                         \
    {                                                                                                    \
        "data", 0, "DIR", "the daemon's data directory (HOLDFAST_DATA; default /var/lib/holdfast)", NULL \
    }

static const struct hf_opt data_opts[] = {DATA_OPT, {0}};

static const struct hf_opt create_opts[] = {
    DATA_OPT,
    {"name", 'n', "NAME", "what it is for (default \"cli\")", NULL},
    {"tenant", 0, "NAME", "whose sandboxes it opens (default \"default\"; made when new)", NULL},
    {0},
};

/* The data directory by the same rules as the daemon's; malloc'ed. */
static int data_dir(const struct hf_args *a, char **ret, struct hf_err *err)
{
    struct hf_config cfg;
    const char *flag = hf_arg(a, "data");
    hf_config_defaults(&cfg);
    int r = flag ? hf_config_set(&cfg, "data", flag, err) : 0;
    if (r == 0 && !flag)
        r = hf_config_load(&cfg, NULL, err);
    if (r == 0)
        r = hf_config_check(&cfg, err);
    if (r == 0)
        *ret = hf_xstrdup(cfg.data_dir);
    hf_config_done(&cfg);
    return r;
}

static int fail(struct hf_cli *cli, const struct hf_err *err)
{
    if (err->r == -EACCES || err->r == -EPERM)
        hf_cli_hint(cli,
                    "keys live in the daemon's data directory; use its user (usually root) or --data DIR");
    return hf_cli_fail(cli, err);
}

static int run_create(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    struct hf_key_info info;
    char text[HF_KEY_TEXT_MAX];
    const char *name = hf_arg(args, "name"), *tenant = hf_arg(args, "tenant");
    hf_auto_free char *data = NULL;
    int r = data_dir(args, &data, &err);
    if (r == 0)
        r = hf_key_create(data, tenant, name ? name : "cli", text, &info, &err);
    if (r < 0)
        return fail(cli, &err);
    if (cli->json) {
        json_t *j = json_pack("{s:s, s:s, s:s, s:s}", "id", info.id, "key", text, "name", info.name, "tenant",
                              info.tenant);
        hf_show_json(j);
        json_decref(j);
    } else {
        (void)puts(text);
        hf_cli_say(cli, "key %s of tenant %s; it is shown this once.  export HOLDFAST_API_KEY=%s", info.id,
                   info.tenant, text);
    }
    explicit_bzero(text, sizeof(text));
    return HF_EXIT_OK;
}

static const struct hf_verb create_verb = {
    .name = "create",
    .summary = "make an API key and print it, this once",
    .opts = create_opts,
    .details = "Works with and without a running daemon. Only a hash is stored.",
    .examples = "holdfast key create --name laptop\n"
                "export HOLDFAST_API_KEY=$(holdfast key create --quiet)\n"
                "holdfast key create --data /srv/holdfast --tenant team-a --json",
    .run = run_create,
};

static void add_time(json_t *j, const char *name, int64_t ms)
{
    char when[HF_RFC3339_MAX];
    hf_rfc3339_ms(ms, when);
    (void)json_object_set_new(j, name, ms ? json_string(when) : json_null());
}

static void print_json(const struct hf_key_info *keys, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *j = json_pack("{s:s, s:s, s:s, s:s}", "id", keys[i].id, "name", keys[i].name, "tenant",
                              keys[i].tenant, "prefix", keys[i].prefix);
        add_time(j, "created_at", keys[i].created_ms);
        add_time(j, "last_used_at", keys[i].last_used_ms);
        add_time(j, "revoked_at", keys[i].revoked_ms);
        (void)json_array_append_new(all, j);
    }
    hf_show_json(all);
    json_decref(all);
}

static char *ago(int64_t ms)
{
    char text[HF_HUMAN_MAX];
    int64_t s = (hf_real_ms() - ms) / 1000;
    return ms ? hf_xasprintf("%s ago", hf_human_seconds((uint64_t)HF_MAX(s, (int64_t)0), text))
              : hf_xstrdup("");
}

static void print_table(const struct hf_cli *cli, const struct hf_key_info *keys, size_t n)
{
    static const char *const heads[] = {"ID", "NAME", "TENANT", "KEY", "STATE", "CREATED", "LAST USED", NULL};
    struct hf_table t;
    hf_table_init(&t, heads);
    hf_table_flag(&t, 1, HF_TABLE_FLEX);
    for (size_t i = 0; i < n; i++) {
        const struct hf_key_info *k = &keys[i];
        hf_auto_free char *prefix = hf_xasprintf("%s…", k->prefix), *created = ago(k->created_ms),
                          *used = ago(k->last_used_ms);
        hf_table_cell_color(&t, k->id, hf_color(cli, "bold"));
        hf_table_cell(&t, k->name);
        hf_table_cell(&t, k->tenant);
        hf_table_cell(&t, prefix);
        hf_table_cell_color(&t, k->revoked_ms ? "revoked" : "active",
                            hf_color(cli, k->revoked_ms ? "red" : "green"));
        hf_table_cell(&t, created);
        hf_table_cell(&t, k->last_used_ms ? used : "never");
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_ls(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_free char *data = NULL;
    hf_auto_free struct hf_key_info *keys = NULL;
    size_t n = 0;
    int r = data_dir(args, &data, &err);
    if (r == 0)
        r = hf_key_list(data, &keys, &n, &err);
    if (r < 0)
        return fail(cli, &err);
    if (cli->json)
        print_json(keys, n);
    else if (n == 0)
        hf_cli_say(cli, "no keys in %s; `holdfast key create` makes one", data);
    else if (!cli->quiet)
        print_table(cli, keys, n);
    for (size_t i = 0; cli->quiet && !cli->json && i < n; i++)
        (void)puts(keys[i].id);
    return HF_EXIT_OK;
}

static const struct hf_verb ls_verb = {
    .name = "ls",
    .alias = "list",
    .summary = "list the API keys, never their text",
    .opts = data_opts,
    .examples = "holdfast key ls",
    .run = run_ls,
};

static int run_revoke(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_free char *data = NULL;
    int code = HF_EXIT_OK;
    if (data_dir(args, &data, &err) < 0)
        return fail(cli, &err);
    for (size_t i = 0; i < args->n; i++) {
        if (hf_key_revoke(data, args->v[i], &err) < 0)
            code = fail(cli, &err);
        else
            hf_cli_say(cli, "revoked %s", args->v[i]);
    }
    return code;
}

static const struct hf_verb revoke_verb = {
    .name = "revoke",
    .alias = "rm",
    .summary = "make API keys useless, from the next request on",
    .args = "ID...",
    .min_args = 1,
    .max_args = 100,
    .complete = HF_COMPLETE_KEY,
    .opts = data_opts,
    .details = "ID is a key's id, or the start of one that names exactly one key.",
    .examples = "holdfast key revoke key_4f0c2k9d",
    .run = run_revoke,
};

static const struct hf_verb *const subs[] = {&create_verb, &ls_verb, &revoke_verb, NULL};

const struct hf_verb hf_verb_key = {
    .name = "key",
    .summary = "API keys of this machine's daemon",
    .examples = "export HOLDFAST_API_KEY=$(holdfast key create --quiet)",
    .sub = subs,
};
