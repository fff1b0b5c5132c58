/* Exchanges: shared by l7_http.c (judging), l7_origin.c (connections to the origin) and l7_answer.c. */
#pragma once

#include "egress/l7_int.h"

/* A connection to the origin, of one connection of a box. */
struct hf_l7_client {
    struct hf_list node; /* in c->clients, or l7->dead */
    struct hf_l7_conn *c;
    struct hf_client *cl; /* NULL: taken for a tunnel */
    unsigned open;        /* exchanges */
    uint64_t served;      /* exchanges so far */
    bool gone;            /* takes no further one */
};

/* One request of a box. Lives from on_request to on_close of req. */
struct hf_l7_xchg {
    struct hf_list node; /* in c->xchgs */
    struct hf_l7_conn *c;
    struct hf_req *req;
    struct hf_l7_bind *bind;
    struct hf_l7_client *client;
    struct hf_cx *cx;
    bool waiting;    /* for a connection to the origin */
    bool body_over;  /* the request is complete */
    bool body_taken; /* some of the body has left */
    bool retried, denied;
    bool bound; /* the destination was answered for the host */
    struct hf_l7_authority to;
    struct hf_policy *policy;   /* a reference: rule is its */
    const struct hf_rule *rule; /* NULL when none decided */
    const char *reason;
    int status;
    uint64_t started_ms, bytes_out, bytes_in;
    struct hf_buf trailers; /* of the answer: name NUL value NUL … */
    size_t n_trailers;
};

/* l7_http.c */
void hf_l7_deny(struct hf_l7_xchg *x, int status, const char *reason, const char *by, const char *message);
/* The answer when the origin could not give one. */
void hf_l7_bad_gateway(struct hf_l7_xchg *x, const char *message);
/* The path as the origin will read it, with its query: what is judged is what is sent. */
struct hf_str hf_l7_path(struct hf_req *req);
const char *hf_l7_scheme(const struct hf_l7_conn *c);

/* l7_origin.c */
/* Sends the request now, or when there is a connection for it. */
void hf_l7_origin_get(struct hf_l7_xchg *x);
void hf_l7_origin_add(struct hf_l7_conn *c, struct hf_l7_link *link); /* takes the link's members */
void hf_l7_origin_put(struct hf_l7_xchg *x);                          /* x->cx has ended */
void hf_l7_origin_end(struct hf_l7_conn *c);

/* l7_answer.c */
extern const struct hf_cx_ops hf_l7_cx_ops;
/* Puts the request on the connection; answers itself when it can't be. */
void hf_l7_send(struct hf_l7_xchg *x);
