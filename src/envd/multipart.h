/* Push parser of multipart bodies (RFC 2046, RFC 7578): feed bytes in pieces of any size, get part heads,
 * data and ends. Pure, no I/O; holds at most one part head. Strict: lines end with CRLF, the last boundary
 * must come. Fuzzed by tests/fuzz/envd/files/multipart.c. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

/* Limits; each has a test in tests/unit/envd/files. */
#define MULTIPART_BOUNDARY_MAX 70u           /* RFC 2046, 5.1.1 */
#define MULTIPART_HEAD_MAX (16u * 1024u)     /* bytes of one part's header lines */
#define MULTIPART_HEADERS_MAX 32u            /* header lines of one part */
#define MULTIPART_PARTS_MAX 10000u           /* parts of one body */
#define MULTIPART_PREAMBLE_MAX (64u * 1024u) /* bytes before the first boundary */

/* Any callback may return a negative errno (and fill err): the parse stops and multipart_feed returns it. */
struct multipart_events {
    /* A part starts. name, filename: decoded parameters of Content-Disposition; {NULL,0} when absent.
     * Valid during the call. */
    int (*on_part)(void *self, struct hf_str name, struct hf_str filename, struct hf_err *err);
    int (*on_data)(void *self, const char *p, size_t n, struct hf_err *err);
    int (*on_part_end)(void *self, struct hf_err *err);
};

struct multipart {
    const struct multipart_events *events;
    void *self;
    char delim[MULTIPART_BOUNDARY_MAX + 5]; /* "\r\n--" boundary */
    size_t delim_n;
    size_t held;     /* bytes of delim that matched at the end of the last piece */
    bool held_start; /* the first two of them stand for the start of the body or part: nobody's data */
    enum { MP_PREAMBLE, MP_AFTER_DELIM, MP_HEAD, MP_DATA, MP_EPILOGUE } state;
    size_t parts, preamble;
    struct hf_buf line; /* rest of a boundary's line, or the head so far */
};

/* content_type is the header's value. -EINVAL when it has no usable boundary. */
int multipart_init(struct multipart *m, struct hf_str content_type, const struct multipart_events *events,
                   void *self, struct hf_err *err) HF_MUST_USE;
void multipart_done(struct multipart *m);
/* 0, -EINVAL for a malformed body, -EMSGSIZE over a limit, or a callback's error. */
int multipart_feed(struct multipart *m, const char *p, size_t n, struct hf_err *err) HF_MUST_USE;
/* The body is over: -EINVAL unless the last boundary was seen. */
int multipart_finish(struct multipart *m, struct hf_err *err) HF_MUST_USE;

/* Value of parameter `name` of a header such as Content-Type: token or quoted-string, appended to out.
 * 1 found, 0 absent, -EINVAL. */
int header_param(struct hf_str value, const char *name, struct hf_buf *out) HF_MUST_USE;
