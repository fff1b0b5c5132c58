/* The control plane's core: what exists, and the operations on it. Loop thread only.
 *
 * Ownership first: the row that says who owns a sandbox is durable before the driver is asked to make it, and
 * the row that says it is gone is written after it is gone. Every callback comes later than the call that was
 * given it. */
#pragma once

#include <jansson.h>
#include <uv.h>

#include "base/list.h"
#include "base/map.h"
#include "control/config.h"
#include "control/state.h"
#include "engine/driver.h"
#include "store/meta.h"

/* Limits and periods. */
#define HF_SANDBOX_ID_LEN 21u             /* "i" + 20 of [a-z0-9] */
#define HF_CONTROL_INIT_TIMEOUT_MS 10000u /* envd must answer /init within */
#define HF_CONTROL_TICK_MAX_MS 1000u      /* deadlines are looked at at least this often while any exists */
#define HF_CONTROL_SAMPLE_MS 5000u        /* between two metrics samples of a sandbox */
#define HF_CONTROL_SAMPLES_MAX 360u       /* samples kept per sandbox: half an hour */
#define HF_CONTROL_KEEP_ENDED_MS (7ll * 24 * 3600 * 1000) /* ended sandboxes and their events */
#define HF_CONTROL_KEEP_ANSWERS_MS (24ll * 3600 * 1000)   /* answers by Idempotency-Key */
#define HF_CONTROL_OUTBOUND_ROWS                                               \
    1000000 /* outbound records kept at most, beside the setting outbound_keep \
             */
#define HF_CONTROL_MOUNTS_MAX 12u

/* Causes, as they appear in rows and events. */
#define HF_CAUSE_API "api"
#define HF_CAUSE_TRAFFIC "traffic"         /* resumed by a request */
#define HF_CAUSE_SESSION "session"         /* resumed, because its session was opened */
#define HF_CAUSE_DELAY "delay"             /* a warm pause became cold */
#define HF_CAUSE_PRESSURE "pressure"       /* … because memory was short */
#define HF_CAUSE_SHUTDOWN "shutdown"       /* … because the host goes down */
#define HF_CAUSE_NOT_RESUMED "not-resumed" /* a resume failed: paused as before */
#define HF_CAUSE_TIMEOUT "timeout"
#define HF_CAUSE_OOM "oom"
#define HF_CAUSE_EXITED "exited"
#define HF_CAUSE_KILLED "killed-outside"
#define HF_CAUSE_LOST "supervisor-lost"
#define HF_CAUSE_REBOOT "host-reboot"
#define HF_CAUSE_CLIENT_GONE "client-gone"
#define HF_CAUSE_CREATE_FAILED "create-failed"
#define HF_CAUSE_INTERRUPTED "interrupted"
#define HF_CAUSE_UNRESPONSIVE "unresponsive"
#define HF_CAUSE_SESSION_CLOSED "session-closed"
#define HF_CAUSE_SESSION_DELETED "session-deleted"
#define HF_CAUSE_DUPLICATE "duplicate"

struct hf_sample {
    int64_t time_ms;
    struct hf_box_stats stats;
};

struct hf_control;
struct hf_create;
struct hf_cnet; /* control/net.h */
struct hf_snapshots;

/* A sandbox that has not ended (or is about to be forgotten). Valid until its state has ended and the last
 * callback about it returned. */
struct hf_sandbox {
    struct hf_control *c;
    struct hf_list node; /* c->list, in order of creation */
    struct hf_sandbox_row row;
    enum hf_state state;
    json_t *metadata; /* object of strings */
    struct hf_box *box;
    bool driver_busy;  /* the driver makes the box; it can't be destroyed yet */
    bool kill_durable; /* the killing row is written */
    bool destroying;
    bool wired;        /* its box has an interface; false also when that is not known yet */
    bool net_changing; /* its network document is being replaced */
    uint32_t net_key;  /* of its box in the fabric; 0 = not known */
    unsigned refs;
    struct hf_create *create; /* in flight */
    struct hf_list waiters;   /* of the kill */
    int64_t deadline_boot_ms;
    struct {
        bool cold_wanted;        /* the pause under way shall end cold */
        bool disk_only;          /* … and save no processes */
        bool hold;               /* … and stay warm */
        bool reboot;             /* whoever resumes it wants its processes started afresh */
        bool freezing_out;       /* a warm pause is being made cold */
        bool stays_warm;         /* that was tried, and failed */
        bool drained;            /* … or was done, because the host goes down */
        char spent[HF_ROW_ID];   /* the image that a resume came from, until it may go */
        int64_t cold_at_boot_ms; /* when a warm pause becomes cold; 0 = never */
        struct hf_list waiters;  /* of a pause under way */
        struct hf_list wakers;   /* that want it running */
    } pause;
    bool ca_sent;               /* its box trusts its tenant's certificate authority */
    struct hf_ingress *ingress; /* control/ingress.h; NULL until it is asked for */
    uint64_t next_sample_ms;    /* monotonic */
    struct hf_sample *samples;  /* ring */
    uint32_t samples_n, samples_cap, samples_at;
};

