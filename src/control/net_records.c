/* Outbound records: netd writes lines, the store gets rows. The cursor moves in the batch that adds the rows,
 * so a line becomes exactly one row however often the daemon dies; a file goes once the cursor is past it. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "control/net_int.h"
#include "store/net.h"

#define PRUNE_EVERY 512u /* batches */

/* records-<seq>.jsonl */
static bool file_seq(const char *name, uint64_t *ret)
{
    struct hf_str s = hf_str_c(name);
    static const char before[] = "records-", behind[] = ".jsonl";
    size_t fixed = sizeof(before) - 1 + sizeof(behind) - 1;
    return s.n > fixed && s.n < HF_ROW_ID && hf_str_starts(s, before) &&
           strcmp(name + s.n - (sizeof(behind) - 1), behind) == 0 &&
           hf_parse_u64((struct hf_str){s.p + sizeof(before) - 1, s.n - fixed}, UINT64_MAX, ret) == 0;
}

struct files {
    char current[HF_ROW_ID]; /* the oldest that is not behind the cursor; "" = none */
    uint64_t current_seq;
    bool more; /* there is a younger one: the current one is finished */
};

static void look(struct files *f, const char *name, uint64_t seq, uint64_t at_least)
{
    if (seq < at_least)
        return;
    if (*f->current)
        f->more = true;
    if (*f->current && seq > f->current_seq)
        return;
    f->current_seq = seq;
    (void)snprintf(f->current, sizeof(f->current), "%.*s", (int)sizeof(f->current) - 1, name);
}

/* Files that are behind the cursor are removed on the way: the cursor is durable. */
static struct files look_around(const struct hf_cnet *n)
{
    struct files f = {0};
    uint64_t at_least = 0, seq;
    bool have = *n->cursor_file && file_seq(n->cursor_file, &at_least);
    DIR *dir = opendir(n->records);
    if (!dir)
        return f;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!file_seq(e->d_name, &seq))
            continue;
        if (have && seq < at_least)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
        else
            look(&f, e->d_name, seq, at_least);
    }
    (void)closedir(dir);
    return f;
}

struct pass {
    struct hf_cnet *n;
    char file[HF_ROW_ID];
    int64_t offset;
    bool again; /* there is more to read at once */
};

static const char *text(const json_t *v, const char *name)
{
    const char *s = json_string_value(json_object_get(v, name));
    return s ? s : "";
}

/* False: the line is no record. */
static bool add_row(struct hf_meta_batch *b, struct hf_str line)
{
    json_auto_t *v = json_loadb(line.p, line.n, JSON_REJECT_DUPLICATES, NULL);
    const char *kind = text(v, "kind");
    bool denial = strcmp(kind, "denial") == 0;
    if (!denial && strcmp(kind, "request") != 0)
        return false;
    hf_auto_free char *doc = json_dumps(v, JSON_COMPACT);
    struct hf_outbound_row o = {.time_ms = json_integer_value(json_object_get(v, "time_ms")),
                                .denied = denial || strcmp(text(v, "decision"), "deny") == 0,
                                .doc = doc};
    (void)snprintf(o.tenant, sizeof(o.tenant), "%s", text(v, "tenant"));
    (void)snprintf(o.sandbox_id, sizeof(o.sandbox_id), "%s", text(v, "sandbox"));
    (void)snprintf(o.session_id, sizeof(o.session_id), "%s", text(v, "session"));
    (void)snprintf(o.kind, sizeof(o.kind), "%s", kind);
    hf_put_outbound(b, &o);
    return true;
}

/* Bytes of whole lines; broken ones are counted and passed over. */
static size_t add_lines(struct hf_meta_batch *b, const char *p, size_t n, unsigned *broken)
{
    size_t at = 0;
    for (const char *end; (end = memchr(p + at, '\n', n - at));) {
        struct hf_str line = {p + at, (size_t)(end - (p + at))};
        if (line.n && !add_row(b, line))
            ++*broken;
        at += line.n + 1;
    }
    return at;
}

