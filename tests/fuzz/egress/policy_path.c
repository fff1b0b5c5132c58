/* Fuzz: forms of a path. Neither holds a dot segment or a control byte, and both stay as they are. */
#include "egress/policy_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct hf_buf *b)
{
    if (b->n == 0 || b->p[0] != '/')
        abort();
    for (size_t i = 0; i < b->n; i++) {
        if ((unsigned char)b->p[i] < 0x20 || b->p[i] == 0x7f)
            abort();
        bool begins = b->p[i] == '/' && i + 1 < b->n && b->p[i + 1] == '.';
        if (!begins)
            continue;
        size_t dots = i + 2 < b->n && b->p[i + 2] == '.' ? 2 : 1;
        if (i + 1 + dots == b->n || b->p[i + 1 + dots] == '/')
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_path_forms f, again;
    if (hf_path_forms((struct hf_str){(const char *)data, size}, &f) < 0)
        return 0;
    check(&f.strict);
    check(&f.loose);
    if (hf_path_forms((struct hf_str){f.strict.p, f.strict.n}, &again) < 0)
        abort();
    if (again.strict.n != f.strict.n || memcmp(again.strict.p, f.strict.p, f.strict.n) != 0)
        abort();
    if (memmem(f.loose.p, f.loose.n, "//", 2))
        abort();
    hf_path_forms_done(&again);
    hf_path_forms_done(&f);
    return 0;
}
