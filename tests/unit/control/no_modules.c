/* For test programs whose daemon has no modules. */
#include "served_modules.h"

#include <stddef.h>

const struct hf_module *const hf_served_modules[] = {NULL};
