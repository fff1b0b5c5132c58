/* The certificate authority that /init brings: in the box's trust stores, until another /init changes it.
 *
 * Only certificates of ours are touched: a file of our own, and in each bundle one part between two marker
 * lines (and copies of ours that the distribution's own tool has put there meanwhile). Blocking, but all of
 * it is a few hundred kilobytes. */
#pragma once

#include "base/err.h"

#define CA_PEM_MAX (256u * 1024u)          /* bytes of a caBundle */
#define CA_STORE_MAX (16u * 1024u * 1024u) /* a larger trust store is left alone */
#define CA_FILE "/usr/local/share/ca-certificates/holdfast.crt"

/* Installs the certificates of pem below root ("" in a box), or takes ours away when it is empty. Idempotent.
 * ret: the bundle that programs are pointed at, as a path in the box (static); NULL when there is none of
 * ours. -EINVAL (400) for text that is not certificates in PEM, else what writing failed with. */
int ca_install(const char *root, struct hf_str pem, const char **ret, struct hf_err *err) HF_MUST_USE;
/* The names of the variables that point at a bundle, NULL at the end; NODE_EXTRA_CA_CERTS, which adds to what
 * Node has built in, points at CA_FILE instead. */
extern const char *const ca_variables[];
/* "path of the bundle" or CA_FILE, as the variable wants it. */
const char *ca_variable_value(const char *name, const char *bundle);
