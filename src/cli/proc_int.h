/* Inside of proc: the stream (proc.c) and what is sent beside it (proc_send.c). */
#pragma once

#include "cli/proc.h"
#include "wire/connect.h"

/* One unary request in flight on the multi handle. */
struct proc_slot {
    CURL *easy;
    struct curl_slist *headers;
    char *body;
    struct hf_buf out;
    char errbuf[CURL_ERROR_SIZE];
    bool busy;
};

enum proc_input { INPUT_OFF, INPUT_OPEN, INPUT_EOF, INPUT_CLOSED };

struct proc {
    struct hf_cli *cli;
    const struct hf_box *box;
    const struct hf_proc_spec *spec;
    struct hf_proc_result *ret;
    struct hf_err *err;
    CURLM *multi;
    int signal_fd;

    /* the stream */
    CURL *stream;
    struct curl_slist *stream_headers;
    char *stream_body;
    char stream_errbuf[CURL_ERROR_SIZE];
    struct hf_connect_parser parser;
    struct hf_buf refusal; /* body of an answer that is not 200 */
    bool stream_done;
    bool end_seen;   /* the end-stream envelope came */
    int r;           /* failure that the end-stream envelope or an answer told */
    CURLcode code;   /* how the transfer ended */
    uint64_t end_ms; /* when the end event came */
    unsigned reconnects;
    bool reattached; /* the present stream is a Connect, not the Start */

    /* beside it */
    struct proc_slot input_slot, control_slot;
    enum proc_input input;
    struct hf_buf pending;
    unsigned leave_state; /* of "Enter ~ ." */
    int want_signal;      /* SIGTERM or SIGKILL to be sent; 0 = none */
    unsigned interrupts;
    bool want_resize;
    uint64_t refresh_ms; /* when to prolong the sandbox's life next */
};

/* Starts what is due and possible. */
void proc_send(struct proc *p);
/* A transfer of the multi handle ended: true when it was one of the slots'. */
bool proc_send_done(struct proc *p, CURL *easy, CURLcode code);
void proc_send_free(struct proc *p);
/* Reads what stdin has. */
void proc_read_input(struct proc *p);
bool proc_wants_input(const struct proc *p);
