/* The error object: what a person or an API client must read about a failure.
 *
 * Functions return 0 or a positive value on success and a negative errno on failure; where the cause
 * matters to a reader they take a last `struct hf_err *err` (may be NULL) and fill it on failure only.
 * Nothing is allocated. */
#pragma once

#include "base/base.h"

#define HF_ERR_MSG_MAX 320

struct hf_err {
    int r;      /* negative errno, 0 = no error */
    int status; /* HTTP status a server should answer with; 0 = derive from r */
    char msg[HF_ERR_MSG_MAX];
};

/* Fills err (when not NULL) and returns r, so that it can stand in a return statement. */
int hf_err_set(struct hf_err *err, int r, const char *fmt, ...) HF_PRINTF(3, 4);
/* As hf_err_set, with the HTTP status to answer. */
int hf_err_http(struct hf_err *err, int r, int status, const char *fmt, ...) HF_PRINTF(4, 5);
/* Puts context in front of the message that err already has; returns err->r (or -EIO when err is NULL). */
int hf_err_wrap(struct hf_err *err, const char *fmt, ...) HF_PRINTF(2, 3);
/* The HTTP status for err: err->status, else by errno (ENOENT 404, EEXIST 409, EINVAL 400, ENOSPC 507 ...).
 */
int hf_err_http_status(const struct hf_err *err);
