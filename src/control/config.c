/* Loader of the settings. One table names every setting; the file, the environment and the flags all go
 * through hf_config_set, so a value means the same wherever it is written. */
#include "control/config.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>

#include "base/addr.h"
#include "base/id.h"
#include "base/path.h"
#include "base/text.h"
#include "control/toml.h"

#define DATA_DEFAULT "/var/lib/holdfast"

enum kind { TEXT, PATH, LISTEN, TLS_LISTEN, BOOL, U32, SIZE, SECONDS, LEVEL, CHOICE, CIDR, SERVERS, ZONES };

/* Words of settings of kind CHOICE, in the order of their enum; setting.max tells which. */
static const char *const choices[][4] = {{"auto", "off", "required", NULL}, {"auto", "on", "off", NULL}};

static const struct setting {
    const char *name;
    enum kind kind;
    size_t offset;
    uint64_t min, max; /* of numbers */
} settings[] = {
#define AT(member) offsetof(struct hf_config, member)
    {"data", PATH, AT(data_dir), 0, 0},
    {"run_dir", PATH, AT(run_dir), 0, 0},
    {"listen", LISTEN, 0, 0, 0},
    {"tls_listen", TLS_LISTEN, 0, 0, 0},
    {"tls_cert", PATH, AT(tls_cert), 0, 0},
    {"tls_key", PATH, AT(tls_key), 0, 0},
    {"insecure_listen", BOOL, AT(insecure_listen), 0, 0},
    {"domain", TEXT, AT(domain), 0, 0},
    {"warm_pool", U32, AT(warm_pool), 0, HF_CONFIG_WARM_MAX},
    {"warm_template", TEXT, AT(warm_template), 0, 0},
    {"pool_bytes", SIZE, AT(pool_bytes), 512ull << 20, HF_CONFIG_DISK_MAX},
    {"cgroup_root", PATH, AT(cgroup_root), 0, 0},
    {"shim_path", PATH, AT(shim_path), 0, 0},
    {"envd_path", PATH, AT(envd_path), 0, 0},
    {"max_timeout", SECONDS, AT(max_timeout_s), 1, HF_CONFIG_TIMEOUT_MAX},
    {"pause_warm", SECONDS, AT(pause_warm_s), 0, HF_CONFIG_TIMEOUT_MAX},
    {"memory_low", SIZE, AT(memory_low), 0, HF_CONFIG_MEMORY_MAX},
    {"criu", PATH, AT(criu_path), 0, 0},
    {"default_memory", SIZE, AT(default_memory), HF_CONFIG_MEMORY_MIN, HF_CONFIG_MEMORY_MAX},
    {"default_disk", SIZE, AT(default_disk), HF_CONFIG_DISK_MIN, HF_CONFIG_DISK_MAX},
    {"default_volume", SIZE, AT(default_volume), HF_CONFIG_DISK_MIN, HF_CONFIG_DISK_MAX},
    {"template_max", SIZE, AT(template_max), HF_CONFIG_DISK_MIN, HF_CONFIG_DISK_MAX},
    {"default_cpu_millis", U32, AT(default_cpu_millis), 10, HF_CONFIG_CPU_MILLIS_MAX},
    {"default_pids", U32, AT(default_pids), HF_CONFIG_PIDS_MIN, HF_CONFIG_PIDS_MAX},
    {"max_connections_per_sandbox", U32, AT(max_connections_per_sandbox), 1, 1000000},
    {"max_connections_per_tenant", U32, AT(max_connections_per_tenant), 1, 1000000},
    {"max_sandboxes", U32, AT(max_sandboxes), 1, 1000000},
    {"network", CHOICE, AT(network), 0, 0},
    {"network_ipv6", CHOICE, AT(network_ipv6), 0, 1},
    {"network_subnet4", CIDR, AT(network_subnet4), 0, 4},
    {"network_subnet6", CIDR, AT(network_subnet6), 0, 6},
    {"network_uplink4", CIDR, AT(network_uplink4), 0, 4},
    {"network_uplink6", CIDR, AT(network_uplink6), 0, 6},
    {"dns_upstreams", SERVERS, AT(dns_upstreams), 0, 0},
    {"dns_zones", ZONES, AT(dns_zones), 0, 0},
    {"netd_path", PATH, AT(netd_path), 0, 0},
    {"egress_ca_file", PATH, AT(egress_ca_file), 0, 0},
    {"outbound_keep", SECONDS, AT(outbound_keep), 60, HF_CONFIG_TIMEOUT_MAX},
    {"log_level", LEVEL, AT(log_level), 0, 0},
#undef AT
};

