/* Templates: import as a stream, removal, and what a crash left of either. Loop thread; the blocking parts
 * run on the worker pool. */
#pragma once

#include "control/control.h"

/* Limits. Each has a test. */
#define HF_IMPORT_QUEUE_HIGH (4u << 20) /* bytes that wait for the unpacking: the sender is held back */
#define HF_IMPORT_QUEUE_LOW (1u << 20)
#define HF_IMPORTS_MAX 2u /* at the same time; each keeps a worker thread busy */
#define HF_TEMPLATE_REMOVE_TRIES 50u
#define HF_TEMPLATE_REMOVE_RETRY_MS 200u /* while a box of the warm pool still lets go of it */

struct hf_import;
/* want_more: the queue is low again, go on sending. */
struct hf_import_ops {
    void (*want_more)(void *arg);
    /* The end, once: t is NULL with err. */
    void (*done)(void *arg, const struct hf_template_row *t, const struct hf_err *err);
};

/* Writes the row (importing) first, then unpacks what hf_import_feed brings. name without a tag; is_public:
 * other tenants may use it. */
struct hf_import *hf_import_begin(struct hf_control *c, const char *tenant, const char *name, const char *tag,
                                  bool is_public, const struct hf_import_ops *ops, void *arg,
                                  struct hf_err *err) HF_MUST_USE;
/* Copies. 1: enough for now, wait for want_more. */
int hf_import_feed(struct hf_import *imp, const char *p, size_t n) HF_MUST_USE;
void hf_import_end(struct hf_import *imp); /* the archive is complete */
void hf_import_cancel(struct hf_import *imp);

/* Its names go at once, its image when nothing uses it. -EBUSY through cb while a sandbox does. */
void hf_template_delete(struct hf_control *c, const struct hf_template_row *t, hf_done_cb cb, void *arg);
/* At start: removes what interrupted imports and deletions left. */
void hf_template_recover(struct hf_control *c);
