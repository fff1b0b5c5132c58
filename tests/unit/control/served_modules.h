/* The modules that the daemon under test is given; each test program defines them. */
#pragma once

#include "control/module.h"

extern const struct hf_module *const hf_served_modules[];
