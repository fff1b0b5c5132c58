/* holdfast doctor: can this machine run sandboxes? */
#include "cli/doctor.h"

#include <jansson.h>
#include <sys/stat.h>

#include "cli/args.h"
#include "cli/show.h"

static const struct hf_opt opts[] = {
    {"data", 0, "DIR", "the data directory that will be used (HOLDFAST_DATA; default /var/lib/holdfast)",
     NULL},
    {"listen", 0, "HOST:PORT", "the address that will be used", NULL},
    {"config", 'c', "FILE", "settings, as of serve", NULL},
    {0},
};

static const char *const status_names[] = {[HF_CHECK_OK] = "ok",
                                           [HF_CHECK_INFO] = "info",
                                           [HF_CHECK_WARN] = "warn",
                                           [HF_CHECK_FAIL] = "fail",
                                           [HF_CHECK_SKIP] = "skip"};
static const char *const status_colors[] = {[HF_CHECK_OK] = "green",
                                            [HF_CHECK_INFO] = "dim",
                                            [HF_CHECK_WARN] = "yellow",
                                            [HF_CHECK_FAIL] = "red",
                                            [HF_CHECK_SKIP] = "dim"};

struct tally {
    unsigned count[HF_ARRAY_LEN(status_names)];
    json_t *list;
};

/* The first directory on the way up that exists: what is true there will be true for its child. */
static char *existing_parent(const char *path)
{
    struct stat st;
    char *p = hf_xstrdup(path);
    while (stat(p, &st) < 0 || !S_ISDIR(st.st_mode)) {
        char *slash = strrchr(p, '/');
        if (!slash || slash == p) {
            free(p);
            return hf_xstrdup("/");
        }
        *slash = '\0';
    }
    return p;
}

static void show(const struct hf_cli *cli, const struct hf_check *check, const struct hf_check_result *r)
{
    if (cli->quiet && r->status != HF_CHECK_FAIL && r->status != HF_CHECK_WARN)
        return;
    (void)printf("%s%-4s%s  %-28s %s\n", hf_color(cli, status_colors[r->status]), status_names[r->status],
                 hf_color(cli, "reset"), check->title, r->detail);
    if (*r->cost)
        (void)printf("      cost: %s\n", r->cost);
    if (*r->fix)
        (void)printf("      fix:  %s%s%s\n", hf_color(cli, "bold"), r->fix, hf_color(cli, "reset"));
    (void)fflush(stdout);
}

static void run_checks(const struct hf_cli *cli, const struct hf_doctor *d, const struct hf_check *checks,
                       struct tally *t)
{
    for (; checks->id; checks++) {
        struct hf_check_result r = {.status = HF_CHECK_OK};
        checks->fn(d, &r);
        if (r.status == HF_CHECK_OK)
            r.cost[0] = r.fix[0] = '\0';
        t->count[r.status]++;
        if (!cli->json) {
            show(cli, checks, &r);
            continue;
        }
        json_t *j =
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "id", checks->id, "title", checks->title, "status",
                      status_names[r.status], "detail", r.detail, "cost", r.cost, "fix", r.fix);
        (void)json_array_append_new(t->list, j);
    }
}

static int conclude(const struct hf_cli *cli, struct tally *t)
{
    bool can = t->count[HF_CHECK_FAIL] == 0;
    if (cli->json) {
        json_t *j =
            json_pack("{s:b, s:i, s:i, s:o}", "ok", (int)can, "warnings", (int)t->count[HF_CHECK_WARN],
                      "failures", (int)t->count[HF_CHECK_FAIL], "checks", t->list);
        hf_show_json(j);
        json_decref(j);
        return can ? HF_EXIT_OK : HF_EXIT_ERROR;
    }
    json_decref(t->list);
    (void)printf("\n%s%s%s", hf_color(cli, can ? "green" : "red"),
                 can ? "This machine can run sandboxes" : "This machine can't run sandboxes yet",
                 hf_color(cli, "reset"));
    if (t->count[HF_CHECK_FAIL])
        (void)printf(": %u to fix", t->count[HF_CHECK_FAIL]);
    if (t->count[HF_CHECK_WARN])
        (void)printf("%s%u warning%s", can ? "; " : ", ", t->count[HF_CHECK_WARN],
                     t->count[HF_CHECK_WARN] == 1 ? "" : "s");
    if (t->count[HF_CHECK_SKIP])
        (void)printf(", %u not tried (run it as root)", t->count[HF_CHECK_SKIP]);
    (void)printf(".\n");
    return can ? HF_EXIT_OK : HF_EXIT_ERROR;
}

static int load(struct hf_config *cfg, const struct hf_args *a, struct hf_err *err)
{
    const char *data = hf_arg(a, "data"), *listen = hf_arg(a, "listen");
    hf_config_defaults(cfg);
    int r = data ? hf_config_set(cfg, "data", data, err) : 0;
    if (r == 0)
        r = hf_config_load(cfg, hf_arg(a, "config"), err);
    if (r == 0 && data)
        r = hf_config_set(cfg, "data", data, err);
    if (r == 0 && listen)
        r = hf_config_set(cfg, "listen", listen, err);
    return r < 0 ? r : hf_config_check(cfg, err);
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    static const struct hf_check *const groups[] = {hf_doctor_userns, hf_doctor_rights, hf_doctor_kernel,
                                                    hf_doctor_disk,   hf_doctor_net,    hf_doctor_memory,
                                                    hf_doctor_host};
    struct hf_err err = {0};
    struct hf_config cfg;
    struct tally t = {0};
    if (load(&cfg, args, &err) < 0) {
        hf_config_done(&cfg);
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    }
    struct hf_doctor d = {.cfg = &cfg, .root = geteuid() == 0};
    d.data_dir = existing_parent(cfg.data_dir);
    d.run_dir = hf_config_run_dir(&cfg);
    t.list = json_array();
    for (size_t i = 0; i < HF_ARRAY_LEN(groups); i++)
        run_checks(cli, &d, groups[i], &t);
    int code = conclude(cli, &t);
    free(d.data_dir);
    free(d.run_dir);
    hf_config_done(&cfg);
    return code;
}

const struct hf_verb hf_verb_doctor = {
    .name = "doctor",
    .summary = "tell whether this machine can run sandboxes, and what would fix it",
    .opts = opts,
    .details =
        "Every check really tries the thing, in a process of its own, and leaves nothing behind. warn: "
        "works\n"
        "with less, the cost is named; fail: no sandbox can run. Ends with 0 when sandboxes can run, else 1.",
    .examples = "sudo holdfast doctor\n"
                "holdfast doctor --data /srv/holdfast --json | jq '.checks[] | select(.status != \"ok\")'",
    .run = run,
};
