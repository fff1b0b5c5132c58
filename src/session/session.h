/* The session layer, first part: /v1/sessions. A session is named agent:user:conversation, owns a workspace
 * volume that outlives every sandbox, and at most one sandbox at a time. */
#pragma once

#include "control/module.h"

/* Give it to hf_daemon_run. */
extern const struct hf_module hf_session_module;
