/* Path rules of the protocol: what a client's path means inside the box. Lexical only, no I/O. */
#include <limits.h>

#include "envd/users.h"

/* Cleans an absolute path in place: no "//", "." or "..", no slash at the end. ".." above the root is the
 * root, as the kernel has it. */
static void clean_abs(char *p)
{
    char *out = p; /* always just behind the last kept component */
    const char *in = p;
    while (*in) {
        while (*in == '/')
            in++;
        const char *end = in;
        while (*end && *end != '/')
            end++;
        size_t n = (size_t)(end - in);
        if (n == 2 && in[0] == '.' && in[1] == '.') {
            while (out > p && *--out != '/')
                ;
        } else if (n && !(n == 1 && in[0] == '.')) {
            *out++ = '/';
            memmove(out, in, n);
            out += n;
        }
        in = end;
    }
    if (out == p)
        *out++ = '/';
    *out = '\0';
}

int path_resolve(const char *home, const char *workdir, struct hf_str path, char **ret, struct hf_err *err)
{
    if (path.n && memchr(path.p, '\0', path.n))
        return hf_err_http(err, -EINVAL, 400, "path has a NUL byte");
    if (path.n >= PATH_MAX)
        return hf_err_http(err, -ENAMETOOLONG, 400, "path is longer than %d bytes", PATH_MAX - 1);
    const char *base = workdir && *workdir ? workdir : home;
    if (path.n && path.p[0] == '~') {
        if (path.n > 1 && path.p[1] != '/')
            return hf_err_http(
                err, -EINVAL, 400,
                "cannot expand user-specific home dir: write \"./~name\" for a file of that name");
        base = home;
        path.p++;
        path.n--;
    } else if (path.n && path.p[0] == '/') {
        base = "";
    }
    /* A working directory that is itself relative hangs below the root. */
    hf_auto_free char *full = hf_xasprintf("/%s/%.*s", base, (int)path.n, path.n ? path.p : "");
    clean_abs(full);
    if (strlen(full) >= PATH_MAX)
        return hf_err_http(err, -ENAMETOOLONG, 400, "path is longer than %d bytes", PATH_MAX - 1);
    *ret = hf_take_ptr(full);
    return 0;
}

int envd_resolve_path(const struct envd *e, const struct envd_user *u, struct hf_str path, char **ret,
                      struct hf_err *err)
{
    return path_resolve(u->home, e->default_workdir, path, ret, err);
}

const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

char *path_dir(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return hf_xstrdup("/");
    return hf_xstrndup(path, (size_t)(slash - path));
}

char *path_join(const char *base, const char *name)
{
    size_t n = strlen(base);
    bool has_slash = n && base[n - 1] == '/';
    return hf_xasprintf("%s%s%s", base, has_slash ? "" : "/", name);
}
