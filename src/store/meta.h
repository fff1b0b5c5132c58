/* Rows: who owns what. SQLite (WAL) in DATA/holdfast.db.
 *
 * Writes are batches: a few statements that are applied together or not at all. With a loop, one writer
 * thread takes every batch that waits into one transaction (group commit) and the callbacks come back on the
 * loop's thread, in the order of hf_meta_commit. Reads run on the caller's thread on a connection of their
 * own and see what was committed. Nothing of SQLite shows through this header. */
#pragma once

#include <uv.h>

#include "base/err.h"
#include "store/rows.h"

#define HF_META_DB_NAME "holdfast.db"
#define HF_META_BUSY_MS 5000   /* wait for another process's lock (the CLI makes keys beside the daemon) */
#define HF_META_GROUP_MAX 256u /* batches in one transaction */
#define HF_META_SEED_LEN 32u   /* node secret: tokens are derived from it */

struct hf_meta;
struct hf_meta_batch;

/* r < 0: nothing of the batch was applied. -ESTALE: a row was not in the state the batch expected.
 * -EEXIST: a unique value is taken. */
typedef void (*hf_meta_cb)(void *arg, int r, const struct hf_err *err);

/* Opens or creates the database (mode 0600) and brings its schema up to date. loop NULL: no writer thread,
 * use hf_meta_commit_now (the CLI). A schema newer than this program is -EPROTO. */
int hf_meta_open(const char *data_dir, uv_loop_t *loop, struct hf_meta **ret, struct hf_err *err) HF_MUST_USE;
/* Commits what is queued, ends the writer and runs the callbacks that are left; then closed(arg) once the
 * loop let go of its handle. Without a loop everything happens in the call. */
void hf_meta_close(struct hf_meta *m, void (*closed)(void *arg), void *arg);

/* ---- writes ---- */

struct hf_meta_batch *hf_meta_batch_new(void) HF_MUST_USE;
void hf_meta_batch_free(struct hf_meta_batch *b); /* one that was not committed */

/* Not flushed to the disk before the callback: for facts that a restart finds out again by itself. */
#define HF_META_LAZY 1u
/* Takes the batch. cb may be NULL. */
void hf_meta_commit(struct hf_meta *m, struct hf_meta_batch *b, unsigned flags, hf_meta_cb cb, void *arg);
/* Takes the batch; only without a loop. */
int hf_meta_commit_now(struct hf_meta *m, struct hf_meta_batch *b, struct hf_err *err) HF_MUST_USE;

/* Each adds one statement; strings are copied. */
void hf_put_tenant(struct hf_meta_batch *b, const char *name, int64_t now_ms); /* exists: no change */
void hf_put_key(struct hf_meta_batch *b, const struct hf_key_row *k);
void hf_set_key_used(struct hf_meta_batch *b, const char *id, int64_t now_ms);
void hf_set_key_revoked(struct hf_meta_batch *b, const char *id, int64_t now_ms); /* kept if set before */

void hf_put_sandbox(struct hf_meta_batch *b, const struct hf_sandbox_row *s);
/* Expects the row in state `from`. */
void hf_set_sandbox_state(struct hf_meta_batch *b, const char *id, const char *from, const char *to,
                          const char *cause, const char *detail, int64_t now_ms);
void hf_set_sandbox_times(struct hf_meta_batch *b, const char *id, int64_t started_ms, int64_t end_ms,
                          int64_t deadline_boot_ms);
void hf_set_sandbox_envd(struct hf_meta_batch *b, const char *id, const char *envd_version);
void hf_put_event(struct hf_meta_batch *b, const struct hf_event_row *e); /* seq is ignored */
/* Forgets ended sandboxes, their events and stored answers from before these times. */
void hf_prune(struct hf_meta_batch *b, int64_t sandboxes_before_ms, int64_t answers_before_ms);

void hf_put_template(struct hf_meta_batch *b, const struct hf_template_row *t);
/* importing -> ready; sha256 is hex. */
void hf_set_template_ready(struct hf_meta_batch *b, const char *id, const char *sha256, int64_t bytes,
                           int64_t now_ms);
/* Points tenant's name:tag at the template, wherever it pointed before. */
void hf_put_template_name(struct hf_meta_batch *b, const char *tenant, const char *name, const char *tag,
                          const char *template_id);
void hf_set_template_spawned(struct hf_meta_batch *b, const char *id, int64_t now_ms); /* count + 1 */
void hf_set_template_deleting(struct hf_meta_batch *b, const char *id); /* its names go at once */
void hf_del_template(struct hf_meta_batch *b, const char *id);

