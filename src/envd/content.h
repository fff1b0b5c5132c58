/* HTTP's rules about representations of a file (RFC 9110): encodings, ranges, conditions, names and types.
 * Pure. */
#pragma once

#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"

#define CONTENT_RANGE_HEADER_MAX 4096u /* bytes of a Range header; longer ones are ignored */
#define CONTENT_SNIFF_MAX 512u         /* bytes that decide the type of a file without a known extension */
#define CONTENT_ETAG_MAX 48

enum content_range {
    CONTENT_RANGE_NONE, /* no, several or unknown ranges: the whole file is the answer */
    CONTENT_RANGE_ONE,
    CONTENT_RANGE_BAD, /* 416 */
};
/* header {NULL,0} = absent. For ONE: first byte and length, length > 0. */
enum content_range content_range(struct hf_str header, uint64_t size, uint64_t *ret_first, uint64_t *ret_n);

enum content_coding {
    CONTENT_IDENTITY,
    CONTENT_GZIP,       /* gzip is what the client asks for */
    CONTENT_GZIP_MAYBE, /* gzip is one of several codings that it can read, as every fetch() says by itself */
    CONTENT_NONE,       /* 406: neither is acceptable */
};
enum content_coding content_accept(struct hf_str accept_encoding);

/* Content-Encoding of a request body: 0 identity, 1 gzip, -EINVAL with err. */
int content_encoding(struct hf_str header, struct hf_err *err) HF_MUST_USE;

/* Strong validator from modification time (ns), size and inode; quoted. */
void content_etag(const struct stat *st, char out[CONTENT_ETAG_MAX]);
#define CONTENT_DATE_MAX 32
/* "Sun, 06 Nov 1994 08:49:37 GMT". */
void content_date(time_t t, char out[CONTENT_DATE_MAX]);
/* Accepts the format above only, as RFC 9110 asks of senders; -EINVAL otherwise. */
int content_date_parse(struct hf_str s, time_t *ret) HF_MUST_USE;
/* True when 304 is the answer: If-None-Match, else If-Modified-Since. Absent headers are {NULL,0}. */
bool content_not_modified(struct hf_str if_none_match, struct hf_str if_modified_since, const char *etag,
                          time_t mtime);
/* False when If-Range says that the client's part is of another version, so that Range must be ignored. */
bool content_if_range(struct hf_str if_range, const char *etag, time_t mtime);

/* Media type by extension, else from the first bytes of the content (may be empty). */
const char *content_type(const char *name, const void *head, size_t n);
/* `inline; filename=name`, quoted or RFC 8187-encoded where needed. */
int content_disposition(const char *name, struct hf_buf *out) HF_MUST_USE;
