/* Settings of the daemon. Sources, weakest first: defaults, holdfast.toml, environment HOLDFAST_*, flags.
 *
 * Every string is owned by the struct (malloc'ed) and never NULL after hf_config_defaults; "" means "not
 * set". config.c holds the loader; everything that runs only reads. */
#pragma once

#include "base/err.h"
#include "base/log.h"

/* Limits of what a request may ask for; config values outside them are refused at start. */
#define HF_CONFIG_CPU_MILLIS_MAX 1024000u                  /* 1,024 cores */
#define HF_CONFIG_MEMORY_MIN (64ull << 20)                 /* bytes */
#define HF_CONFIG_MEMORY_MAX (4ull << 40)                  /* bytes */
#define HF_CONFIG_DISK_MIN (64ull << 20)                   /* bytes */
#define HF_CONFIG_DISK_MAX (16ull << 40)                   /* bytes */
#define HF_CONFIG_PIDS_MIN 16u                             /* tasks */
#define HF_CONFIG_PIDS_MAX 4194304u                        /* tasks */
#define HF_CONFIG_TIMEOUT_MAX (10ull * 365u * 24u * 3600u) /* seconds; no built-in cap below ten years */
#define HF_CONFIG_WARM_MAX 1024u                           /* prepared boxes */

enum hf_network_mode { HF_NETWORK_AUTO, HF_NETWORK_OFF, HF_NETWORK_REQUIRED };
enum hf_network_ipv6 { HF_IPV6_AUTO, HF_IPV6_ON, HF_IPV6_OFF };

struct hf_config {
    char *data_dir; /* absolute; --data, HOLDFAST_DATA, "data"; default /var/lib/holdfast */
    char *run_dir; /* absolute; "" = /run/holdfast/<first 8 hex of SHA-256 of data_dir>, see hf_config_run_dir
                    */
    char *listen_host;    /* IPv4/IPv6 literal; default 127.0.0.1 */
    uint16_t listen_port; /* default 3000; 0 = a free one */
    bool insecure_listen; /* allow a non-loopback address without TLS */
    char *tls_host;       /* IPv4/IPv6 literal where HTTPS is spoken; "" = nowhere */
    uint16_t tls_port;    /* 0 = a free one */
    char *tls_cert;       /* PEM file; "" = DATA/tls/cert.pem, which `holdfast cert init` makes */
    char *tls_key;        /* PEM file; "" = DATA/tls/key.pem */
    char *domain;         /* data plane: <port>-<id>.<domain>; default "localhost" */

    uint32_t warm_pool;  /* boxes kept ready; default 4; 0 = none */
    char *warm_template; /* id or name of the template they are made of; default "base" */
    uint64_t
        pool_bytes; /* limit of the XFS pool image where the host has no reflink; default 64 GiB (sparse) */
    char *cgroup_root; /* default "/sys/fs/cgroup" */
    char *criu_path;   /* absolute; "" = HF_CRIU_PATH (engine/driver.h) */
    char *shim_path;   /* absolute; "" = beside the running binary */
    char *envd_path;   /* absolute; "" = beside the running binary */

    uint64_t max_timeout_s;  /* longest life a request may ask for; default HF_CONFIG_TIMEOUT_MAX */
    uint64_t pause_warm_s;   /* how long a pause keeps its memory before it is saved; default 60 */
    uint64_t memory_low;     /* bytes available on the host below which it is saved at once; 0 = a tenth */
    uint64_t default_memory; /* bytes; default 512 MiB */
    uint64_t default_disk;   /* bytes of the writable layer; default 1 GiB */
    uint64_t default_volume; /* bytes of a session's workspace; default 1 GiB */
    uint64_t template_max;   /* bytes that an imported template may unpack to; default 16 GiB */
    uint32_t default_cpu_millis;          /* 1000 = one core; default 2000 */
    uint32_t default_pids;                /* default 1024 */
    uint32_t max_connections_per_sandbox; /* open exchanges and tunnels through the proxy; default 1024 … */
    uint32_t max_connections_per_tenant;  /* … default 4096; beyond: 429 */
    uint32_t max_sandboxes;               /* running sandboxes per tenant; default 1000; beyond: 429 */

