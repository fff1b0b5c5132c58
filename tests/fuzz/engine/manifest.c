/* The manifest of a snapshot from another machine. */
#include "engine/disk/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was taken is written the same way again. */
static void parse(const char *text, size_t n)
{
    hf_auto_manifest struct hf_manifest m = {0}, back = {0};
    if (hf_manifest_parse(text, n, &m, NULL) < 0)
        return;
    hf_auto_free char *a = hf_manifest_text(&m);
    if (!a || hf_manifest_parse(a, strlen(a), &back, NULL) < 0 || m.n_parts == 0)
        abort();
    hf_auto_free char *b = hf_manifest_text(&back);
    for (size_t i = 0; i < m.n_parts; i++)
        if (!hf_part_name_good(m.parts[i].name))
            abort();
    if (!b || strcmp(a, b) != 0)
        abort();
}

/* Puts an honest checksum in, so that the fuzzer gets behind it. */
static void parse_honest(const char *text, size_t n)
{
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    (void)json_object_del(j, "check");
    char *plain = json_is_object(j) ? json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (plain) {
        unsigned char sum[HF_SHA256_LEN];
        char hex[HF_HASH_HEX];
        hf_sha256_of(plain, strlen(plain), sum);
        hf_hex(sum, sizeof(sum), hex);
        (void)json_object_set_new(j, "check", json_string(hex));
        hf_auto_free char *whole = json_dumps(j, 0);
        if (whole)
            parse(whole, strlen(whole));
    }
    free(plain);
    json_decref(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse((const char *)data, size);
    parse_honest((const char *)data, size);
    return 0;
}
