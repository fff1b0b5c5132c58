#include "engine/disk/manifest.h"

#include <inttypes.h>
#include <stdio.h>

/* Names in the directory that are no parts. */
static const char *const reserved[] = {"manifest.json", "manifest.tmp", "stamps",      "stamps.tmp",
                                       "leaves",        "leaves.tmp",   "template.img"};

void hf_snapshot_meta_done(struct hf_snapshot_meta *m)
{
    json_decref(m->config);
    m->config = NULL;
}

void hf_manifest_done(struct hf_manifest *m)
{
    hf_snapshot_meta_done(&m->meta);
    json_decref(m->host.cpu);
    free(m->parts);
    *m = (struct hf_manifest){0};
}

bool hf_part_name_good(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > HF_SNAPSHOT_PART_NAME_MAX)
        return false;
    unsigned depth = 0;
    for (const char *c = name;; c++) {
        size_t len = strspn(c, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+-");
        if (len == 0 || ++depth > HF_SNAPSHOT_PART_DEPTH_MAX || (len == 1 && c[0] == '.') ||
            (len == 2 && c[0] == '.' && c[1] == '.'))
            return false;
        c += len;
        if (!*c)
            break;
        if (*c != '/')
            return false;
    }
    for (size_t i = 0; i < HF_ARRAY_LEN(reserved); i++)
        if (strcmp(name, reserved[i]) == 0)
            return false;
    return true;
}

static int damaged(struct hf_err *err, const char *what)
{
    return hf_err_set(err, -EUCLEAN, "the manifest is damaged: %s", what);
}

/* 1 to max - 1 of [a-z0-9-]; empty only when allowed. */
static bool take_id(const char *s, char *out, size_t max, bool may_be_empty)
{
    size_t n = strlen(s);
    if ((n == 0 && !may_be_empty) || n >= max || strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != n ||
        s[0] == '-')
        return false;
    memcpy(out, s, n + 1);
    return true;
}

static bool take_hash(const char *s, char out[HF_HASH_HEX])
{
    if (strlen(s) != HF_HASH_HEX - 1 || strspn(s, "0123456789abcdef") != HF_HASH_HEX - 1)
        return false;
    memcpy(out, s, HF_HASH_HEX);
    return true;
}

static bool take_text(const char *s, char *out, size_t max)
{
    size_t n = strlen(s);
    if (n == 0 || n >= max)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' || (unsigned char)s[i] > '~')
            return false;
    memcpy(out, s, n + 1);
    return true;
}

static int take_part(json_t *j, struct hf_snapshot_part *p, struct hf_err *err)
{
    const char *name = NULL;
    json_int_t bytes = -1;
    json_t *hash = NULL;
    if (json_unpack(j, "{s:s, s:I, s:o!}", "name", &name, "bytes", &bytes, "sha256", &hash) < 0)
        return damaged(err, "a part lacks its name, bytes or sha256, or has something else");
    if (!hf_part_name_good(name))
        return damaged(err, "a part has a name that is refused");
    (void)snprintf(p->name, sizeof(p->name), "%s", name);
    p->bytes = (uint64_t)bytes;
    if (bytes < 0 || p->bytes > HF_SNAPSHOT_PART_BYTES_MAX)
        return hf_err_set(err, -EUCLEAN, "the manifest is damaged: the size of part %s", name);
    if (!json_is_null(hash) && (!json_is_string(hash) || !take_hash(json_string_value(hash), p->sha256)))
        return hf_err_set(err, -EUCLEAN, "the manifest is damaged: the hash of part %s", name);
    return 0;
}

