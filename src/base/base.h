/* Ownership helpers and allocation that every file uses. libc only. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HF_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define HF_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define HF_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HF_MAX(a, b) ((a) > (b) ? (a) : (b))

#define HF_MUST_USE __attribute__((warn_unused_result))
#define HF_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define HF_UNUSED __attribute__((unused))
#define HF_NORETURN __attribute__((noreturn))

/* Owned locals: declare with the attribute and an initial value, hand over with hf_take_*. */
#define hf_cleanup(fn) __attribute__((cleanup(fn)))
#define hf_auto_free hf_cleanup(hf_freep)
#define hf_auto_close hf_cleanup(hf_closep)

static inline void hf_freep(void *p)
{
    free(*(void **)p);
}

/* close(2) that keeps errno and accepts a negative fd. Returns -1, so `fd = hf_close(fd)` reads well. */
static inline int hf_close(int fd)
{
    if (fd >= 0) {
        int saved = errno;
        (void)close(fd);
        errno = saved;
    }
    return -1;
}

static inline void hf_closep(int *fd)
{
    *fd = hf_close(*fd);
}

#define hf_take_ptr(p)                 \
    ({                                 \
        __typeof__(p) *hf_pp_ = &(p);  \
        __typeof__(p) hf_v_ = *hf_pp_; \
        *hf_pp_ = NULL;                \
        hf_v_;                         \
    })

static inline int hf_take_fd(int *fd)
{
    int v = *fd;
    *fd = -1;
    return v;
}

/* Small, fixed allocations: they abort the process when memory is out. Sizes that come from input go
 * through struct hf_buf with its mandatory maximum. */
void *hf_xmalloc(size_t n) HF_MUST_USE;
void *hf_xcalloc(size_t n, size_t size) HF_MUST_USE;
void *hf_xrealloc(void *p, size_t n) HF_MUST_USE;
char *hf_xstrdup(const char *s) HF_MUST_USE;
char *hf_xstrndup(const char *s, size_t n) HF_MUST_USE;
char *hf_xasprintf(const char *fmt, ...) HF_PRINTF(1, 2) HF_MUST_USE;

#define hf_new(type) ((type *)hf_xcalloc(1, sizeof(type)))

/* A borrowed view of bytes; not NUL-terminated. {NULL, 0} means "absent". */
struct hf_str {
    const char *p;
    size_t n;
};

#define HF_STR(lit) ((struct hf_str){(lit), sizeof(lit) - 1})
static inline struct hf_str hf_str_c(const char *s)
{
    return (struct hf_str){s, s ? strlen(s) : 0};
}
bool hf_str_eq(struct hf_str a, const char *b);
bool hf_str_caseeq(struct hf_str a, const char *b); /* ASCII case */
bool hf_str_starts(struct hf_str a, const char *prefix);
char *hf_str_dup(struct hf_str s) HF_MUST_USE; /* NUL-terminated copy */
/* Compares in time that depends on the lengths only. */
bool hf_str_eq_consttime(struct hf_str a, struct hf_str b);
/* Decimal, whole string, no sign, no leading blanks; -EINVAL or -ERANGE. */
int hf_parse_u64(struct hf_str s, uint64_t max, uint64_t *ret) HF_MUST_USE;