static void *member(struct hf_config *c, const struct setting *s)
{
    return (char *)c + s->offset;
}

void hf_config_defaults(struct hf_config *c)
{
    *c = (struct hf_config){
        .listen_port = 3000,
        .warm_pool = 4,
        .pool_bytes = 64ull << 30,
        .max_timeout_s = HF_CONFIG_TIMEOUT_MAX,
        .pause_warm_s = 60,
        .default_memory = 512ull << 20,
        .default_disk = 1ull << 30,
        .default_volume = 1ull << 30,
        .template_max = 16ull << 30,
        .default_cpu_millis = 2000,
        .default_pids = 1024,
        .max_connections_per_sandbox = 1024,
        .max_connections_per_tenant = 4096,
        .max_sandboxes = 1000,
        .outbound_keep = 7u * 24u * 3600u,
        .log_level = HF_LOG_INFO,
    };
    c->data_dir = hf_xstrdup(DATA_DEFAULT);
    c->run_dir = hf_xstrdup("");
    c->listen_host = hf_xstrdup("127.0.0.1");
    c->tls_host = hf_xstrdup("");
    c->tls_cert = hf_xstrdup("");
    c->tls_key = hf_xstrdup("");
    c->domain = hf_xstrdup("localhost");
    c->warm_template = hf_xstrdup("base");
    c->cgroup_root = hf_xstrdup("/sys/fs/cgroup");
    c->criu_path = hf_xstrdup("");
    c->shim_path = hf_xstrdup("");
    c->envd_path = hf_xstrdup("");
    char **empty[] = {&c->network_subnet4, &c->network_subnet6, &c->network_uplink4, &c->network_uplink6,
                      &c->dns_upstreams,   &c->dns_zones,       &c->netd_path,       &c->egress_ca_file};
    for (size_t i = 0; i < HF_ARRAY_LEN(empty); i++)
        *empty[i] = hf_xstrdup("");
}

void hf_config_done(struct hf_config *c)
{
    free(c->data_dir);
    free(c->run_dir);
    free(c->listen_host);
    free(c->tls_host);
    free(c->tls_cert);
    free(c->tls_key);
    free(c->domain);
    free(c->warm_template);
    free(c->cgroup_root);
    free(c->criu_path);
    free(c->shim_path);
    free(c->envd_path);
    free(c->network_subnet4);
    free(c->network_subnet6);
    free(c->network_uplink4);
    free(c->network_uplink6);
    free(c->dns_upstreams);
    free(c->dns_zones);
    free(c->netd_path);
    free(c->egress_ca_file);
    *c = (struct hf_config){0};
}

static const struct setting *find_setting(const char *name)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(settings); i++)
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    return NULL;
}

static int unknown_setting(const char *name, struct hf_err *err)
{
    const char *names[HF_ARRAY_LEN(settings) + 1] = {NULL};
    for (size_t i = 0; i < HF_ARRAY_LEN(settings); i++)
        names[i] = settings[i].name;
    const char *near = hf_nearest(name, names);
    if (near)
        return hf_err_set(err, -ENOENT, "unknown setting '%s'; did you mean '%s'?", name, near);
    return hf_err_set(err, -ENOENT, "unknown setting '%s'; docs/cli.md lists all of them", name);
}

static void set_string(char **at, char *owned)
{
    free(*at);
    *at = owned;
}

