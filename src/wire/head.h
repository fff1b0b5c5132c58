/* The strict head scanner: pure, push-style, no I/O and no allocation. It is what stands between two tenants
 * that share a connection, so it accepts only what every parser reads in the same way.
 *
 * Feed bytes in pieces of any size; the scanner keeps offsets only. When it says DONE, put the bytes of the
 * head into one piece of memory and call hf_head_check_request or hf_head_check_response. */
#pragma once

#include "base/base.h"
#include "wire/http.h"

/* Headers that the code itself looks at. */
enum hf_header_id {
    HF_H_OTHER,
    HF_H_HOST,
    HF_H_CONTENT_LENGTH,
    HF_H_TRANSFER_ENCODING,
    HF_H_CONNECTION,
    HF_H_KEEP_ALIVE,
    HF_H_PROXY_CONNECTION,
    HF_H_UPGRADE,
    HF_H_EXPECT,
    HF_H_TE,
    HF_H_TRAILER,
    HF_H_E2B_ID,
    HF_H_E2B_PORT,
    HF_H_TRAFFIC_TOKEN,
    HF_H_FORWARDED_FOR,
    HF_H_FORWARDED_PROTO,
    HF_H_FORWARDED_HOST,
    HF_H_FORWARDED_OTHER, /* Forwarded, X-Real-IP, X-Forwarded-Port */
    HF_H_COOKIE,
    HF_H_PREVIEW, /* hf-preview, see proxy/proxy.h */
    HF_H_CUBE_TOKEN,
    HF_H_COUNT,
};

struct hf_hdr {
    uint16_t name, name_n, value, value_n; /* offsets into the head; the value is trimmed */
    uint8_t id;                            /* enum hf_header_id */
};

enum hf_head_result { HF_HEAD_MORE, HF_HEAD_DONE, HF_HEAD_BAD };

#define HF_BODY_CHUNKED (-1)
#define HF_BODY_UNTIL_EOF (-2) /* responses only */

struct hf_head {
    /* the scanner's own */
    uint8_t state, response, lead;
    uint32_t pos, mark, value_end;
    /* result of the scan */
    uint8_t minor; /* HTTP/1.minor */
    uint16_t n;
    uint16_t status; /* of a response */
    uint16_t method, method_n, target, target_n;
    uint16_t bad_status; /* the HTTP status to answer when it is BAD or the check fails */
    const char *why;
    /* result of the check */
    uint8_t first[HF_H_COUNT]; /* index + 1 of the first header with that id */
    bool keep_alive, upgrade, expect;
    int64_t length; /* of the body, or HF_BODY_* */
    struct hf_str path, query, host;
    struct hf_hdr hdr[HF_HTTP_HEADERS_MAX];
};

void hf_head_init(struct hf_head *h, bool response);
/* Consumes at most n bytes and never one past the head's end; *ret_used is the number. */
enum hf_head_result hf_head_feed(struct hf_head *h, const char *p, size_t n, size_t *ret_used);
/* What the scanner cannot see: framing, Host, target. base: the head's h->pos bytes. 0, or -EINVAL with
 * bad_status and why. */
int hf_head_check_request(struct hf_head *h, const char *base) HF_MUST_USE;
/* for_head: it answers a HEAD request. */
int hf_head_check_response(struct hf_head *h, const char *base, bool for_head) HF_MUST_USE;

static inline struct hf_str hf_head_value(const struct hf_head *h, const char *base, enum hf_header_id id)
{
    if (!h->first[id])
        return (struct hf_str){NULL, 0};
    const struct hf_hdr *e = &h->hdr[h->first[id] - 1];
    return (struct hf_str){base + e->value, e->value_n};
}

/* list is a comma-separated header value; token in lower case. */
bool hf_token_list_has(struct hf_str list, const char *token);
/* True when s is a valid header name (RFC 9110 token). */
bool hf_is_token(struct hf_str s);
/* True when s can stand in a header line: no control bytes but the tab. */
bool hf_is_header_value(struct hf_str s);