struct hf_control_hooks {
    /* The sandbox can't be reached any more: cut its streams. May be NULL. */
    void (*drop)(void *self, const char *sandbox_id);
};

struct hf_control {
    uv_loop_t *loop;
    const struct hf_config *cfg;
    struct hf_meta *meta;
    struct hf_driver *driver;
    struct hf_snapshots *snapshots; /* control/snapshot_int.h */
    struct hf_cnet *net; /* may be NULL: sandboxes have loopback only, as where the host can't do more */
    struct hf_control_hooks hooks;
    void *hooks_self;
    struct hf_map map;               /* id -> struct hf_sandbox */
    struct hf_map policies_changing; /* "tenant/name" that a request is changing */
    struct hf_map secrets_changing;  /* "tenant/name" that a request is changing */
    struct hf_list list;
    char boot_id[40];
    char domain[256]; /* what clients put behind <port>-<id>.; "" = not known yet */
    bool https;       /* … with this scheme */
    char warm_id[HF_ROW_ID];
    unsigned char seed[HF_META_SEED_LEN];
    uv_timer_t tick;    /* deadlines */
    uv_timer_t sampler; /* metrics */
    uv_timer_t pruner;
    uv_timer_t policies; /* snapshots by time */
    unsigned open_timers;
    unsigned imports; /* of templates, running */
    unsigned busy;    /* operations under way that a clean stop waits for, beside creates and kills */
    bool stopping;
    bool draining; /* the host goes down: nothing is made or resumed any more */
    void (*stopped)(void *arg);
    void *stopped_arg;
    struct {
        uint64_t created, create_failed, killed, died;
    } counts;
};

/* The driver and the store stay the caller's. Call hf_control_reconcile before anything else. */
struct hf_control *hf_control_new(uv_loop_t *loop, const struct hf_config *cfg, struct hf_meta *meta,
                                  struct hf_driver *driver) HF_MUST_USE;
/* Stops timers; sandboxes are forgotten, not ended. Call when no operation is in flight or the store is
 * closed. stopped(arg) comes once the loop let go; c is freed then. */
void hf_control_free(struct hf_control *c, void (*stopped)(void *arg), void *arg);

/* Compares rows with what the driver finds and settles each difference: adopts what lives, ends what must
 * not. ready(arg, err) comes when every living sandbox is adopted; destroying what is left goes on. -EIO (and
 * no ready) when the rows can't be read. */
int hf_control_reconcile(struct hf_control *c, hf_done_cb ready, void *arg, struct hf_err *err) HF_MUST_USE;
/* Points the warm pool at the configured template, if it exists by now. */
void hf_control_set_warm(struct hf_control *c);

struct hf_create_req {
    const char *tenant;
    const char *template_id;
    const char *alias; /* the name that the client used; may be NULL */
    int64_t cpu_millis, memory_bytes, disk_bytes, pids_max;
    int64_t timeout_s;
    json_t *metadata;       /* object of strings; borrowed */
    const json_t *network;  /* of hf_network_resolve; borrowed; NULL = closed */
    json_t *env;            /* object of strings; borrowed; goes to envd only, never into a row */
    const char *session_id; /* NULL = none */
    int64_t epoch;
    size_t n_mounts;
    struct {
        const char *name, *image, *path;
        enum hf_box_mount_kind kind;
        bool read_only;
    } mounts[HF_CONTROL_MOUNTS_MAX];
    /* From a snapshot; NULL = from the template alone. Its directory, whether its processes go on, and whose
     * environment envd has already (from_memory) or gets again. */
    const char *snapshot_id, *from_dir;
    bool from_memory;
    int64_t generation; /* 0 = 1; after a start from memory more than that of the one that was saved */
    json_t *lifecycle;  /* of hf_lifecycle_resolve; borrowed; NULL = kill at the timeout */
    /* Adds statements to the batch that makes the sandbox's row durable; may be NULL. */
    void (*with_row)(void *arg, struct hf_meta_batch *b, const char *sandbox_id);
    void *with_row_arg;
};

