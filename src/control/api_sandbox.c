/* Sandboxes: create, connect, timeouts, kill. */
#include "base/clock.h"
#include "base/fault.h"
#include "control/network.h"
#include "control/persist.h"
#include "control/present.h"
#include "control/snapshot_int.h"
#include "control/validate.h"

#define REFRESH_MIN_S 15   /* seconds; what a keepalive gives at least */
#define REFRESH_MAX_S 3600 /* seconds */

/* A create whose client waits for the answer. */
struct pending {
    struct hf_call *call;
    bool gone;
};

static void on_client_gone(struct hf_call *call)
{
    ((struct pending *)call->data)->gone = true;
}

static void on_created(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct pending *p = arg;
    struct hf_call *call = p->call;
    bool gone = p->gone;
    free(p);
    if (!sb) {
        hf_call_err(call, err);
        return;
    }
    hf_call_json(call, 201, hf_present_handle(sb));
    hf_killpoint("create.answered");
    if (gone) /* nobody learned its id: it would live unused until its timeout */
        hf_sandbox_kill(sb, HF_CAUSE_CLIENT_GONE, "the client left before it was answered", NULL, NULL);
}

static void create(struct hf_call *call, bool v2)
{
    struct hf_err err = {0};
    struct hf_create_body body;
    struct hf_template_row t;
    char alias[HF_ROW_NAME];
    json_auto_t *network = NULL, *asked = NULL;
    hf_auto_snapshot_row struct hf_snapshot_row snapshot = {0};
    int r = hf_validate_create(call->body, v2, call->c->cfg, &body, &err);
    if (r == 0)
        r = hf_template_resolve(call->c, call->tenant, body.template_ref, &t, alias, &err);
    if (r == -ENOENT && hf_snapshot_resolve(call->c, call->tenant, body.template_ref, &snapshot, &err) == 1)
        r = 0;
    if (r == 0)
        r = hf_control_admit(call->c, call->tenant, &err);
    if (r == 0 && !*snapshot.id)
        r = hf_network_for_template(call->c, call->tenant, t.id, t.name, body.network, &asked, &err);
    if (r == 0 && !*snapshot.id)
        r = hf_network_resolve(call->c, call->tenant, asked, body.internet, &network, &err);
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    json_auto_t *lifecycle = json_pack("{s:s, s:b, s:b}", "on_timeout", body.auto_pause ? "pause" : "kill",
                                       "disk_only", !body.pause_memory, "auto_resume", body.auto_resume);
    struct pending *p = hf_new(struct pending);
    p->call = call;
    call->data = p;
    call->gone = on_client_gone;
    if (*snapshot.id) {
        hf_create_from_snapshot(call->c, &body, lifecycle, &snapshot, on_created, p);
        return;
    }
    struct hf_create_req req = {.tenant = call->tenant,
                                .template_id = t.id,
                                .alias = alias,
                                .cpu_millis = body.limits.cpu_millis,
                                .memory_bytes = body.limits.memory_bytes,
                                .disk_bytes = body.limits.disk_bytes,
                                .pids_max = body.limits.pids_max,
                                .timeout_s = body.timeout_s,
                                .metadata = (json_t *)(uintptr_t)body.metadata,
                                .env = (json_t *)(uintptr_t)body.env,
                                .network = network,
                                .lifecycle = lifecycle};
    hf_sandbox_create(call->c, &req, on_created, p, NULL);
}

static void create_v1(struct hf_call *call)
{
    create(call, false);
}

static void create_v2(struct hf_call *call)
{
    create(call, true);
}

static void get_detail(struct hf_call *call)
{
    struct hf_sandbox *sb = hf_call_sandbox(call, false);
    if (sb)
        hf_call_json(call, 200, hf_present_detail(sb));
}

static void on_killed(void *arg, const struct hf_err *err)
{
    hf_call_empty(arg, 204);
    hf_killpoint("kill.answered");
}

