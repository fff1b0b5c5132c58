/* A growable byte buffer with a mandatory maximum: nothing that comes from input grows without bound. */
#pragma once

#include <stdarg.h>

#include "base/base.h"

struct hf_buf {
    char *p; /* NUL-terminated once anything was added, for convenience; the NUL is not counted in n */
    size_t n, cap, max;
};

#define HF_BUF_INIT(maximum) ((struct hf_buf){NULL, 0, 0, (maximum)})
#define hf_auto_buf hf_cleanup(hf_buf_done)

void hf_buf_done(struct hf_buf *b);
void hf_buf_clear(struct hf_buf *b); /* keeps the memory */
/* All return 0 or -EMSGSIZE when the maximum would be exceeded; the buffer is then unchanged. */
int hf_buf_add(struct hf_buf *b, const void *p, size_t n) HF_MUST_USE;
int hf_buf_adds(struct hf_buf *b, const char *s) HF_MUST_USE;
int hf_buf_addf(struct hf_buf *b, const char *fmt, ...) HF_PRINTF(2, 3) HF_MUST_USE;
int hf_buf_vaddf(struct hf_buf *b, const char *fmt, va_list ap) HF_PRINTF(2, 0) HF_MUST_USE;
/* Makes room for n more bytes; the caller writes at b->p + b->n and then adds to b->n. */
int hf_buf_reserve(struct hf_buf *b, size_t n) HF_MUST_USE;
void hf_buf_consume(struct hf_buf *b, size_t n); /* drops n bytes at the front */
/* The content as a NUL-terminated heap string; the buffer is empty afterwards. */
char *hf_buf_take(struct hf_buf *b) HF_MUST_USE;