/* sb is running, or NULL with err. */
typedef void (*hf_sandbox_cb)(void *arg, struct hf_sandbox *sb, const struct hf_err *err);
/* ret_id (may be NULL) gets the id at once. */
void hf_sandbox_create(struct hf_control *c, const struct hf_create_req *req, hf_sandbox_cb cb, void *arg,
                       char ret_id[HF_ROW_ID]);

/* NULL when unknown, ended, or another tenant's (tenant NULL: any). */
struct hf_sandbox *hf_sandbox_find(struct hf_control *c, const char *tenant, const char *id);
/* Ends it from any state; joins a kill that runs already. cb (may be NULL) comes when nothing of it is left
 * and the row says so. */
void hf_sandbox_kill(struct hf_sandbox *sb, const char *cause, const char *detail, hf_done_cb cb, void *arg);
/* The end of its life, from now; extend_only never shortens. Returns whether it changed. */
bool hf_sandbox_set_timeout(struct hf_sandbox *sb, int64_t timeout_s, bool extend_only);
/* "<64 hex>": the token that envd asks for; derived, never stored. */
void hf_sandbox_token(const struct hf_control *c, const char *sandbox_id, char out[65]);
size_t hf_control_count(const struct hf_control *c, const char *tenant, enum hf_state state);
/* A line of history without a change of state. */
void hf_control_event(struct hf_control *c, const char *tenant, const char *sandbox_id,
                      const char *session_id, const char *kind, const char *cause, const char *detail);

/* ---- shared by the core's own files ---- */

struct hf_sandbox *hf_sandbox_new(struct hf_control *c, const struct hf_sandbox_row *row,
                                  enum hf_state state);
struct hf_sandbox *hf_sandbox_ref(struct hf_sandbox *sb);
void hf_sandbox_unref(struct hf_sandbox *sb);
/* The one function that changes a state: checks the table, adds the row's change and its event to b. */
void hf_sandbox_move(struct hf_sandbox *sb, struct hf_meta_batch *b, enum hf_state to, const char *cause,
                     const char *detail);
/* paused (cold) -> running again, from row.pause_id; the state is resuming already. cb: running, or paused as
 * before with err. */
void hf_sandbox_bring_back(struct hf_sandbox *sb, const char *from_dir, bool memory, int64_t timeout_s,
                           hf_sandbox_cb cb, void *arg);
/* What it is paused in, in the batch and in its row; depth as in control/persist.h, "" when it runs. */
void hf_pause_set(struct hf_sandbox *sb, struct hf_meta_batch *b, const char *depth, const char *pause_id);
/* pause.c: the batch says that it runs again, in this generation. */
void hf_pause_over(struct hf_sandbox *sb, struct hf_meta_batch *b, int64_t generation);
/* At start: an adopted box goes on (thaw) or stands still; a cold pause stays what it is. */
void hf_pause_settle(struct hf_sandbox *sb, bool thaw);
void hf_pause_settle_cold(struct hf_sandbox *sb);
/* It is being killed: who waits for a pause or a resume learns it. It is gone: so is what it was paused in.
 */
void hf_pause_killed(struct hf_sandbox *sb);
void hf_pause_gone(struct hf_sandbox *sb);
/* What its lifecycle document says. */
bool hf_sandbox_pauses(const struct hf_sandbox *sb);       /* at its timeout, instead of ending */
bool hf_sandbox_keeps_memory(const struct hf_sandbox *sb); /* in such a pause */
bool hf_sandbox_wakes(const struct hf_sandbox *sb);        /* when traffic comes, unless … */
void hf_pause_wake_waiting(struct hf_sandbox *sb);         /* whoever asked for it while it could not be */
bool hf_pause_is_disk_only(const struct hf_sandbox *sb);   /* … its processes are gone, or about to be */
/* Goes on with a kill as far as it can. */
void hf_sandbox_kill_step(struct hf_sandbox *sb);
/* The create in flight learns that its sandbox is being killed. */
void hf_create_killed(struct hf_sandbox *sb);
void hf_deadline_arm(struct hf_control *c);
void hf_deadline_start(struct hf_control *c);
void hf_sample_now(struct hf_sandbox *sb);
const char *hf_cause_of_exit(enum hf_box_cause cause);
