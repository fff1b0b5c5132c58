/* HTTPS beside the plain listener: loads the certificate, and again whenever it changes. Loop thread only. */
#pragma once

#include <uv.h>

#include "control/config.h"
#include "wire/http.h"

#define HF_FRONT_WATCH_MS                                                             \
    2000u /* the files are looked at this often; a change is taken at the second look \
           */
#define HF_FRONT_PEM_MAX (1u << 20)

struct hf_front;
/* Where no TLS address is set it does nothing and *ret is NULL. -ENOENT, -EINVAL … with the reason when the
 * certificate or key can't be used. */
int hf_front_open(uv_loop_t *loop, const struct hf_config *cfg, struct hf_http_server *server,
                  struct hf_front **ret, struct hf_err *err) HF_MUST_USE;
/* Reads the files again. A pair that can't be used is logged, and the old one stays. Open connections keep
 * theirs. NULL is fine. */
void hf_front_reload(struct hf_front *f);
/* NULL is fine; the memory goes once the loop has closed the timer. */
void hf_front_close(struct hf_front *f);
/* The files that the settings mean; malloc'ed. */
void hf_front_paths(const struct hf_config *cfg, char **ret_cert, char **ret_key);
