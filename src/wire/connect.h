/* Connect protocol envelopes: push parser and writer, no I/O. Shared by envd (server) and the CLI (client).
 *
 * An envelope is one flag byte, a 4-byte big-endian length and that many bytes. Flag 0x02 marks the last
 * envelope of a response, whose payload is JSON in every codec: {} or {"error":{"code","message"}}.
 * Source: connectrpc.com "Connect Protocol Reference". */
#pragma once

#include "base/buf.h"

#define HF_CONNECT_FLAG_COMPRESSED 0x01u
#define HF_CONNECT_FLAG_END 0x02u
#define HF_CONNECT_HEAD 5u /* bytes in front of a payload */

struct hf_connect_parser {
    struct hf_buf payload; /* payload.max is the limit of one message */
    unsigned char head[HF_CONNECT_HEAD];
    size_t head_n;
    uint32_t want; /* payload length, once head_n == HF_CONNECT_HEAD */
};

/* One envelope arrived; payload is NUL-terminated and valid during the call. Return 0 to go on; anything
 * else stops hf_connect_feed, which returns it (the parser must not be fed again then). */
typedef int (*hf_connect_cb)(void *arg, unsigned flags, struct hf_str payload);

void hf_connect_init(struct hf_connect_parser *p, size_t message_max);
void hf_connect_done(struct hf_connect_parser *p);
/* 0, -EMSGSIZE (an envelope longer than message_max), -EBADMSG (a flag that the protocol does not know), or
 * what cb returned. Not to be called again after a failure. */
int hf_connect_feed(struct hf_connect_parser *p, const void *data, size_t n, hf_connect_cb cb,
                    void *arg) HF_MUST_USE;
/* True in the middle of an envelope: the end of the input here means it was cut. */
bool hf_connect_partial(const struct hf_connect_parser *p);

/* Writes the head of an envelope. */
void hf_connect_head(unsigned char out[HF_CONNECT_HEAD], unsigned flags, uint32_t n);
/* Appends one whole envelope; -EMSGSIZE as hf_buf_add. */
int hf_connect_add(struct hf_buf *b, unsigned flags, const void *p, size_t n) HF_MUST_USE;
