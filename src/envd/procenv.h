/* The environment of a child: starts empty, then PATH, HOME, USER, LOGNAME, where
 * the trust store is (ca.h), the box's (E2B_*), the user's
 * from /init, the request's; later ones win. */
#pragma once

#include "base/map.h"
#include "envd/envd.h"

struct procenv {
    char **v; /* "NAME=value", ends with NULL */
    size_t n, cap;
    struct hf_map index; /* name -> position + 1 */
};

/* 0, or -EINVAL for a name or value that can't stand in an environment. procenv_done in any case. */
int procenv_build(const struct envd *e, const struct envd_user *u, const json_t *request, struct procenv *ret,
                  struct hf_err *err) HF_MUST_USE;
/* Value of a name, "" when absent. */
const char *procenv_get(const struct procenv *env, const char *name);
void procenv_done(struct procenv *env);
/* What GET /envs shows: the box's and the user's. New reference. */
json_t *procenv_global(const struct envd *e);
