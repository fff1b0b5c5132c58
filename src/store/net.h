/* Rows of the network part: policy groups, secrets, tenants' certificate authorities, outbound records.
 * Readers and batches as in store/meta.h. */
#pragma once

#include "store/meta.h"

/* Replaces the sandbox's network document. */
void hf_set_sandbox_network(struct hf_meta_batch *b, const char *id, const char *network);
void hf_set_session_metadata(struct hf_meta_batch *b, const char *id, const char *metadata);

/* A policy group: the document is canonical (egress/policy.h). */
struct hf_policy_row {
    char tenant[HF_ROW_ID], name[HF_ROW_ID];
    char *doc;
    int64_t version, created_ms, updated_ms;
};
void hf_policy_row_done(struct hf_policy_row *p);
void hf_put_policy(struct hf_meta_batch *b, const struct hf_policy_row *p); /* replaces by tenant and name */
void hf_del_policy(struct hf_meta_batch *b, const char *tenant, const char *name);
int hf_get_policy(struct hf_meta *m, const char *tenant, const char *name,
                  struct hf_policy_row *ret) HF_MUST_USE;
/* cb for each, in order of name; stops when it returns false. */
int hf_each_policy(struct hf_meta *m, const char *tenant,
                   bool (*cb)(void *arg, const struct hf_policy_row *p), void *arg) HF_MUST_USE;

/* A secret. sealed: control/seal.h; the value is never in a row. */
struct hf_secret_row {
    char id[HF_ROW_ID], tenant[HF_ROW_ID], name[HF_ROW_NAME];
    char *metadata; /* JSON object of strings */
    unsigned char *sealed;
    size_t sealed_n;
    int64_t version, created_ms, updated_ms;
};
void hf_secret_row_done(struct hf_secret_row *s);
void hf_put_secret(struct hf_meta_batch *b, const struct hf_secret_row *s); /* replaces by tenant and name */
void hf_del_secret(struct hf_meta_batch *b, const char *tenant, const char *name);
int hf_get_secret(struct hf_meta *m, const char *tenant, const char *id_or_name,
                  struct hf_secret_row *ret) HF_MUST_USE;
int hf_each_secret(struct hf_meta *m, const char *tenant,
                   bool (*cb)(void *arg, const struct hf_secret_row *s), void *arg) HF_MUST_USE;

struct hf_ca_row {
    char tenant[HF_ROW_ID];
    char *cert; /* PEM */
    unsigned char *sealed_key;
    size_t sealed_key_n;
    int64_t created_ms;
};
void hf_ca_row_done(struct hf_ca_row *c);
void hf_put_ca(struct hf_meta_batch *b, const struct hf_ca_row *c); /* the tenant has one: -EEXIST */
int hf_get_ca(struct hf_meta *m, const char *tenant, struct hf_ca_row *ret) HF_MUST_USE;

/* An outbound record: what netd wrote (egress/netd.h), as one JSON object beside the columns that are
 * searched. */
struct hf_outbound_row {
    int64_t seq, time_ms;
    char tenant[HF_ROW_ID], sandbox_id[HF_ROW_ID], session_id[HF_ROW_ID], kind[16];
    bool denied;
    char *doc;
};
void hf_outbound_row_done(struct hf_outbound_row *o);
void hf_put_outbound(struct hf_meta_batch *b, const struct hf_outbound_row *o); /* seq is ignored */
/* How far the records file was read; in the same batch as its rows, so that each line becomes exactly one
 * row. */
void hf_set_outbound_cursor(struct hf_meta_batch *b, const char *file, int64_t offset);
int hf_get_outbound_cursor(struct hf_meta *m, char file[HF_ROW_ID], int64_t *ret_offset) HF_MUST_USE;
/* Newest last, those after after_seq; with after_seq < 0 the newest `limit`. sandbox_id or session_id NULL =
 * any. */
int hf_each_outbound(struct hf_meta *m, const char *tenant, const char *sandbox_id, const char *session_id,
                     int64_t after_seq, int limit, bool (*cb)(void *arg, const struct hf_outbound_row *o),
                     void *arg) HF_MUST_USE;
/* Forgets rows from before that time, and all but about the newest keep_rows. */
void hf_prune_outbound(struct hf_meta_batch *b, int64_t before_ms, int64_t keep_rows);