static void kill_sandbox(struct hf_call *call)
{
    char id[HF_ROW_ID];
    struct hf_err err = {0};
    if (hf_validate_sandbox_id(call->param[0], id, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = hf_sandbox_find(call->c, call->tenant, id);
    if (sb)
        hf_sandbox_kill(sb, HF_CAUSE_API, "", on_killed, call);
    else
        hf_call_no_sandbox(call, id);
}

/* A sandbox of the call's tenant in any state but ended, or answered. */
static struct hf_sandbox *any_sandbox(struct hf_call *call)
{
    char id[HF_ROW_ID];
    struct hf_err err = {0};
    if (hf_validate_sandbox_id(call->param[0], id, &err) < 0) {
        hf_call_err(call, &err);
        return NULL;
    }
    struct hf_sandbox *sb = hf_sandbox_find(call->c, call->tenant, id);
    if (sb && !hf_state_ended(sb->state))
        return sb;
    hf_call_no_sandbox(call, id);
    return NULL;
}

static void on_resumed(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    if (sb)
        hf_call_json(arg, 201, hf_present_handle(sb));
    else
        hf_call_err(arg, err);
    hf_killpoint("resume.answered");
}

static void wake(struct hf_call *call, struct hf_sandbox *sb, int64_t timeout_s)
{
    struct hf_err err = {0};
    if (hf_control_admit_resume(sb, &err) < 0)
        hf_call_err(call, &err);
    else
        hf_sandbox_resume(sb, timeout_s, HF_CAUSE_API, on_resumed, call);
}

static void connect_sandbox(struct hf_call *call, int64_t timeout_s)
{
    struct hf_err err = {0};
    int r = hf_validate_int(call->body, "timeout", INT64_MIN, INT64_MAX, &timeout_s, &err);
    const json_t *memory = json_object_get(call->body, "memory");
    if (r >= 0 && memory && !json_is_boolean(memory) && !json_is_null(memory))
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"memory\" must be a boolean");
    /* Unlike create, connect takes 0: it then changes nothing. */
    if (r >= 0 && timeout_s > 0)
        r = hf_validate_timeout(timeout_s, call->c->cfg, &err);
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = any_sandbox(call);
    if (!sb)
        return;
    if (hf_state_asleep(sb->state)) {
        sb->pause.reboot |= json_is_false(memory); /* the SDK's onResume: 'reboot' */
        wake(call, sb, timeout_s > 0 ? timeout_s : sb->row.timeout_s);
        return;
    }
    sb = hf_call_sandbox(call, true);
    if (!sb)
        return;
    (void)hf_sandbox_set_timeout(sb, HF_MAX(timeout_s, (int64_t)0), true);
    hf_call_json(call, 200, hf_present_handle(sb));
}

static void connect_v1(struct hf_call *call)
{
    if (!json_object_get(call->body, "timeout")) {
        hf_call_fail(call, 400, "validation error: \"timeout\" is required");
        return;
    }
    connect_sandbox(call, HF_TIMEOUT_V1_DEFAULT);
}

static void connect_v2(struct hf_call *call)
{
    connect_sandbox(call, HF_TIMEOUT_V2_DEFAULT);
}

static void resume(struct hf_call *call)
{
    struct hf_err err = {0};
    int64_t timeout_s = HF_TIMEOUT_V1_DEFAULT;
    int r = hf_validate_int(call->body, "timeout", INT64_MIN, INT64_MAX, &timeout_s, &err);
    if (r > 0)
        r = hf_validate_timeout(timeout_s, call->c->cfg, &err);
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = any_sandbox(call);
    if (!sb)
        return;
    if (hf_state_asleep(sb->state))
        wake(call, sb, timeout_s);
    else if (sb->state == HF_RUNNING)
        hf_call_fail(call, 409, "Sandbox %s is already running", sb->row.id);
    else
        (void)hf_call_sandbox(call, true); /* says why not */
}

static void on_paused(void *arg, const struct hf_err *err)
{
    if (err)
        hf_call_err(arg, err);
    else
        hf_call_empty(arg, 204);
    hf_killpoint("pause.answered");
}

/* "memory": false keeps the disk only; "depth": "cold" saves the memory at once (ours, not E2B's). */
static void pause_sandbox(struct hf_call *call)
{
    const json_t *memory = json_object_get(call->body, "memory");
    const char *depth = "warm";
    struct hf_err err = {0};
    int r = hf_validate_text(call->body, "depth", 8, &depth, &err);
    if (r >= 0 && memory && !json_is_boolean(memory) && !json_is_null(memory))
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"memory\" must be a boolean");
    if (r >= 0 && strcmp(depth, "warm") != 0 && strcmp(depth, "cold") != 0)
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"depth\" must be warm or cold");
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = any_sandbox(call);
    const struct hf_pause_ask ask = {.memory = !json_is_false(memory),
                                     .cold = strcmp(depth, "cold") == 0,
                                     .cause = HF_CAUSE_API,
                                     .detail = ""};
    if (sb && sb->state == HF_KILLING)
        hf_call_no_sandbox(call, sb->row.id);
    else if (sb)
        hf_sandbox_pause(sb, &ask, on_paused, call);
}

