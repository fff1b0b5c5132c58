/* holdfast.toml is the administrator's, but a parser that survives anything is easier to trust. */
#include "control/toml.h"

static int on_key(void *arg, const char *key, const struct hf_toml_value *v, struct hf_err *err)
{
    unsigned *sum = arg;
    (void)err;
    if (strlen(key) > HF_TOML_KEY_MAX || strlen(v->text) > HF_TOML_STRING_MAX || v->line == 0)
        __builtin_trap();
    *sum += (unsigned)strlen(key);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned sum = 0;
    struct hf_err err = {0};
    int r = hf_toml_parse((struct hf_str){(const char *)data, size}, on_key, &sum, &err);
    /* A failure always has its sentence, a success never. */
    if ((r < 0) != (err.msg[0] != '\0'))
        __builtin_trap();
    return 0;
}
