/* WatchDir (a stream) and CreateWatcher, GetWatcherEvents, RemoveWatcher (polled; they outlive connections).
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include "base/id.h"
#include "base/map.h"
#include "envd/fsjob.h"
#include "envd/watch.h"

#define WATCHER_EVENTS_MAX                                                           \
    8192u /* events that a polled watcher keeps; later ones are counted and reported \
           */
#define WATCHERS_EVENTS_MAX 16384u /* … all polled watchers together (some 3 KiB each, with entries) */
#define WATCHER_ID_LEN 21          /* "w" and 20 characters */
#ifndef CIFS_SUPER_MAGIC
#define CIFS_SUPER_MAGIC 0xff534d42
#endif
#ifndef SMB2_SUPER_MAGIC
#define SMB2_SUPER_MAGIC 0xfe534d42
#endif
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

/* ---- what both kinds share ---- */

static const char *const type_names[] = {
    [WATCH_CREATE] = "EVENT_TYPE_CREATE", [WATCH_RENAME] = "EVENT_TYPE_RENAME",
    [WATCH_CHMOD] = "EVENT_TYPE_CHMOD",   [WATCH_WRITE] = "EVENT_TYPE_WRITE",
    [WATCH_REMOVE] = "EVENT_TYPE_REMOVE",
};

static json_t *event_json(const char *dir, const char *name, enum watch_type type, bool include_entry)
{
    json_t *o = json_object(), *entry;
    fs_set_text(o, "name", name, strlen(name));
    json_object_set_new(o, "type", json_string(type_names[type]));
    if (!include_entry)
        return o;
    hf_auto_free char *path = strcmp(name, ".") == 0 ? hf_xstrdup(dir) : path_join(dir, name);
    if (fs_entry(AT_FDCWD, path, path, path, NULL, &entry) == 0)
        json_object_set_new(o, "entry", entry);
    return o;
}

static bool on_network(const char *path)
{
    struct statfs s;
    if (statfs(path, &s) < 0)
        return false;
    switch ((unsigned long)s.f_type & 0xffffffffu) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case FUSE_SUPER_MAGIC:
        return true;
    default:
        return false;
    }
}

/* The directory of a watch request; false after the call was failed. */
static bool watch_path(struct rpc_call *c, const json_t *msg, char **ret)
{
    struct envd_user u;
    struct stat st;
    hf_auto_free char *path = NULL;
    if (!fs_call_user(c, &u) || !fs_call_path(c, msg, "path", &u, &path))
        return false;
    if (fstatat(AT_FDCWD, path, &st, 0) < 0) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        if (missing)
            rpc_fail(c, RPC_NOT_FOUND, "path %s not found: stat %s: no such file or directory", path, path);
        else
            rpc_fail(c, fs_code(-errno), "error statting path %s: %s", path, strerror(errno));
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "path %s not a directory", path);
        return false;
    }
    if (!json_is_true(json_object_get(msg, "allowNetworkMounts")) && on_network(path)) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "cannot watch path on network filesystem: %s", path);
        return false;
    }
    *ret = hf_take_ptr(path);
    return true;
}

/* ---- WatchDir ---- */

struct stream {
    struct rpc_call *call;
    struct watcher *watcher;
    uv_timer_t keepalive;
    char *path;
    bool include_entry;
};

static void stream_send(struct stream *s, const char *key, json_t *value)
{
    json_t *msg = json_object();
    json_object_set_new(msg, key, value);
    (void)uv_timer_again(&s->keepalive);
    if (rpc_send(s->call, msg) == 1)
        watcher_pause(s->watcher);
}

static void stream_ready(void *self)
{
    stream_send(self, "start", json_object());
}

static void stream_event(void *self, const char *name, enum watch_type type)
{
    struct stream *s = self;
    stream_send(s, "filesystem", event_json(s->path, name, type, s->include_entry));
}

static void stream_lost(void *self, const struct hf_err *err)
{
    struct stream *s = self;
    rpc_fail(s->call, err->r == -EOVERFLOW ? RPC_DATA_LOSS : fs_code(err->r), "%s", err->msg);
}

static void stream_keepalive(uv_timer_t *t)
{
    stream_send(t->data, "keepalive", json_object());
}

static void stream_drain(struct rpc_call *c)
{
    struct stream *s = rpc_data(c);
    watcher_resume(s->watcher);
}

static void timer_closed(uv_handle_t *h)
{
    struct stream *s = h->data;
    free(s->path);
    free(s);
}

static void stream_close(struct rpc_call *c)
{
    struct stream *s = rpc_data(c);
    watcher_free(s->watcher);
    uv_close((uv_handle_t *)&s->keepalive, timer_closed);
}

void fs_watch_dir(struct rpc_call *c, json_t *msg)
{
    static const struct watcher_ops ops = {stream_ready, stream_event, stream_lost};
    static const struct rpc_ops call_ops = {.on_drain = stream_drain, .on_close = stream_close};
    struct hf_err err = {0};
    hf_auto_free char *path = NULL;
    if (!watch_path(c, msg, &path))
        return;
    struct stream *s = hf_new(struct stream);
    s->call = c;
    s->include_entry = json_is_true(json_object_get(msg, "includeEntry"));
    bool recursive = json_is_true(json_object_get(msg, "recursive"));
    int r = watcher_new(rpc_envd(c)->loop, path, recursive, &ops, s, &s->watcher, &err);
    if (r == 0)
        r = uv_timer_init(rpc_envd(c)->loop, &s->keepalive); /* can't fail */
    if (r < 0) {
        rpc_fail(c, fs_code(r), "%s", err.msg);
        free(s);
        return;
    }
    s->path = hf_take_ptr(path);
    s->keepalive.data = s;
    uint64_t ms = HF_MAX((uint64_t)rpc_keepalive_s(c), (uint64_t)1) * 1000;
    (void)uv_timer_start(&s->keepalive, stream_keepalive, ms, ms);
    rpc_set_ops(c, &call_ops, s);
}

