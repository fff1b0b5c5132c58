/* Netlink: building messages, sending a batch and reading its answers. Blocking; one socket, one thread.
 * Used for rtnetlink (link.c) and nfnetlink (nft.c). */
#pragma once

#include "base/err.h"

#define HF_NL_BATCH_MAX (16u << 20) /* bytes of one batch: 32,768 elements fit several times */

/* Messages back to back, ready to be sent. Zero-initialise. */
struct hf_nl {
    uint8_t *p;
    size_t n, cap;
    size_t head;   /* offset of the current message */
    uint32_t seq;  /* of the next message */
    uint32_t acks; /* messages that asked for an answer */
};

#define hf_auto_nl hf_cleanup(hf_nl_done)
void hf_nl_done(struct hf_nl *nl);
void hf_nl_reset(struct hf_nl *nl); /* empty, keeps the memory */

/* Starts a message; header is the family's own (struct ifinfomsg …). NLM_F_REQUEST is added. */
void hf_nl_begin(struct hf_nl *nl, uint16_t type, uint16_t flags, const void *header, size_t header_n);
void hf_nl_end(struct hf_nl *nl);
void hf_nl_put(struct hf_nl *nl, uint16_t type, const void *p, size_t n);
void hf_nl_put_u8(struct hf_nl *nl, uint16_t type, uint8_t v);
void hf_nl_put_u16(struct hf_nl *nl, uint16_t type, uint16_t v);
void hf_nl_put_u32(struct hf_nl *nl, uint16_t type, uint32_t v);
void hf_nl_put_be32(struct hf_nl *nl, uint16_t type, uint32_t v);
void hf_nl_put_be64(struct hf_nl *nl, uint16_t type, uint64_t v);
void hf_nl_put_str(struct hf_nl *nl, uint16_t type, const char *s);
/* Nested attributes: the value goes to hf_nl_nest_end. */
size_t hf_nl_nest(struct hf_nl *nl, uint16_t type);
void hf_nl_nest_end(struct hf_nl *nl, size_t at);
void hf_nl_raw(struct hf_nl *nl, const void *p, size_t n); /* unaligned end is padded */

/* A connected netlink socket of a protocol in the calling thread's network namespace, or -errno. */
int hf_nl_open(int protocol) HF_MUST_USE;
/* Sends everything in nl and waits for every answer; the first error, with the kernel's words in err. */
int hf_nl_talk(int fd, const struct hf_nl *nl, struct hf_err *err) HF_MUST_USE;
/* For nfnetlink's transactions: the kernel works off the whole batch inside the send, so the answers (an
 * error for each message that failed, an acknowledgement where one was asked for) are there when it returns.
 */
int hf_nl_talk_batch(int fd, const struct hf_nl *nl, struct hf_err *err) HF_MUST_USE;
struct nlmsghdr;
/* Sends one request with NLM_F_DUMP or a plain get and calls each for every message of the answer. each
 * returns 0 to go on or a negative errno, which is returned once the answer is read to its end. -EINTR: the
 * kernel's table changed meanwhile; ask again. */
int hf_nl_dump(int fd, const struct hf_nl *nl, int (*each)(void *arg, const struct nlmsghdr *h),
               void *arg) HF_MUST_USE;

/* ---- reading attributes ---- */
struct nlattr;
/* Fills tb[0…max] with the attributes of a range (unknown ones are left out). */
void hf_nl_parse(const void *p, size_t n, const struct nlattr **tb, uint16_t max);
static inline const void *hf_nl_data(const struct nlattr *a)
{
    return (const char *)a + 4;
}
size_t hf_nl_len(const struct nlattr *a);
uint32_t hf_nl_be32(const struct nlattr *a); /* 0 when too short or NULL */
uint64_t hf_nl_be64(const struct nlattr *a);
/* Walks a range of attributes: first call with *at = NULL. */
const struct nlattr *hf_nl_next(const void *p, size_t n, const struct nlattr *at);

/* ---- namespaces ---- */
/* A socket made inside the network namespace ns_fd by the calling thread, which is back in its own when this
 * returns (the process aborts if it can't go back: it would work on the wrong network). */
int hf_ns_socket(int ns_fd, int domain, int type, int protocol) HF_MUST_USE;