/* "HOST:PORT", "[v6]:PORT"; HOST is a literal, because a name may change its meaning under a running daemon.
 */
static int set_listen(char **host_at, uint16_t *port_at, const char *name, const char *value,
                      struct hf_err *err)
{
    const char *colon = strrchr(value, ':');
    uint64_t port = 0;
    unsigned char addr[sizeof(struct in6_addr)];
    if (!colon || hf_parse_u64(hf_str_c(colon + 1), UINT16_MAX, &port) < 0)
        return hf_err_set(err, -EINVAL, "%s: '%s' is not HOST:PORT, as in 127.0.0.1:3000 or [::1]:3000", name,
                          value);
    struct hf_str host = {value, (size_t)(colon - value)};
    if (host.n >= 2 && host.p[0] == '[' && host.p[host.n - 1] == ']')
        host = (struct hf_str){host.p + 1, host.n - 2};
    hf_auto_free char *text = hf_str_dup(hf_str_eq(host, "localhost") ? HF_STR("127.0.0.1") : host);
    if (inet_pton(AF_INET, text, addr) != 1 && inet_pton(AF_INET6, text, addr) != 1)
        return hf_err_set(err, -EINVAL, "%s: '%s' is not an IP address; write one, as in 127.0.0.1:3000",
                          name, text);
    set_string(host_at, hf_take_ptr(text));
    *port_at = (uint16_t)port;
    return 0;
}

static int set_bool(bool *at, const char *name, const char *value, struct hf_err *err)
{
    static const char *const yes[] = {"true", "1", "yes", "on"}, *const no[] = {"false", "0", "no", "off"};
    for (size_t i = 0; i < HF_ARRAY_LEN(yes); i++) {
        if (strcmp(value, yes[i]) == 0 || strcmp(value, no[i]) == 0) {
            *at = strcmp(value, yes[i]) == 0;
            return 0;
        }
    }
    return hf_err_set(err, -EINVAL, "%s: '%s' is neither true nor false", name, value);
}

static int set_number(struct hf_config *c, const struct setting *s, const char *value, struct hf_err *err)
{
    uint64_t v = 0;
    const char *form;
    int r;
    char min[HF_HUMAN_MAX], max[HF_HUMAN_MAX];
    if (s->kind == SIZE) {
        r = hf_parse_size(value, &v);
        form = "a size such as 512M or 2G";
        (void)hf_human_size(s->min, min);
        (void)hf_human_size(s->max, max);
    } else {
        r = s->kind == SECONDS ? hf_parse_seconds(value, &v) : hf_parse_u64(hf_str_c(value), UINT64_MAX, &v);
        form = s->kind == SECONDS ? "a time such as 90s, 5m or 24h" : "a whole number";
        (void)snprintf(min, sizeof(min), "%llu", (unsigned long long)s->min);
        (void)snprintf(max, sizeof(max), "%llu", (unsigned long long)s->max);
    }
    if (r == -EINVAL)
        return hf_err_set(err, r, "%s: '%s' is not %s", s->name, value, form);
    if (r < 0 || v < s->min || v > s->max)
        return hf_err_set(err, -EINVAL, "%s: %s is out of range; allowed: %s to %s", s->name, value, min,
                          max);
    if (s->kind == U32)
        *(uint32_t *)member(c, s) = (uint32_t)v;
    else
        *(uint64_t *)member(c, s) = v;
    return 0;
}

static int set_text(struct hf_config *c, const struct setting *s, const char *value, struct hf_err *err)
{
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return hf_err_set(err, -EINVAL, "%s: the value holds a control character", s->name);
    if (s->kind == PATH && strlen(value) >= PATH_MAX)
        return hf_err_set(err, -EINVAL, "%s: the path is longer than %d bytes", s->name, PATH_MAX - 1);
    set_string(member(c, s), hf_xstrdup(value));
    return 0;
}