static void set_timeout(struct hf_call *call)
{
    struct hf_err err = {0};
    int64_t timeout_s = 0;
    int r = hf_validate_int(call->body, "timeout", INT64_MIN, INT64_MAX, &timeout_s, &err);
    if (r == 0)
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"timeout\" is required");
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = hf_call_sandbox(call, true);
    if (!sb)
        return;
    timeout_s = HF_MAX(timeout_s, (int64_t)0); /* 0 ends it now */
    int64_t lived_s = HF_MAX((hf_real_ms() - sb->row.started_ms) / 1000, (int64_t)0);
    if (timeout_s > 0) {
        int64_t total = timeout_s > INT64_MAX - lived_s ? INT64_MAX : timeout_s + lived_s;
        if (hf_validate_timeout(total, call->c->cfg, &err) < 0) {
            hf_call_err(call, &err);
            return;
        }
    }
    (void)hf_sandbox_set_timeout(sb, timeout_s, false);
    hf_call_empty(call, 204);
}

static void refresh(struct hf_call *call)
{
    struct hf_err err = {0};
    int64_t duration_s = REFRESH_MIN_S;
    if (hf_validate_int(call->body, "duration", 0, REFRESH_MAX_S, &duration_s, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = hf_call_sandbox(call, true);
    if (!sb)
        return;
    (void)hf_sandbox_set_timeout(sb, HF_MAX(duration_s, (int64_t)REFRESH_MIN_S), true);
    hf_call_empty(call, 204);
}

const struct hf_api_route hf_api_sandbox_routes[] = {
    {"POST", "/sandboxes", create_v1, HF_API_BODY},
    {"POST", "/v2/sandboxes", create_v2, HF_API_BODY},
    {"GET", "/sandboxes/{sandboxID}", get_detail, 0},
    {"DELETE", "/sandboxes/{sandboxID}", kill_sandbox, 0},
    {"POST", "/sandboxes/{sandboxID}/connect", connect_v1, HF_API_BODY},
    {"POST", "/v2/sandboxes/{sandboxID}/connect", connect_v2, HF_API_BODY_OPT},
    {"POST", "/sandboxes/{sandboxID}/resume", resume, HF_API_BODY_OPT},
    {"POST", "/sandboxes/{sandboxID}/pause", pause_sandbox, HF_API_BODY_OPT},
    {"POST", "/sandboxes/{sandboxID}/timeout", set_timeout, HF_API_BODY},
    {"POST", "/sandboxes/{sandboxID}/refreshes", refresh, HF_API_BODY_OPT},
    {NULL, NULL, NULL, 0},
};
