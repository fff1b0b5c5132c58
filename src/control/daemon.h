/* The daemon: store, driver, HTTP server, proxy and control plane on one loop. */
#pragma once

#include "control/config.h"

struct hf_module; /* control/module.h */

/* Runs until SIGTERM or SIGINT; running sandboxes stay under their supervisors. modules: parts above the
 * control plane that bring routes of their own (&hf_session_module of session/session.h …), ended by NULL;
 * may be NULL. 0, or -errno after the cause was put into err: -EBUSY when another daemon owns the data
 * directory, -EPERM for a non-loopback address without insecure_listen. When ready it logs one line
 * "listening" with url=… (the port that was taken). */
int hf_daemon_run(const struct hf_config *cfg, const struct hf_module *const *modules,
                  struct hf_err *err) HF_MUST_USE;
