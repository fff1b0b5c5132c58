/* Internals of the store, shared by its files. */
#pragma once

#include <sqlite3.h>
#include <stdarg.h>

#include "base/list.h"
#include "store/meta.h"

/* Statements of the writer; the table is in batch.c. */
enum meta_stmt {
    W_TENANT,
    W_KEY,
    W_KEY_USED,
    W_KEY_REVOKED,
    W_SANDBOX,
    W_SANDBOX_STATE,
    W_SANDBOX_TIMES,
    W_SANDBOX_ENVD,
    W_EVENT,
    W_PRUNE_EVENTS,
    W_PRUNE_SANDBOXES,
    W_PRUNE_ANSWERS,
    W_TEMPLATE,
    W_TEMPLATE_READY,
    W_TEMPLATE_NAME,
    W_TEMPLATE_SPAWNED,
    W_TEMPLATE_DELETING,
    W_TEMPLATE_NAMES_DEL,
    W_TEMPLATE_DEL,
    W_SESSION,
    W_SESSION_BIND,
    W_SESSION_STATE,
    W_SESSION_DEL,
    W_VOLUME,
    W_VOLUME_STATE,
    W_VOLUME_DEL,
    W_ANSWER,
    W_SANDBOX_NETWORK,
    W_SESSION_METADATA,
    W_POLICY,
    W_POLICY_DEL,
    W_SECRET,
    W_SECRET_DEL,
    W_CA,
    W_OUTBOUND,
    W_OUTBOUND_CURSOR,
    W_OUTBOUND_PRUNE_AGE,
    W_OUTBOUND_PRUNE_COUNT,
    W_SANDBOX_PAUSE,
    W_SNAPSHOT,
    W_SNAPSHOT_READY,
    W_SNAPSHOT_META,
    W_SNAPSHOT_BYTES,
    W_SNAPSHOT_DELETING,
    W_SNAPSHOT_NAMES_DEL,
    W_SNAPSHOT_DEL,
    W_SNAPSHOT_NAME,
    W_SNAPSHOT_POLICY,
    W_SNAPSHOT_POLICY_LAST,
    W_SNAPSHOT_POLICY_DEL,
    W_COUNT,
};
extern const char *const meta_write_sql[W_COUNT];

/* Statements of the reader; the table is in read.c. */
enum { META_READS_MAX = 32, META_NET_READS_MAX = 16, META_PERSIST_READS_MAX = 16 };

struct meta_param {
    enum { P_INT, P_TEXT, P_BLOB } type;
    int64_t i;
    char *p; /* owned */
    size_t n;
};

enum { META_PARAMS_MAX = 32 };

struct meta_op {
    struct meta_op *next;
    enum meta_stmt stmt;
    bool expect_change; /* no row changed: -ESTALE */
    int n;
    struct meta_param params[META_PARAMS_MAX];
};

struct hf_meta_batch {
    struct hf_list node;
    struct meta_op *first, **last;
    unsigned flags;
    hf_meta_cb cb;
    void *arg;
    int r;
    struct hf_err err;
};

struct hf_meta {
    uv_loop_t *loop;
    sqlite3 *wdb, *rdb;
    sqlite3_stmt *w[W_COUNT];
    sqlite3_stmt *rd[META_READS_MAX];
    sqlite3_stmt *net_rd[META_NET_READS_MAX];
    sqlite3_stmt *persist_rd[META_PERSIST_READS_MAX];
    unsigned char seed[HF_META_SEED_LEN];

    /* writer thread */
    uv_thread_t thread;
    uv_mutex_t lock; /* guards queue, done, stop */
    uv_cond_t wake;
    struct hf_list queue, done;
    bool threaded, stop;
    bool full; /* writer's synchronous setting */
    uv_async_t async;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* schema.c */
int meta_migrate(sqlite3 *db, struct hf_err *err) HF_MUST_USE;
/* Fills err from the connection and returns the errno for it. */
int meta_sql_err(sqlite3 *db, struct hf_err *err, const char *what);

/* batch.c */
struct meta_op *meta_add(struct hf_meta_batch *b, enum meta_stmt stmt);
void meta_p_int(struct meta_op *op, int64_t v);
void meta_p_text(struct meta_op *op, const char *s); /* copied; NULL is "" */
void meta_p_blob(struct meta_op *op, const void *data, size_t n);

/* read.c */
/* Prepares *s at the first use and binds texts ("s") and integers ("i") in the order of fmt. NULL: -EIO. */
sqlite3_stmt *meta_bind(struct hf_meta *m, sqlite3_stmt **s, const char *sql, const char *fmt, va_list ap);
/* Ends a read after its last step: 1 a row, 0 none, -EIO. No read transaction stays open and holds the WAL.
 */
int meta_read_end(sqlite3_stmt *s, int code);
void meta_col_text(sqlite3_stmt *s, int col, char *out, size_t n);
char *meta_col_dup(sqlite3_stmt *s, int col) HF_MUST_USE;
/* malloc'ed, with a NUL behind. */
unsigned char *meta_col_blob(sqlite3_stmt *s, int col, size_t *ret_n) HF_MUST_USE;
void meta_read_done(struct hf_meta *m);
int meta_read_seed(struct hf_meta *m, struct hf_err *err) HF_MUST_USE;
