/* A store in a directory of its own, one a test. */
#pragma once

#include "store/meta.h"

struct env {
    char dir[64];
    struct hf_meta *m;
};

void open_meta(struct env *e);
int setup(void **state); /* cmocka's; *state is a struct env */
int teardown(void **state);
void now(struct env *e, struct hf_meta_batch *b); /* commits; fails the test when it can't */