/* Strictly ascending, so none is there twice. */
static int take_parts(json_t *list, struct hf_manifest *m, struct hf_err *err)
{
    size_t n = json_array_size(list);
    if (n == 0 || n > HF_SNAPSHOT_PART_MAX)
        return damaged(err, "it has no parts, or too many");
    m->parts = hf_xcalloc(n, sizeof(*m->parts));
    bool disk = false, memory = false;
    for (size_t i = 0; i < n; i++) {
        struct hf_snapshot_part *p = &m->parts[i];
        int r = take_part(json_array_get(list, i), p, err);
        if (r < 0)
            return r;
        if (i > 0 && strcmp(p[-1].name, p->name) >= 0)
            return hf_err_set(err, -EUCLEAN,
                              "the manifest is damaged: part %s is there twice or out of order", p->name);
        memory |= strncmp(p->name, "mem/", 4) == 0;
        if (strcmp(p->name, "disk.img") != 0)
            continue;
        disk = true;
        if (p->bytes != m->meta.disk_bytes)
            return damaged(err, "the size of disk.img is not the disk's");
    }
    m->n_parts = n;
    if (!disk)
        return damaged(err, "it has no disk.img");
    return memory == m->meta.memory ? 0 : damaged(err, "its kind and its parts below mem/ disagree");
}

static int take_host(json_t *j, struct hf_snapshot_host *h, struct hf_err *err)
{
    const char *machine = NULL, *kernel = NULL;
    json_int_t page = 0, criu = 0;
    json_t *cpu = NULL;
    if (json_unpack(j, "{s:s, s:s, s:I, s:I, s:o!}", "machine", &machine, "kernel", &kernel, "page_size",
                    &page, "criu_image", &criu, "cpu", &cpu) < 0 ||
        !take_text(machine, h->machine, sizeof(h->machine)) ||
        !take_text(kernel, h->kernel, sizeof(h->kernel)) || page < 4096 || page > (1 << 20) || criu < 0 ||
        criu > UINT16_MAX)
        return damaged(err, "what it says about its host");
    if (!json_is_array(cpu) || json_array_size(cpu) > HF_SNAPSHOT_CPU_MAX)
        return damaged(err, "the list of processor features");
    size_t i;
    json_t *one;
    json_array_foreach(cpu, i, one)
    {
        char ignored[64];
        if (!json_is_string(one) || !take_text(json_string_value(one), ignored, sizeof(ignored)))
            return damaged(err, "the name of a processor feature");
    }
    h->page_size = (uint32_t)page;
    h->criu_image = (uint32_t)criu;
    h->cpu = json_incref(cpu);
    return 0;
}

static int take_meta(json_t *j, struct hf_manifest *m, struct hf_err *err)
{
    struct hf_snapshot_meta *t = &m->meta;
    const char *id, *kind, *tid, *tsha, *parent, *sandbox;
    json_int_t version, generation = -1, disk_bytes = -1, created = -1;
    json_t *host = NULL, *config = NULL, *parts = NULL;
    json_error_t why;
    if (json_unpack_ex(j, &why, 0, "{s:I, s:s, s:s, s:{s:s, s:s!}, s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o!}",
                       "version", &version, "id", &id, "kind", &kind, "template", "id", &tid, "sha256", &tsha,
                       "parent", &parent, "sandbox", &sandbox, "generation", &generation, "disk_bytes",
                       &disk_bytes, "created_ms", &created, "host", &host, "config", &config, "parts",
                       &parts) < 0)
        return damaged(err, why.text);
    t->memory = strcmp(kind, "full") == 0;
    if (!t->memory && strcmp(kind, "disk") != 0)
        return damaged(err, "an unknown kind");
    if (!take_id(id, t->id, sizeof(t->id), false) ||
        !take_id(tid, t->template_id, sizeof(t->template_id), false) ||
        !take_id(parent, t->parent, sizeof(t->parent), true) ||
        !take_id(sandbox, t->sandbox_id, sizeof(t->sandbox_id), true))
        return damaged(err, "an id with characters that no id has");
    if (!take_hash(tsha, t->template_sha256))
        return damaged(err, "the hash of the template");
    if (generation < 0 || disk_bytes < 0 || created < 0 || !json_is_object(config))
        return damaged(err, "a number that is negative, or a config that is no object");
    t->generation = (uint64_t)generation;
    t->disk_bytes = (uint64_t)disk_bytes;
    t->created_ms = created;
    t->config = json_incref(config);
    int r = take_host(host, &m->host, err);
    return r < 0 ? r : take_parts(parts, m, err);
}

