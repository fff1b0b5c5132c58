/* Export and import of a snapshot as one file, with backpressure both ways. Loop thread only. */
#pragma once

#include "control/persist.h"

#define HF_SNAPSHOT_QUEUE_HIGH (1u << 20) /* bytes that wait for the import: the sender is held back */
#define HF_SNAPSHOT_QUEUE_LOW (1u << 18)

struct hf_snapshot_stream;
struct hf_snapshot_stream_ops {
    /* Export: a piece of the file. 1: enough for now, until hf_snapshot_stream_more. */
    int (*data)(void *arg, const char *p, size_t n);
    /* Import: the queue is low again, go on sending. */
    void (*want_more)(void *arg);
    /* The end, once; row is NULL with err. */
    void (*done)(void *arg, const struct hf_snapshot_row *row, const struct hf_err *err);
};

struct hf_snapshot_stream *hf_snapshot_export_begin(struct hf_control *c, const struct hf_snapshot_row *row,
                                                    bool with_template,
                                                    const struct hf_snapshot_stream_ops *ops, void *arg,
                                                    struct hf_err *err) HF_MUST_USE;
void hf_snapshot_stream_more(struct hf_snapshot_stream *s);
/* name "" = none. The row is written first. */
struct hf_snapshot_stream *hf_snapshot_import_begin(struct hf_control *c, const char *tenant,
                                                    const char *name,
                                                    const struct hf_snapshot_stream_ops *ops, void *arg,
                                                    struct hf_err *err) HF_MUST_USE;
/* Copies. 1: enough for now, wait for want_more. */
int hf_snapshot_stream_feed(struct hf_snapshot_stream *s, const char *p, size_t n) HF_MUST_USE;
void hf_snapshot_stream_end(struct hf_snapshot_stream *s); /* the file is complete */
void hf_snapshot_stream_cancel(struct hf_snapshot_stream *s);
