#include "wire/connect.h"

void hf_connect_init(struct hf_connect_parser *p, size_t message_max)
{
    *p = (struct hf_connect_parser){.payload = HF_BUF_INIT(message_max)};
}

void hf_connect_done(struct hf_connect_parser *p)
{
    hf_buf_done(&p->payload);
}

bool hf_connect_partial(const struct hf_connect_parser *p)
{
    return p->head_n != 0;
}

static int take_head(struct hf_connect_parser *p)
{
    unsigned flags = p->head[0];
    if (flags & ~(HF_CONNECT_FLAG_COMPRESSED | HF_CONNECT_FLAG_END))
        return -EBADMSG;
    p->want =
        (uint32_t)p->head[1] << 24 | (uint32_t)p->head[2] << 16 | (uint32_t)p->head[3] << 8 | p->head[4];
    return p->want > p->payload.max ? -EMSGSIZE : 0;
}

static int deliver(struct hf_connect_parser *p, hf_connect_cb cb, void *arg)
{
    struct hf_str payload = {p->payload.n ? p->payload.p : "", p->payload.n};
    int r = cb(arg, p->head[0], payload);
    p->head_n = 0;
    p->want = 0;
    /* A stream of small messages after one big message must not keep the big one's memory. */
    if (p->payload.cap > 65536)
        hf_buf_done(&p->payload);
    else
        hf_buf_clear(&p->payload);
    return r;
}

int hf_connect_feed(struct hf_connect_parser *p, const void *data, size_t n, hf_connect_cb cb, void *arg)
{
    const unsigned char *d = data;
    while (n > 0) {
        if (p->head_n < HF_CONNECT_HEAD) {
            p->head[p->head_n++] = *d++;
            n--;
            if (p->head_n < HF_CONNECT_HEAD)
                continue;
            int r = take_head(p);
            if (r < 0)
                return r;
        }
        size_t take = HF_MIN(n, p->want - p->payload.n);
        if (take > 0) {
            int r = hf_buf_add(&p->payload, d, take);
            if (r < 0)
                return r;
        }
        d += take;
        n -= take;
        if (p->payload.n < p->want)
            continue;
        int r = deliver(p, cb, arg);
        if (r != 0)
            return r;
    }
    return 0;
}

void hf_connect_head(unsigned char out[HF_CONNECT_HEAD], unsigned flags, uint32_t n)
{
    out[0] = (unsigned char)flags;
    out[1] = (unsigned char)(n >> 24);
    out[2] = (unsigned char)(n >> 16);
    out[3] = (unsigned char)(n >> 8);
    out[4] = (unsigned char)n;
}

int hf_connect_add(struct hf_buf *b, unsigned flags, const void *p, size_t n)
{
    unsigned char head[HF_CONNECT_HEAD];
    if (n > UINT32_MAX)
        return -EMSGSIZE;
    hf_connect_head(head, flags, (uint32_t)n);
    size_t before = b->n;
    int r = hf_buf_add(b, head, sizeof(head));
    if (r < 0)
        return r;
    r = n ? hf_buf_add(b, p, n) : 0;
    if (r < 0)
        b->n = before;
    return r;
}
