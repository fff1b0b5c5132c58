/* One operation at a time per session key, first come first served. */
#include <stdio.h>

#include "session/session_int.h"

struct session_op *hf_session_op_new(const char *tenant, const char *key, struct hf_call *call,
                                     void (*run)(struct session_op *op))
{
    struct session_op *op = hf_new(struct session_op);
    hf_list_init(&op->node);
    op->call = call;
    op->run = run;
    (void)snprintf(op->tenant, sizeof(op->tenant), "%s", tenant);
    (void)snprintf(op->ask.key, sizeof(op->ask.key), "%s", key);
    return op;
}

static struct session_lock *lock_of(struct hf_sessions *s, const char *tenant, const char *key)
{
    hf_auto_buf struct hf_buf name = HF_BUF_INIT(HF_ROW_ID + HF_ROW_TEXT + 1);
    if (hf_buf_adds(&name, tenant) < 0 || hf_buf_add(&name, "", 1) < 0 || hf_buf_adds(&name, key) < 0)
        abort(); /* both were checked against their limits */
    struct hf_str n = {name.p, name.n};
    struct session_lock *l = hf_map_get(&s->locks, n);
    if (l)
        return l;
    l = hf_new(struct session_lock);
    hf_list_init(&l->waiters);
    l->name_n = name.n;
    l->name = hf_xmalloc(name.n);
    memcpy(l->name, name.p, name.n);
    (void)hf_map_put(&s->locks, n, l);
    return l;
}

/* A loop instead of recursion: operations that end at once would nest as deep as the queue is long. */
static void dispatch(struct hf_sessions *s, struct session_lock *l)
{
    if (l->dispatching)
        return;
    l->dispatching = true;
    while (!l->held && !hf_list_empty(&l->waiters)) {
        struct session_op *op = hf_list_entry(l->waiters.next, struct session_op, node);
        hf_list_del(&op->node);
        l->held = true;
        op->run(op);
    }
    l->dispatching = false;
    if (l->held)
        return;
    (void)hf_map_del(&s->locks, (struct hf_str){l->name, l->name_n});
    free(l->name);
    free(l);
}

void hf_session_enter(struct hf_sessions *s, struct session_op *op)
{
    op->s = s;
    op->lock = lock_of(s, op->tenant, op->ask.key);
    s->c->busy++;
    hf_list_add_tail(&op->lock->waiters, &op->node);
    dispatch(s, op->lock);
}

void hf_session_leave(struct session_op *op)
{
    struct hf_sessions *s = op->s;
    struct session_lock *l = op->lock;
    json_decref(op->ask.metadata);
    json_decref(op->ask.env);
    json_decref(op->ask.network);
    json_decref(op->ask.asked);
    hf_session_row_done(&op->row);
    free(op->image);
    free(op);
    s->c->busy--;
    l->held = false;
    dispatch(s, l);
}

void hf_session_fail(struct session_op *op, const struct hf_err *err)
{
    if (op->call)
        hf_call_err(op->call, err);
    hf_session_leave(op);
}

bool hf_session_load(struct session_op *op)
{
    int r = hf_get_session(op->s->c->meta, op->tenant, op->ask.key, &op->row);
    if (r == 1)
        return true;
    struct hf_err err = {0};
    if (r < 0)
        (void)hf_err_set(&err, -EIO, "the database can't be read");
    else
        (void)hf_err_set(&err, -ENOENT, "there is no session \"%s\"", op->ask.key);
    hf_session_fail(op, &err);
    return false;
}

/* ---- ending the session's sandboxes ---- */

struct end_all {
    struct session_op *op;
    const char *cause;
    void (*next)(struct session_op *op);
};

static void end_next(void *arg, const struct hf_err *err)
{
    struct end_all *e = arg;
    struct session_op *op = e->op;
    hf_list_foreach(it, &op->s->c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (hf_state_ended(sb->state) || strcmp(sb->row.session_id, op->row.id) != 0)
            continue;
        hf_sandbox_kill(sb, e->cause, "", end_next, e);
        return;
    }
    void (*next)(struct session_op *) = e->next;
    free(e);
    next(op);
}

void hf_session_end_all(struct session_op *op, const char *cause, void (*next)(struct session_op *op))
{
    struct end_all *e = hf_new(struct end_all);
    *e = (struct end_all){op, cause, next};
    end_next(e, NULL);
}
