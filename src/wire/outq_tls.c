/* The side of the output queue that knows TLS. */
#include "wire/outq.h"
#include "wire/tls.h"

void hf_outq_set_tls(struct hf_outq *q, struct hf_tls *t)
{
    q->tls = t;
    q->seal = hf_tls_write;
}

int hf_outq_tls_feed(struct hf_outq *q, const void *p, size_t n, struct hf_buf *plain)
{
    int r = hf_tls_feed(q->tls, p, n, plain, &q->raw);
    int w = hf_outq_flush(q);
    return r < 0 ? r : w < 0 ? w : r;
}

int hf_outq_tls_close(struct hf_outq *q)
{
    int r = hf_outq_seal(q);
    r = r < 0 ? r : hf_tls_close(q->tls, &q->raw);
    return r < 0 ? r : hf_outq_flush(q);
}
