/* http and https URLs of outbound calls, taken apart strictly: what two readers could read in two ways is
 * none. */
#pragma once

#include "base/addr.h"

#define HF_URL_MAX 4096u /* bytes */

/* Views into the URL. */
struct hf_url {
    struct hf_str scheme, authority, host, path; /* authority: host[:port] as written; path with its query */
    uint16_t port;
    bool tls, bracket;
    int kind; /* 1: the host is addr; 0: a name */
    struct hf_addr addr;
};

/* -EINVAL: malformed. The fragment is dropped. */
int hf_url_split(struct hf_str url, struct hf_url *ret) HF_MUST_USE;
/* 1: an address literal in its one strict form; 0: a host name; -EINVAL: neither, which takes in all numbers
 * that some resolver would read as an address. */
int hf_host_kind(struct hf_str host, struct hf_addr *ret) HF_MUST_USE;
