/* holdfast serve: the daemon, in the foreground. */
#include <sys/resource.h>

#include "base/log.h"
#include "cli/args.h"
#include "control/daemon.h"
#include "session/session.h"

/* Every option but --config and --set is the setting of the same name, '-' for '_'. */
static const struct hf_opt opts[] = {
    {"data", 0, "DIR", "where everything that lasts is kept (default /var/lib/holdfast)", NULL},
    {"listen", 0, "HOST:PORT", "address of the API (default 127.0.0.1:3000; port 0 takes a free one)", NULL},
    {"insecure-listen", 0, NULL, "allow an address that other machines reach, without TLS", NULL},
    {"tls-listen", 0, "HOST:PORT", "speak HTTPS here as well; `holdfast cert init` makes a certificate",
     NULL},
    {"tls-cert", 0, "FILE", "certificate chain, PEM (default DATA/tls/cert.pem)", NULL},
    {"tls-key", 0, "FILE", "its private key, PEM (default DATA/tls/key.pem)", NULL},
    {"domain", 0, "NAME", "sandbox ports are reached as PORT-ID.NAME (default localhost)", NULL},
    {"warm-pool", 0, "N", "sandboxes kept ready (default 4; 0 = none)", NULL},
    {"warm-template", 0, "NAME", "template that they are made of (default base)", NULL},
    {"pool-size", 0, "SIZE", "limit of the disk pool where the host has no reflink (default 64G)", NULL},
    {"run-dir", 0, "DIR", "where sockets and mounts are (default /run/holdfast/HASH)", NULL},
    {"log-level", 0, "LEVEL", "how much is logged (default info)", "debug info warn error"},
    {"config", 'c', "FILE", "settings (default DATA/holdfast.toml, then /etc/holdfast/holdfast.toml)", NULL},
    {"set", 0, "NAME=VALUE", "any setting of the file by its name; may be repeated", NULL},
    {0},
};

/* The setting that an option stands for; NULL for those that stand for none. */
static const char *setting_of(const char *option)
{
    static const char *const map[][2] = {
        {"data", "data"},
        {"listen", "listen"},
        {"insecure-listen", "insecure_listen"},
        {"tls-listen", "tls_listen"},
        {"tls-cert", "tls_cert"},
        {"tls-key", "tls_key"},
        {"domain", "domain"},
        {"warm-pool", "warm_pool"},
        {"warm-template", "warm_template"},
        {"pool-size", "pool_bytes"},
        {"run-dir", "run_dir"},
        {"log-level", "log_level"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(map); i++)
        if (strcmp(map[i][0], option) == 0)
            return map[i][1];
    return NULL;
}

static int set_pair(struct hf_config *cfg, const char *pair, struct hf_err *err)
{
    const char *eq = strchr(pair, '=');
    if (!eq)
        return hf_err_set(err, -EINVAL, "--set takes NAME=VALUE, not '%s'", pair);
    hf_auto_free char *name = hf_xstrndup(pair, (size_t)(eq - pair));
    return hf_config_set(cfg, name, eq + 1, err);
}

static int apply_flags(struct hf_config *cfg, const struct hf_args *a, struct hf_err *err)
{
    for (size_t i = 0; i < a->n_given; i++) {
        const struct hf_opt *opt = a->given[i].opt;
        const char *name = setting_of(opt->name), *value = a->given[i].value;
        int r = 0;
        if (name)
            r = hf_config_set(cfg, name, opt->metavar ? value : "true", err);
        else if (strcmp(opt->name, "set") == 0)
            r = set_pair(cfg, value, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int load(struct hf_config *cfg, const struct hf_args *args, struct hf_err *err)
{
    const char *data = hf_arg(args, "data");
    hf_config_defaults(cfg);
    /* First of all, because the default file lies in the data directory. */
    int r = data ? hf_config_set(cfg, "data", data, err) : 0;
    if (r == 0)
        r = hf_config_load(cfg, hf_arg(args, "config"), err);
    if (r == 0)
        r = apply_flags(cfg, args, err);
    return r < 0 ? r : hf_config_check(cfg, err);
}

/* Two descriptors a proxied request: the usual soft limit of 1024 is for programs that use select(2). */
static void raise_descriptor_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return;
    l.rlim_cur = l.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0)
        hf_log_warn("cannot raise the limit of open files", "error=%s", hf_log_quote(strerror(errno)));
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    static const struct hf_module *const modules[] = {&hf_session_module, NULL};
    struct hf_err err = {0};
    struct hf_config cfg;
    int code = HF_EXIT_OK;
    if (load(&cfg, args, &err) < 0) {
        bool words = err.r == -EINVAL || err.r == -ENOENT;
        code = words ? hf_cli_usage(cli, args->verb, "%s", err.msg) : hf_cli_fail(cli, &err);
    } else {
        hf_log_set_level(cfg.log_level);
        raise_descriptor_limit();
        if (hf_daemon_run(&cfg, modules, &err) < 0) {
            bool advised = strstr(err.msg, "--insecure-listen") != NULL;
            if (!advised && (err.r == -EPERM || err.r == -EACCES))
                hf_cli_hint(cli, "`holdfast doctor` tells what this machine lacks");
            code = hf_cli_fail(cli, &err);
        }
    }
    hf_config_done(&cfg);
    return code;
}

const struct hf_verb hf_verb_serve = {
    .name = "serve",
    .summary = "run the daemon in the foreground",
    .opts = opts,
    .details =
        "Settings come from flags, then from the environment (HOLDFAST_ and the setting's name in upper "
        "case),\n"
        "then from holdfast.toml, then from defaults. Without TLS only a loopback address is taken, unless\n"
        "--insecure-listen says that the network is trusted. SIGTERM ends the daemon; sandboxes go on and "
        "are\n"
        "taken over by the next one. SIGPWR (the host goes down) pauses them to the disk first.",
    .examples = "holdfast serve\n"
                "holdfast serve --data /srv/holdfast --listen 127.0.0.1:3100 --warm-pool 16\n"
                "HOLDFAST_LOG_LEVEL=debug holdfast serve --set max_sandboxes=50",
    .run = run,
};