/* ---- polled watchers ---- */

struct polled {
    char id[WATCHER_ID_LEN + 1];
    struct rpc_call *creator; /* CreateWatcher, until it is answered */
    struct watcher *watcher;
    char *path;
    bool include_entry;
    json_t *events;
    uint64_t dropped;
    struct hf_err lost;
};

static struct hf_map watchers; /* id -> struct polled; loop thread, as everything here */
static size_t kept_events;     /* of all of them */

/* The events so far; the watcher starts anew. */
static json_t *take_events(struct polled *p)
{
    json_t *events = p->events;
    kept_events -= json_array_size(events);
    p->events = json_array();
    return events;
}

static void polled_free(struct polled *p)
{
    (void)hf_map_del(&watchers, hf_str_c(p->id));
    watcher_free(p->watcher);
    json_decref(take_events(p));
    json_decref(p->events);
    free(p->path);
    free(p);
}

static void polled_ready(void *self)
{
    struct polled *p = self;
    struct rpc_call *c = hf_take_ptr(p->creator);
    rpc_set_ops(c, NULL, NULL);
    json_t *reply = json_object();
    json_object_set_new(reply, "watcherId", json_string(p->id));
    rpc_reply(c, reply);
}

static void polled_event(void *self, const char *name, enum watch_type type)
{
    struct polled *p = self;
    if (json_array_size(p->events) >= WATCHER_EVENTS_MAX || kept_events >= WATCHERS_EVENTS_MAX) {
        p->dropped++;
        return;
    }
    json_array_append_new(p->events, event_json(p->path, name, type, p->include_entry));
    kept_events++;
}

static void polled_lost(void *self, const struct hf_err *err)
{
    struct polled *p = self;
    if (!p->creator) {
        p->lost = *err;
        return;
    }
    struct rpc_call *c = hf_take_ptr(p->creator);
    rpc_set_ops(c, NULL, NULL);
    rpc_fail(c, fs_code(err->r), "%s", err->msg);
    polled_free(p);
}

/* The client left before it knew the id. */
static void creator_gone(struct rpc_call *c)
{
    polled_free(rpc_data(c));
}

void fs_create_watcher(struct rpc_call *c, json_t *msg)
{
    static const struct watcher_ops ops = {polled_ready, polled_event, polled_lost};
    static const struct rpc_ops call_ops = {.on_close = creator_gone};
    struct hf_err err = {0};
    hf_auto_free char *path = NULL;
    if (!watch_path(c, msg, &path))
        return;
    struct polled *p = hf_new(struct polled);
    bool recursive = json_is_true(json_object_get(msg, "recursive"));
    int r = watcher_new(rpc_envd(c)->loop, path, recursive, &ops, p, &p->watcher, &err);
    if (r < 0) {
        rpc_fail(c, fs_code(r), "%s", err.msg);
        free(p);
        return;
    }
    p->id[0] = 'w';
    hf_random_id(p->id + 1, WATCHER_ID_LEN - 1);
    p->creator = c;
    p->path = hf_take_ptr(path);
    p->include_entry = json_is_true(json_object_get(msg, "includeEntry"));
    p->events = json_array();
    (void)hf_map_put(&watchers, hf_str_c(p->id), p);
    rpc_set_ops(c, &call_ops, p);
}

/* NULL after the call was failed. */
static struct polled *find(struct rpc_call *c, const json_t *msg)
{
    const json_t *id = json_object_get(msg, "watcherId");
    struct hf_str text = {json_string_length(id) ? json_string_value(id) : "", json_string_length(id)};
    struct polled *p = hf_map_get(&watchers, text);
    if (!p)
        rpc_fail(c, RPC_NOT_FOUND, "watcher with id %s not found", text.p);
    return p;
}

/* What was lost is told once; the events that were kept come with the next call. */
void fs_get_watcher_events(struct rpc_call *c, json_t *msg)
{
    struct polled *p = find(c, msg);
    if (!p)
        return;
    if (p->lost.r) {
        rpc_fail(c, RPC_DATA_LOSS, "%s; call again for the events that were kept", p->lost.msg);
        p->lost = (struct hf_err){0};
        return;
    }
    if (p->dropped) {
        rpc_fail(c, RPC_DATA_LOSS,
                 "%llu events were dropped, a watcher keeps %u between two calls and all together %u; call "
                 "again for "
                 "those it kept",
                 (unsigned long long)p->dropped, WATCHER_EVENTS_MAX, WATCHERS_EVENTS_MAX);
        p->dropped = 0;
        return;
    }
    json_t *reply = json_object();
    json_object_set_new(reply, "events", take_events(p));
    rpc_reply(c, reply);
}

void fs_remove_watcher(struct rpc_call *c, json_t *msg)
{
    struct polled *p = find(c, msg);
    if (!p)
        return;
    polled_free(p);
    rpc_reply(c, json_object());
}