static int set_choice(struct hf_config *c, const struct setting *s, const char *value, struct hf_err *err)
{
    const char *const *words = choices[s->max];
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], value) == 0) {
            *(int *)member(c, s) = i;
            return 0;
        }
    }
    return hf_err_set(err, -EINVAL, "%s: '%s' is not %s, %s or %s", s->name, value, words[0], words[1],
                      words[2]);
}

/* Text with a form of its own; "" takes it back to the default. */
static int set_formed(struct hf_config *c, const struct setting *s, const char *value, struct hf_err *err)
{
    struct hf_cidr cidr;
    struct hf_config_zone zone;
    int r = 0;
    if (*value && s->kind == CIDR) {
        if (hf_cidr_parse(hf_str_c(value), &cidr) < 0 || cidr.addr.family != s->max)
            return hf_err_set(err, -EINVAL, "%s: '%s' is not an IPv%d prefix, as in %s", s->name, value,
                              (int)s->max, s->max == 4 ? "10.117.0.0/16" : "fd00:1:2:3::/64");
    } else if (*value && s->kind == SERVERS) {
        r = hf_config_parse_servers(value, &zone, err);
    } else if (*value) {
        r = hf_config_each_zone(value, NULL, NULL, err);
    }
    return r < 0 ? hf_err_wrap(err, "%s", s->name) : set_text(c, s, value, err);
}

int hf_config_set(struct hf_config *c, const char *name, const char *value, struct hf_err *err)
{
    const struct setting *s = find_setting(name);
    if (!s)
        return unknown_setting(name, err);
    switch (s->kind) {
    case LISTEN:
        return set_listen(&c->listen_host, &c->listen_port, name, value, err);
    case TLS_LISTEN:
        if (*value)
            return set_listen(&c->tls_host, &c->tls_port, name, value, err);
        set_string(&c->tls_host, hf_xstrdup("")); /* --set tls_listen= takes it back */
        return 0;
    case BOOL:
        return set_bool(member(c, s), name, value, err);
    case U32:
    case SIZE:
    case SECONDS:
        return set_number(c, s, value, err);
    case LEVEL:
        if (hf_log_level_parse(value, member(c, s)) < 0)
            return hf_err_set(err, -EINVAL, "log_level: '%s' is not debug, info, warn or error", value);
        return 0;
    case CHOICE:
        return set_choice(c, s, value, err);
    case CIDR:
    case SERVERS:
    case ZONES:
        return set_formed(c, s, value, err);
    case TEXT:
    case PATH:
        break;
    }
    return set_text(c, s, value, err);
}

static int from_toml(void *arg, const char *key, const struct hf_toml_value *v, struct hf_err *err)
{
    int r = hf_config_set(arg, key, v->text, err);
    return r < 0 ? (hf_err_wrap(err, "line %u", v->line), r) : 0;
}

static int load_file(struct hf_config *c, const char *path, struct hf_err *err)
{
    hf_auto_free char *text = NULL;
    size_t n = 0;
    int r = hf_read_file(path, HF_TOML_SIZE_MAX, &text, &n);
    if (r == -ENOENT)
        return r;
    if (r < 0)
        return hf_err_set(err, r, "cannot read %s: %s", path, strerror(-r));
    r = hf_toml_parse((struct hf_str){text, n}, from_toml, c, err);
    if (r < 0)
        hf_err_wrap(err, "%s", path);
    return r == -ENOENT ? -EINVAL : r;
}

static int load_default_file(struct hf_config *c, struct hf_err *err)
{
    hf_auto_free char *path = hf_xasprintf("%s/holdfast.toml", c->data_dir);
    int r = load_file(c, path, err);
    if (r == -ENOENT)
        r = load_file(c, "/etc/holdfast/holdfast.toml", err);
    return r == -ENOENT ? 0 : r;
}

#define ENV_NAME_MAX 64u

