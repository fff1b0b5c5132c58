/* What the library in the box and the supervisor agree on. */
#pragma once

#define HF_RESEED_PATH "/run/holdfast/reseed.so"        /* in the box */
#define HF_RESEED_GENERATION "/run/holdfast/generation" /* decimal, rewritten in place */
#define HF_RESEED_SIGNAL 61                             /* to clones that catch it; a real-time signal */
