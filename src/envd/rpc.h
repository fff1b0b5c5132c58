/* Connect RPC (unary, server-stream, client-stream) over wire/http, JSON and binary codec.
 *
 * Handlers see proto3-JSON objects only (jansson, lowerCamel keys, bytes as base64 text, int64 as text or
 * number); the binary codec is transcoded at the edge by the tables of pbjson.h. Protocol: connectrpc.com
 * "Connect Protocol Reference"; the subset is section 3.2 of the protocol notes. */
#pragma once

#include <jansson.h>

#include "envd/envd.h"
#include "envd/pbjson.h"
#include "wire/http.h"

/* Limits. All of envd shares the box's memory with the user's processes. */
#define RPC_MESSAGE_MAX (16u * 1024u * 1024u)  /* one request message; test: rpc limits */
#define RPC_MESSAGES_MAX (64u * 1024u * 1024u) /* all messages that are arriving; beyond it … */
#define RPC_MESSAGE_SMALL (64u * 1024u)        /* … only those up to this size are taken */
#define RPC_QUEUE_HIGH (256u * 1024u)          /* bytes queued to one stream before rpc_send says stop … */
#define RPC_QUEUES_MAX (16u * 1024u * 1024u)  /* … while all streams together keep at most this, else … */
#define RPC_QUEUE_SMALL (64u * 1024u)         /* … this */
#define RPC_ANSWERS_MAX (96u * 1024u * 1024u) /* all output that waits, before a large answer is refused */

enum rpc_code {
    RPC_CANCELED = 1,
    RPC_UNKNOWN,
    RPC_INVALID_ARGUMENT,
    RPC_DEADLINE_EXCEEDED,
    RPC_NOT_FOUND,
    RPC_ALREADY_EXISTS,
    RPC_PERMISSION_DENIED,
    RPC_RESOURCE_EXHAUSTED,
    RPC_FAILED_PRECONDITION,
    RPC_ABORTED,
    RPC_OUT_OF_RANGE,
    RPC_UNIMPLEMENTED,
    RPC_INTERNAL,
    RPC_UNAVAILABLE,
    RPC_DATA_LOSS,
    RPC_UNAUTHENTICATED,
};

enum rpc_kind { RPC_UNARY, RPC_SERVER_STREAM, RPC_CLIENT_STREAM };

struct rpc_call; /* one call; valid until on_close */

/* How a handler follows a call. */
struct rpc_ops {
    void (*on_message)(struct rpc_call *c, json_t *msg); /* client stream: each message (borrowed) */
    void (*on_end)(struct rpc_call *c);                  /* client stream: all messages arrived */
    void (*on_drain)(struct rpc_call *c);                /* rpc_send said stop; go on now */
    void (*on_timeout)(struct rpc_call *c); /* Connect-Timeout-Ms ran out; the call is failed with
                                               deadline_exceeded right after it returns */
    void (*on_close)(struct rpc_call *c);   /* the call is over (finished, or the client went away) */
};

struct rpc_method {
    const char *path; /* "/process.Process/Start" */
    enum rpc_kind kind;
    const struct pb_msg *in, *out;
    /* Unary and server stream: the request message (borrowed). Client stream: msg is NULL, messages follow
     * through ops. The user of Basic auth is in rpc_user. */
    void (*fn)(struct rpc_call *c, json_t *msg);
};

/* Tables of the services; each ends with a path of NULL. */
extern const struct rpc_method process_methods[];    /* process.c */
extern const struct rpc_method filesystem_methods[]; /* fsrpc.c */

/* Entry from the router in main.c: req is a POST whose path is m->path. */
void rpc_handle(struct envd *e, const struct rpc_method *m, struct hf_req *req);

void rpc_set_ops(struct rpc_call *c, const struct rpc_ops *ops, void *data);
void *rpc_data(const struct rpc_call *c);
struct envd *rpc_envd(const struct rpc_call *c);
/* User name from Basic auth, or envd's default user. */
const char *rpc_user(const struct rpc_call *c);
/* Request header (lower-case name). */
struct hf_str rpc_header(const struct rpc_call *c, const char *name);

/* A header of the answer that is to come. */
void rpc_answer_header(struct rpc_call *c, const char *name, const char *value);
/* Unary / client stream: the answer (steals the reference). */
void rpc_reply(struct rpc_call *c, json_t *msg);
/* Unary: the answer, encoded already in the call's codec (rpc_is_json tells which); p is copied. */
void rpc_reply_raw(struct rpc_call *c, const void *p, size_t n);
/* Stream: one message (steals the reference); 1 when too much waits: stop until on_drain. */
int rpc_send(struct rpc_call *c, json_t *msg);
/* Stream: one message that is encoded already in the call's codec (rpc_is_json tells which). */
int rpc_send_raw(struct rpc_call *c, const void *p, size_t n);
bool rpc_is_json(const struct rpc_call *c);
/* Seconds of silence after which a stream sends a keepalive (header Keepalive-Ping-Interval, default 90). */
unsigned rpc_keepalive_s(const struct rpc_call *c);
/* Connect-Timeout-Ms; 0 = none. */
uint64_t rpc_timeout_ms(const struct rpc_call *c);
/* Client stream: stops and restarts the arrival of messages (those read already still come). */
void rpc_pause_input(struct rpc_call *c);
void rpc_resume_input(struct rpc_call *c);
size_t rpc_queued(const struct rpc_call *c);
/* Stream: ends it without error. */
void rpc_finish(struct rpc_call *c);
/* Any kind: the Connect error; on a stream it goes into the end-stream envelope, HTTP stays 200. */
void rpc_fail(struct rpc_call *c, enum rpc_code code, const char *fmt, ...) HF_PRINTF(3, 4);
/* Cuts the stream's connection. */
void rpc_abort(struct rpc_call *c);
