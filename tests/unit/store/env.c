#include "env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/path.h"

void open_meta(struct env *e)
{
    struct hf_err err = {0};
    if (hf_meta_open(e->dir, NULL, &e->m, &err) < 0)
        fail_msg("%s", err.msg);
}

int setup(void **state)
{
    struct env *e = hf_new(struct env);
    (void)snprintf(e->dir, sizeof(e->dir), "/tmp/hf-store-XXXXXX");
    assert_non_null(mkdtemp(e->dir));
    open_meta(e);
    *state = e;
    return 0;
}

int teardown(void **state)
{
    struct env *e = *state;
    hf_meta_close(e->m, NULL, NULL);
    assert_int_equal(hf_remove_tree(e->dir), 0);
    free(e);
    return 0;
}

void now(struct env *e, struct hf_meta_batch *b)
{
    struct hf_err err = {0};
    if (hf_meta_commit_now(e->m, b, &err) < 0)
        fail_msg("%s", err.msg);
}
