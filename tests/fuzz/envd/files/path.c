/* Path rules: whatever a client sends, the result is an absolute, clean path; cleaning it again changes
 * nothing. */
#include <limits.h>

#include "envd/users.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *p)
{
    if (p[0] != '/' || strlen(p) >= PATH_MAX || strstr(p, "//"))
        abort();
    size_t n = strlen(p);
    if (n > 1 && p[n - 1] == '/')
        abort();
    for (const char *c = p; *c; c++) {
        bool dot = strncmp(c, "/.", 2) == 0 && (c[2] == '/' || !c[2]);
        bool dots = strncmp(c, "/..", 3) == 0 && (c[3] == '/' || !c[3]);
        if (dot || dots)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const workdirs[] = {NULL, "", "/srv/./dir/..", "relative"};
    if (!size)
        return 0;
    hf_auto_free char *copy = hf_xmalloc(size);
    memcpy(copy, data + 1, size - 1);
    char *got = NULL, *again = NULL;
    const char *workdir = workdirs[data[0] % HF_ARRAY_LEN(workdirs)];
    if (path_resolve("/home/user", workdir, (struct hf_str){copy, size - 1}, &got, NULL) < 0)
        return 0;
    check(got);
    hf_auto_free char *dir = path_dir(got), *joined = path_join(dir, path_base(got));
    if (path_resolve("/x", NULL, hf_str_c(got), &again, NULL) < 0 || strcmp(got, again) != 0)
        abort();
    if (strcmp(got, "/") != 0 && strcmp(joined, got) != 0)
        abort();
    free(got);
    free(again);
    return 0;
}
