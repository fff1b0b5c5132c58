/* HTTP/1.1 client for netd's control socket: one kept connection, one exchange at a time, in order. Loop
 * thread only. Requests may hold secrets: their text is wiped. */
#pragma once

#include <jansson.h>
#include <uv.h>

#include "base/err.h"

#define HF_NETC_ANSWER_MS 2000u       /* an exchange must be over within, or the connection is given up */
#define HF_NETC_ANSWER_MAX (8u << 20) /* bytes of an answer */

/* Exactly once, later than the call. err NULL: 2xx, body is the JSON of the answer (NULL when there is none).
 */
typedef void (*hf_netc_cb)(void *arg, const json_t *body, const struct hf_err *err);

struct hf_netc;
struct hf_netc_ops {
    void (*up)(void *self);                          /* connected */
    void (*down)(void *self, bool connected, int r); /* not (any more); every request has failed already */
};
struct hf_netc *hf_netc_new(uv_loop_t *loop, const char *socket_path, const struct hf_netc_ops *ops,
                            void *self) HF_MUST_USE;
/* Answers with up or down, later. A no-op while there is a connection or an attempt. */
void hf_netc_connect(struct hf_netc *c);
bool hf_netc_up(const struct hf_netc *c);
/* The process at the other end (SO_PEERCRED), 0 when not connected. */
int hf_netc_peer(const struct hf_netc *c);
/* Only while up. Takes body (malloc'ed, n bytes; may be NULL). */
void hf_netc_send(struct hf_netc *c, const char *method, const char *path, char *body, size_t n,
                  hf_netc_cb cb, void *arg);
/* Gives the connection up: requests fail, then down(). */
void hf_netc_drop(struct hf_netc *c, int r);
/* As hf_netc_drop without down(); closed(arg) once the loop let go. */
void hf_netc_free(struct hf_netc *c, void (*closed)(void *arg), void *arg);