static int checksum(json_t *j, char hex[HF_HASH_HEX])
{
    char *text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return -EILSEQ;
    unsigned char sum[HF_SHA256_LEN];
    hf_sha256_of(text, strlen(text), sum);
    free(text);
    hf_hex(sum, sizeof(sum), hex);
    return 0;
}

static int take_checked(json_t *j, struct hf_manifest *m, struct hf_err *err)
{
    json_int_t version = 0;
    if (json_unpack(j, "{s:I}", "version", &version) < 0)
        return damaged(err, "it has no version");
    if (version != HF_SNAPSHOT_VERSION)
        return hf_err_set(err, -EPROTONOSUPPORT,
                          "the snapshot has format version %" JSON_INTEGER_FORMAT
                          ", and this holdfast knows version %d only",
                          version, HF_SNAPSHOT_VERSION);
    char want[HF_HASH_HEX] = "", have[HF_HASH_HEX];
    const char *check = json_string_value(json_object_get(j, "check"));
    bool good = check && take_hash(check, want) && json_object_del(j, "check") == 0 &&
                checksum(j, have) == 0 && strcmp(want, have) == 0;
    return good ? take_meta(j, m, err) : damaged(err, "its own checksum does not fit");
}

int hf_manifest_parse(const char *text, size_t n, struct hf_manifest *ret, struct hf_err *err)
{
    if (n > HF_SNAPSHOT_MANIFEST_MAX)
        return damaged(err, "it is too large");
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    struct hf_manifest m = {0};
    int r = json_is_object(j) ? take_checked(j, &m, err) : damaged(err, "it is no JSON object");
    json_decref(j);
    if (r < 0) {
        hf_manifest_done(&m);
        return r;
    }
    *ret = m;
    return 0;
}

static json_t *part_json(const struct hf_snapshot_part *p)
{
    return json_pack("{s:s, s:I, s:s?}", "name", p->name, "bytes", (json_int_t)p->bytes, "sha256",
                     p->sha256[0] ? p->sha256 : NULL);
}

char *hf_manifest_text(const struct hf_manifest *m)
{
    const struct hf_snapshot_meta *t = &m->meta;
    json_t *parts = json_array();
    for (size_t i = 0; i < m->n_parts; i++)
        (void)json_array_append_new(parts, part_json(&m->parts[i]));
    json_t *j = json_pack(
        "{s:i, s:s, s:s, s:{s:s, s:s}, s:s, s:s, s:I, s:I, s:I, s:{s:s, s:s, s:I, s:I, s:O}, s:O?, s:o}",
        "version", HF_SNAPSHOT_VERSION, "id", t->id, "kind", t->memory ? "full" : "disk", "template", "id",
        t->template_id, "sha256", t->template_sha256, "parent", t->parent, "sandbox", t->sandbox_id,
        "generation", (json_int_t)t->generation, "disk_bytes", (json_int_t)t->disk_bytes, "created_ms",
        (json_int_t)t->created_ms, "host", "machine", m->host.machine, "kernel", m->host.kernel, "page_size",
        (json_int_t)m->host.page_size, "criu_image", (json_int_t)m->host.criu_image, "cpu", m->host.cpu,
        "config", t->config, "parts", parts);
    char hex[HF_HASH_HEX], *text = NULL;
    if (j && checksum(j, hex) == 0 && json_object_set_new(j, "check", json_string(hex)) == 0)
        text = json_dumps(j, JSON_INDENT(1));
    json_decref(j);
    return text;
}
