/* What to do with a row and a box at start. Pure: the table is tested as a table. */
#pragma once

#include "control/control.h"

enum hf_found_box { HF_BOX_NONE, HF_BOX_ALIVE, HF_BOX_DEAD };
enum hf_settle {
    HF_SETTLE_ADOPT,    /* it runs and may */
    HF_SETTLE_KILL,     /* end it with *ret_cause */
    HF_SETTLE_CONTINUE, /* its kill was under way: finish it */
    HF_SETTLE_FROZEN,   /* paused warm: adopt it, stopped */
    HF_SETTLE_THAWED,   /* it was on its way back from a warm pause: adopt it, running */
    HF_SETTLE_COLD,     /* paused in its image: a box that is there is none of it */
};
/* cold: the row names an image. exit_cause: of a dead box. same_boot: the row was written since the host
 * started. */
enum hf_settle hf_reconcile_decide(enum hf_state row, bool cold, enum hf_found_box box,
                                   enum hf_box_cause exit_cause, bool same_boot, const char **ret_cause,
                                   const char **ret_detail);
