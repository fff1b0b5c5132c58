#include "envd/procenv.h"

#include "envd/ca.h"
#include "envd/spawn.h"
#include "preload/reseed.h"

static void set(struct procenv *env, const char *name, const char *value)
{
    struct hf_str key = hf_str_c(name);
    char *entry = hf_xasprintf("%s=%s", name, value);
    uintptr_t at = (uintptr_t)hf_map_get(&env->index, key);
    if (at) {
        free(env->v[at - 1]);
        env->v[at - 1] = entry;
        return;
    }
    if (env->n + 2 > env->cap) {
        env->cap = env->cap ? env->cap * 2 : 32;
        env->v = hf_xrealloc(env->v, env->cap * sizeof(*env->v));
    }
    env->v[env->n++] = entry;
    env->v[env->n] = NULL;
    (void)hf_map_put(&env->index, key, (void *)env->n);
}

static int set_all(struct procenv *env, const json_t *vars, struct hf_err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vars, name, value)
    {
        const char *text = json_string_value(value);
        if (!text || strlen(text) != json_string_length(value))
            return hf_err_set(err, -EINVAL,
                              "the environment variable \"%.100s\" must be text without NUL bytes", name);
        if (!name[0] || strchr(name, '='))
            return hf_err_set(err, -EINVAL, "\"%.100s\" can't be the name of an environment variable", name);
        set(env, name, text);
    }
    return 0;
}

json_t *procenv_global(const struct envd *e)
{
    json_t *all = json_object();
    json_object_set_new(all, "E2B_SANDBOX", json_string("true"));
    if (e->sandbox_id)
        json_object_set_new(all, "E2B_SANDBOX_ID", json_string(e->sandbox_id));
    if (e->template_id)
        json_object_set_new(all, "E2B_TEMPLATE_ID", json_string(e->template_id));
    if (e->env)
        (void)json_object_update(all, e->env);
    return all;
}

int procenv_build(const struct envd *e, const struct envd_user *u, const json_t *request, struct procenv *ret,
                  struct hf_err *err)
{
    const char *path = getenv("PATH");
    json_auto_t *global = procenv_global(e);
    *ret = (struct procenv){0};
    set(ret, "PATH", path && path[0] ? path : SPAWN_PATH_DEFAULT);
    set(ret, "HOME", u->home);
    set(ret, "USER", u->name);
    set(ret, "LOGNAME", u->name);
    for (const char *const *name = ca_variables; e->ca_bundle && *name; name++)
        set(ret, *name, ca_variable_value(*name, e->ca_bundle));
    if (access(HF_RESEED_PATH, R_OK) == 0)
        set(ret, "LD_PRELOAD", HF_RESEED_PATH);
    int r = set_all(ret, global, err);
    return r == 0 && request ? set_all(ret, request, err) : r;
}

const char *procenv_get(const struct procenv *env, const char *name)
{
    uintptr_t at = (uintptr_t)hf_map_get(&env->index, hf_str_c(name));
    return at ? env->v[at - 1] + strlen(name) + 1 : "";
}

void procenv_done(struct procenv *env)
{
    for (size_t i = 0; i < env->n; i++)
        free(env->v[i]);
    free(env->v);
    hf_map_done(&env->index);
    *env = (struct procenv){0};
}
