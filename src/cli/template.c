/* holdfast template ls | import | info | rm */
#include "cli/args.h"
#include "base/text.h"
#include "cli/client.h"
#include "cli/import.h"
#include "cli/show.h"
#include "cli/term.h"
#include "cli/url.h"

/* ---- ls, info ---- */

/* What people call it: the first name, else the id. */
static const char *name_of(const json_t *t)
{
    const char *alias = json_string_value(json_array_get(json_object_get(t, "aliases"), 0));
    const char *name = json_string_value(json_array_get(json_object_get(t, "names"), 0));
    return alias ? alias : name ? name : hf_show_str(t, "templateID");
}

static int fetch(struct hf_cli *cli, struct hf_answer *ret, struct hf_err *err)
{
    int r = hf_api(cli, "GET", "/templates", NULL, ret, err);
    return r == 0 && !json_is_array(ret->body) ? hf_err_set(err, -EBADMSG, "%s answered no list", cli->url)
                                               : r;
}

static void print_list(const struct hf_cli *cli, const json_t *templates)
{
    static const char *const heads[] = {"ID", "NAME", "STATE", "DISK", "USED", "CREATED", NULL};
    struct hf_table t;
    size_t i;
    json_t *s;
    char text[HF_HUMAN_MAX];
    hf_table_init(&t, heads);
    hf_table_flag(&t, 1, HF_TABLE_FLEX);
    hf_table_flag(&t, 3, HF_TABLE_RIGHT);
    hf_table_flag(&t, 4, HF_TABLE_RIGHT);
    json_array_foreach(templates, i, s)
    {
        const char *state = hf_show_str(s, "buildStatus");
        hf_table_cell_color(&t, hf_show_str(s, "templateID"), hf_color(cli, "bold"));
        hf_table_cell(&t, name_of(s));
        hf_table_cell_color(&t, state, hf_show_state_color(cli, state));
        json_int_t mb = json_integer_value(json_object_get(s, "diskSizeMB"));
        hf_table_cell(&t, hf_human_size((uint64_t)HF_MAX(mb, 0) << 20, text));
        (void)snprintf(text, sizeof(text), "%lld×",
                       (long long)json_integer_value(json_object_get(s, "spawnCount")));
        hf_table_cell(&t, text);
        hf_auto_free char *ago = hf_xasprintf("%s ago", hf_show_since(s, "createdAt", text));
        hf_table_cell(&t, *text ? ago : "");
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_ls(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    size_t i;
    json_t *t;
    (void)args;
    if (fetch(cli, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json) {
        hf_show_json(a.body);
    } else if (cli->quiet) {
        json_array_foreach(a.body, i, t)(void) puts(name_of(t));
    } else if (json_array_size(a.body) == 0) {
        hf_cli_say(cli, "no templates; `holdfast template import NAME ROOTFS.TAR` makes one");
    } else {
        print_list(cli, a.body);
    }
    return HF_EXIT_OK;
}

static const struct hf_verb ls_verb = {
    .name = "ls",
    .alias = "list",
    .summary = "list the templates",
    .details = "--quiet prints the names only.",
    .examples = "holdfast template ls",
    .run = run_ls,
};

static void print_info(const struct hf_cli *cli, const json_t *t)
{
    char text[HF_HUMAN_MAX];
    hf_show_field(cli, "ID", "%s", hf_show_str(t, "templateID"));
    hf_show_field(cli, "Name", "%s", name_of(t));
    hf_show_field(cli, "State", "%s", hf_show_str(t, "buildStatus"));
    json_int_t mb = json_integer_value(json_object_get(t, "diskSizeMB"));
    if (mb > 0)
        hf_show_field(cli, "Disk", "%s", hf_human_size((uint64_t)mb << 20, text));
    hf_show_field(cli, "Created", "%s", hf_show_str(t, "createdAt"));
    hf_show_field(cli, "Updated", "%s", hf_show_str(t, "updatedAt"));
    hf_show_field(cli, "Last used", "%s", hf_show_str(t, "lastSpawnedAt"));
    hf_show_field(cli, "Used", "%lld times", (long long)json_integer_value(json_object_get(t, "spawnCount")));
}

static int run_info(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    if (hf_url_path(&path, "/templates/%s", args->v[0]) < 0)
        return hf_cli_usage(cli, args->verb, "the template's name is too long");
    int r = hf_api(cli, "GET", path.p, NULL, &a, &err);
    if (r == -ENOENT && !*cli->hint)
        hf_cli_hint(cli, "`holdfast template ls` lists the templates");
    if (r < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        print_info(cli, a.body);
    return HF_EXIT_OK;
}

static const struct hf_verb info_verb = {
    .name = "info",
    .summary = "show one template",
    .args = "NAME|ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_TEMPLATE,
    .examples = "holdfast template info base",
    .run = run_info,
};

/* ---- import ---- */

static const struct hf_opt import_opts[] = {
    {"private", 0, NULL, "for this tenant only (those of the tenant default are for everybody)", NULL},
    {0},
};

static int run_import(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    const char *name = args->v[0], *path = args->n > 1 ? args->v[1] : "-";
    if (strcmp(path, "-") == 0 && isatty(STDIN_FILENO))
        return hf_cli_usage(cli, args->verb, "name a tar file or a folder, or pipe a tar into stdin");
    if (hf_import(cli, name, path, hf_arg(args, "private") != NULL, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        (void)puts(hf_show_str(a.body, "template_id"));
    if (isatty(STDERR_FILENO))
        hf_cli_say(cli, "a sandbox of it: holdfast sandbox create %s", name);
    return HF_EXIT_OK;
}

static const struct hf_verb import_verb = {
    .name = "import",
    .summary = "make a template of a root file system, and print its id",
    .args = "NAME [PATH|-]",
    .min_args = 1,
    .max_args = 2,
    .complete = HF_COMPLETE_FILE,
    .opts = import_opts,
    .details =
        "PATH is a tar of a root file system, in any usual compression, or a folder that holds one (owners,\n"
        "modes, links and extended attributes are kept; run it as root to read everything). - or nothing\n"
        "reads a tar from stdin. An existing template of that name is replaced for new sandboxes.",
    .examples = "holdfast template import base rootfs.tar.zst\n"
                "holdfast template import mine ./rootfs\n"
                "docker export $container | holdfast template import app",
    .run = run_import,
};

/* ---- rm ---- */

static int run_rm(struct hf_cli *cli, const struct hf_args *args)
{
    int code = HF_EXIT_OK;
    for (size_t i = 0; i < args->n; i++) {
        struct hf_err err = {0};
        hf_auto_answer struct hf_answer a = {0};
        hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
        cli->hint[0] = '\0';
        if (hf_url_path(&path, "/templates/%s", args->v[i]) < 0)
            return hf_cli_usage(cli, args->verb, "the template's name is too long");
        if (hf_api(cli, "DELETE", path.p, NULL, &a, &err) < 0)
            code = hf_cli_fail(cli, &err);
    }
    return code;
}

static const struct hf_verb rm_verb = {
    .name = "rm",
    .alias = "delete",
    .summary = "delete templates; refused while sandboxes use them",
    .args = "NAME|ID...",
    .min_args = 1,
    .max_args = 100,
    .complete = HF_COMPLETE_TEMPLATE,
    .examples = "holdfast template rm old",
    .run = run_rm,
};

static const struct hf_verb *const subs[] = {&ls_verb, &import_verb, &info_verb, &rm_verb, NULL};

const struct hf_verb hf_verb_template = {
    .name = "template",
    .alias = "tpl",
    .summary = "the images that sandboxes start from",
    .examples = "holdfast template import base rootfs.tar.zst && holdfast template ls",
    .sub = subs,
};