void hf_put_session(struct hf_meta_batch *b, const struct hf_session_row *s); /* key taken: -EEXIST */
/* Binds the sandbox and counts the epoch up; expects the epoch that the caller read. */
void hf_bind_session(struct hf_meta_batch *b, const char *id, int64_t expect_epoch, const char *sandbox_id,
                     int64_t now_ms);
void hf_set_session_state(struct hf_meta_batch *b, const char *id, const char *state, int64_t now_ms);
void hf_del_session(struct hf_meta_batch *b, const char *id);
void hf_put_volume(struct hf_meta_batch *b, const struct hf_volume_row *v);
void hf_set_volume_state(struct hf_meta_batch *b, const char *id, const char *state);
void hf_del_volume(struct hf_meta_batch *b, const char *id);
void hf_put_answer(struct hf_meta_batch *b, const struct hf_answer_row *a);

/* ---- reads: 1 found, 0 not, -EIO. Rows are filled with owned memory: hf_*_row_done ---- */

void hf_meta_seed(const struct hf_meta *m, unsigned char out[HF_META_SEED_LEN]);
/* Not revoked. */
int hf_get_key(struct hf_meta *m, const unsigned char hash[32], struct hf_key_row *ret) HF_MUST_USE;
int hf_get_sandbox(struct hf_meta *m, const char *id, struct hf_sandbox_row *ret) HF_MUST_USE;
int hf_get_template(struct hf_meta *m, const char *id, struct hf_template_row *ret) HF_MUST_USE;
/* tag NULL: any tag of the name. The tenant's own names only. */
int hf_get_template_by_name(struct hf_meta *m, const char *tenant, const char *name, const char *tag,
                            struct hf_template_row *ret) HF_MUST_USE;
int hf_get_public_template_by_name(struct hf_meta *m, const char *name, const char *tag,
                                   struct hf_template_row *ret) HF_MUST_USE;
int hf_get_session(struct hf_meta *m, const char *tenant, const char *id_or_key,
                   struct hf_session_row *ret) HF_MUST_USE;
int hf_get_volume(struct hf_meta *m, const char *id, struct hf_volume_row *ret) HF_MUST_USE;
int hf_get_answer(struct hf_meta *m, const char *tenant, const char *key,
                  struct hf_answer_row *ret) HF_MUST_USE;

/* Lists: each row is borrowed during the call of fn, which must not call the same list again. 0 or -EIO. */
int hf_each_key(struct hf_meta *m, void (*fn)(void *arg, const struct hf_key_row *k), void *arg) HF_MUST_USE;
/* Sandboxes that have not ended (neither killed nor failed). */
int hf_each_live_sandbox(struct hf_meta *m, void (*fn)(void *arg, const struct hf_sandbox_row *s),
                         void *arg) HF_MUST_USE;
/* All of a tenant, newest first, those older than (before_ms, before_id); before_ms <= 0: from the newest. */
int hf_each_sandbox(struct hf_meta *m, const char *tenant, int64_t before_ms, const char *before_id,
                    int limit, void (*fn)(void *arg, const struct hf_sandbox_row *s), void *arg) HF_MUST_USE;
/* sandbox NULL: all of the tenant. With after < 0 the newest `limit`, oldest of them first. */
int hf_each_event(struct hf_meta *m, const char *tenant, const char *sandbox, int64_t after, int limit,
                  void (*fn)(void *arg, const struct hf_event_row *e), void *arg) HF_MUST_USE;
/* tenant NULL: all. Own ones and public ones. */
int hf_each_template(struct hf_meta *m, const char *tenant,
                     void (*fn)(void *arg, const struct hf_template_row *t), void *arg) HF_MUST_USE;
int hf_each_template_name(struct hf_meta *m, const char *template_id,
                          void (*fn)(void *arg, const char *name, const char *tag), void *arg) HF_MUST_USE;
/* Newest first, as hf_each_sandbox; state NULL: any; tenant NULL: all tenants. */
int hf_each_session(struct hf_meta *m, const char *tenant, const char *state, int64_t before_ms,
                    const char *before_id, int limit, void (*fn)(void *arg, const struct hf_session_row *s),
                    void *arg) HF_MUST_USE;
int hf_each_volume(struct hf_meta *m, void (*fn)(void *arg, const struct hf_volume_row *v),
                   void *arg) HF_MUST_USE;
