/* Named kill points for fault-injection tests.
 *
 * HOLDFAST_KILLPOINT=name makes the process that reaches the point send itself SIGKILL;
 * HOLDFAST_KILLPOINT=name:N does so at the Nth time. Without the variable a point costs one load. */
#pragma once

#include "base/base.h"

/* name is a string literal "area.step"; tests find the list by grepping for hf_killpoint("…"). */
void hf_killpoint(const char *name);