    /* Network of sandboxes (control/net.h). */
    int network;           /* enum hf_network_mode; default auto: where the host can, else loopback only */
    int network_ipv6;      /* enum hf_network_ipv6; default auto: where the host has it */
    char *network_subnet4; /* "" = defaults of engine/net/net.h; … */
    char *network_subnet6;
    char *network_uplink4;
    char *network_uplink6;
    char *dns_upstreams;    /* "192.0.2.53,[2001:db8::53]:5353"; "" = the host's resolv.conf */
    char *dns_zones;        /* "corp.test=10.0.0.53,10.0.0.54 private; other.test=192.0.2.53" */
    char *netd_path;        /* absolute; "" = beside the running binary */
    char *egress_ca_file;   /* PEM bundle to verify upstreams with; "" = the system's */
    uint64_t outbound_keep; /* seconds that outbound records are kept; default 7 days */

    enum hf_log_level log_level; /* default info */
};

/* Fills every member with its default. */
void hf_config_defaults(struct hf_config *c);
void hf_config_done(struct hf_config *c); /* frees the strings; the struct may be all zero */
/* Sets one setting by its name in holdfast.toml ("data", "listen", "insecure_listen", "domain", "warm_pool",
 * "warm_template", "pool_bytes", "run_dir", "cgroup_root", "shim_path", "envd_path", "criu",
 * "max_timeout", "pause_warm", "memory_low",
 * "default_cpu_millis", "default_memory", "default_disk", "default_volume", "default_pids", "template_max",
 * "max_sandboxes", "log_level", "tls_listen", "tls_cert", "tls_key", "max_connections_per_sandbox",
 * "max_connections_per_tenant", "network", "network_ipv6", "network_subnet4", "network_subnet6",
 * "network_uplink4", "network_uplink6", "dns_upstreams", "dns_zones", "netd_path", "egress_ca_file",
 * "outbound_keep"). Sizes accept a suffix (K M G T, binary), times s m h d.
 * -ENOENT for an unknown name, -EINVAL for a bad value; err says what would be right. */
int hf_config_set(struct hf_config *c, const char *name, const char *value, struct hf_err *err) HF_MUST_USE;
/* Reads toml_path (NULL: DATA/holdfast.toml and /etc/holdfast/holdfast.toml, whichever exists first; a
 * missing default file is fine), then the environment. Flags are applied by the caller afterwards. */
int hf_config_load(struct hf_config *c, const char *toml_path, struct hf_err *err) HF_MUST_USE;
/* Checks the whole and makes paths absolute. */
int hf_config_check(struct hf_config *c, struct hf_err *err) HF_MUST_USE;
/* The directory for run-time state; malloc'ed. */
char *hf_config_run_dir(const struct hf_config *c) HF_MUST_USE;

/* ---- what the DNS settings say (config_dns.c) ---- */

#define HF_CONFIG_DNS_SERVERS_MAX 8u
#define HF_CONFIG_DNS_ZONES_MAX 64u
struct hf_config_zone {
    char zone[254];  /* "" = everything else */
    bool is_private; /* its names may have private addresses */
    size_t n;
    char servers[HF_CONFIG_DNS_SERVERS_MAX][64]; /* "addr", "addr:port" or "[v6]:port" */
};
/* Servers separated by commas. */
int hf_config_parse_servers(const char *text, struct hf_config_zone *ret, struct hf_err *err) HF_MUST_USE;
/* cb for each zone of "zone=server,server [private]; …"; cb may be NULL to check only. */
int hf_config_each_zone(const char *text, void (*cb)(void *arg, const struct hf_config_zone *z), void *arg,
                        struct hf_err *err) HF_MUST_USE;
