/* The daemon as a process of its own with the fake driver, and a small blocking HTTP client for it. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "base/buf.h"

struct hf_served {
    char dir[64], run_dir[96];
    pid_t pid;
    int port;
    char key[64], other_key[64]; /* of the tenants "default" and "other" */
};

/* Must be called first in main: with "--serve DIR" it runs the daemon and does not return. */
void hf_serve_if_asked(int argc, char **argv);
/* New directory, keys, a template named "base" (public), the daemon up. */
void hf_served_init(struct hf_served *s);
/* Starts the daemon; killpoint may be NULL. */
void hf_served_start(struct hf_served *s, const char *killpoint);
/* SIGTERM, and it must end with 0. */
void hf_served_stop(struct hf_served *s);
void hf_served_kill9(struct hf_served *s);
/* Waits for the daemon to die by a kill point; true when it did. */
bool hf_served_died(struct hf_served *s);
void hf_served_done(struct hf_served *s); /* stops it if it runs, removes everything */

struct hf_reply {
    int status;
    char *head; /* the whole head, lower-case names not guaranteed */
    char *body;
    json_t *json; /* NULL when the body is not JSON */
};
void hf_reply_done(struct hf_reply *r);
#define hf_auto_reply hf_cleanup(hf_reply_done)

/* body NULL: none. key NULL: no key. extra: more header lines, each with CRLF, or NULL. */
void hf_http(const struct hf_served *s, const char *key, const char *method, const char *path,
             const char *extra, const char *body, struct hf_reply *ret);
/* The two halves, for requests at the same time. -1 when nobody listens. */
int hf_http_send(const struct hf_served *s, const char *key, const char *method, const char *path,
                 const char *extra, const char *body);
void hf_http_receive(int fd, struct hf_reply *ret); /* closes fd; status 0: no answer */
/* Value of a response header, or NULL. The result lives in the reply's head. */
const char *hf_reply_header(struct hf_reply *r, const char *name);