/* "warm_pool" is HOLDFAST_WARM_POOL in the environment. */
static void env_name(const struct setting *s, char out[ENV_NAME_MAX])
{
    (void)snprintf(out, ENV_NAME_MAX, "HOLDFAST_%s", s->name);
    for (char *p = out; *p; p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
}

static int load_environment(struct hf_config *c, struct hf_err *err)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(settings); i++) {
        char name[ENV_NAME_MAX];
        env_name(&settings[i], name);
        const char *value = getenv(name);
        /* Set but empty counts as unset, as shells and unit files make it hard to tell the two apart. */
        int r = value && *value ? hf_config_set(c, settings[i].name, value, err) : 0;
        if (r < 0) {
            hf_err_wrap(err, "environment variable %s", name);
            return r;
        }
    }
    return 0;
}

int hf_config_load(struct hf_config *c, const char *toml_path, struct hf_err *err)
{
    /* The data directory decides where the default file is: a flag's (the caller set it before), else the
     * environment's. */
    const char *data = getenv("HOLDFAST_DATA");
    bool by_flag = strcmp(c->data_dir, DATA_DEFAULT) != 0;
    int r = data && *data && !by_flag ? hf_config_set(c, "data", data, err) : 0;
    if (r < 0)
        return r;
    if (toml_path) {
        r = load_file(c, toml_path, err);
        if (r == -ENOENT)
            return hf_err_set(err, r, "the configuration file %s does not exist", toml_path);
    } else {
        r = load_default_file(c, err);
    }
    return r < 0 ? r : load_environment(c, err);
}

static int make_absolute(char **path, const char *name, struct hf_err *err)
{
    char cwd[PATH_MAX];
    if (!**path || **path == '/')
        return 0;
    if (!getcwd(cwd, sizeof(cwd)))
        return hf_err_set(err, -errno, "%s is relative and the working directory is gone", name);
    set_string(path, hf_xasprintf("%s/%s", cwd, *path));
    return 0;
}

/* "//", "/./" and a trailing "/" go away: the run directory is named after this text, so every way to write
 * one directory must come out the same. */
static void squeeze(char *path)
{
    char *out = path;
    for (const char *p = path; *p;) {
        if (p[0] == '/' && (p[1] == '/' || p[1] == '\0') && (p[1] || out > path)) {
            p++;
        } else if (p[0] == '/' && p[1] == '.' && (p[2] == '/' || p[2] == '\0')) {
            p += 2;
        } else {
            *out++ = *p++;
        }
    }
    if (out == path)
        *out++ = '/';
    *out = '\0';
}

static bool domain_ok(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n <= 200 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:") == n && s[0] != '.';
}

int hf_config_check(struct hf_config *c, struct hf_err *err)
{
    char **paths[] = {&c->data_dir,  &c->run_dir,  &c->cgroup_root, &c->shim_path, &c->envd_path,
                      &c->criu_path, &c->tls_cert, &c->tls_key,     &c->netd_path, &c->egress_ca_file};
    static const char *const names[] = {"data", "run_dir",  "cgroup_root", "shim_path", "envd_path",
                                        "criu", "tls_cert", "tls_key",     "netd_path", "egress_ca_file"};
    for (size_t i = 0; i < HF_ARRAY_LEN(paths); i++) {
        int r = make_absolute(paths[i], names[i], err);
        if (r < 0)
            return r;
        if (**paths[i])
            squeeze(*paths[i]);
    }
    if (!*c->data_dir || !*c->cgroup_root)
        return hf_err_set(err, -EINVAL, "%s must not be empty", *c->data_dir ? "cgroup_root" : "data");
    if (!domain_ok(c->domain))
        return hf_err_set(err, -EINVAL, "domain: '%s' is not a host name", c->domain);
    return 0;
}

char *hf_config_run_dir(const struct hf_config *c)
{
    unsigned char digest[HF_SHA256_LEN];
    char hex[9];
    if (*c->run_dir)
        return hf_xstrdup(c->run_dir);
    hf_sha256_of(c->data_dir, strlen(c->data_dir), digest);
    hf_hex(digest, 4, hex);
    return hf_xasprintf("/run/holdfast/%s", hex);
}