static void on_rows(void *arg, int r, const struct hf_err *err)
{
    struct pass *p = arg;
    struct hf_cnet *n = p->n;
    if (r == 0) {
        hf_killpoint("outbound.rows-written");
        (void)snprintf(n->cursor_file, sizeof(n->cursor_file), "%s", p->file);
        n->cursor = p->offset;
    } else if (!n->closing) {
        hf_log_error("outbound records can't be stored; they wait", "error=%s", hf_log_quote(err->msg));
    }
    n->tailing = false;
    if (r == 0 && p->again && !n->closing)
        hf_cnet_tail(n);
    free(p);
}

static void commit(struct hf_cnet *n, struct hf_meta_batch *b, const char *file, int64_t offset, bool again)
{
    struct pass *p = hf_new(struct pass);
    p->n = n;
    (void)snprintf(p->file, sizeof(p->file), "%s", file);
    p->offset = offset;
    p->again = again;
    hf_set_outbound_cursor(b, file, offset);
    /* Beside the hourly pruning: a flood must not fill the disk in between. */
    if (n->tail_batches++ % PRUNE_EVERY == 0)
        hf_prune_outbound(b, hf_real_ms() - (int64_t)n->cfg->outbound_keep * 1000, HF_CONTROL_OUTBOUND_ROWS);
    n->tailing = true;
    hf_killpoint("outbound.lines-read");
    /* Lazy: rows and cursor are one transaction, whichever of them a power cut leaves. */
    hf_meta_commit(n->c->meta, b, HF_META_LAZY, on_rows, p);
}

/* The file has been read to its end and will not grow: the cursor goes to the next one. */
static void next_file(struct hf_cnet *n, const struct files *f)
{
    char name[HF_ROW_ID];
    (void)snprintf(name, sizeof(name), "records-%llu.jsonl", (unsigned long long)f->current_seq + 1);
    commit(n, hf_meta_batch_new(), name, 0, true);
}

static void read_on(struct hf_cnet *n, const struct files *f, int fd, int64_t offset)
{
    hf_auto_free char *chunk = hf_xmalloc(HF_CNET_RECORDS_BATCH);
    ssize_t got = pread(fd, chunk, HF_CNET_RECORDS_BATCH, offset);
    if (got < 0)
        return;
    unsigned broken = 0;
    struct hf_meta_batch *b = hf_meta_batch_new();
    size_t used = add_lines(b, chunk, (size_t)got, &broken);
    bool torn = used == 0 && got > 0 && (f->more || got == (ssize_t)HF_CNET_RECORDS_BATCH);
    if (torn) { /* the end of a file whose writer died, or a line that is too long */
        used = (size_t)got;
        broken++;
    }
    if (broken)
        hf_log_warn("lines of the outbound records are broken and were skipped", "file=%s count=%u",
                    f->current, broken);
    if (used) {
        commit(n, b, f->current, offset + (int64_t)used, got == (ssize_t)HF_CNET_RECORDS_BATCH || f->more);
        return;
    }
    hf_meta_batch_free(b);
    if (f->more && got == 0)
        next_file(n, f);
}

void hf_cnet_tail(struct hf_cnet *n)
{
    if (n->tailing || n->closing || !n->c || n->c->stopping)
        return;
    if (!n->cursor_known) {
        if (hf_get_outbound_cursor(n->c->meta, n->cursor_file, &n->cursor) < 0)
            return;
        n->cursor_known = true;
    }
    struct files f = look_around(n);
    if (!*f.current)
        return;
    int64_t offset = strcmp(f.current, n->cursor_file) == 0 ? n->cursor : 0;
    hf_auto_free char *path = hf_xasprintf("%s/%s", n->records, f.current);
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    if (st.st_size > offset)
        read_on(n, &f, fd, offset);
    else if (f.more)
        next_file(n, &f);
}
