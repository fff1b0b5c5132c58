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

/* Bytes on their way to one of our own descriptors; proc_out.c. */
struct proc_out {
    int fd;
    size_t chunk; /* bytes of one write */
    struct hf_buf mem;
    size_t mem_r; /* bytes of mem that are written */
    int spill;    /* the file behind it, -1 = none yet */
    uint64_t spill_r, spill_w;
};
void proc_out_init(struct proc_out *o, int fd);
void proc_out_done(struct proc_out *o);
int proc_out_push(struct proc_out *o, const char *p, size_t n) HF_MUST_USE;
bool proc_out_pending(const struct proc_out *o);
/* Writes what can be written without waiting; negative when nobody will ever read it. */
int proc_out_pump(struct proc_out *o) HF_MUST_USE;

#define PROC_STREAMS 3 /* of enum hf_proc_stream */

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

    /* output */
    struct proc_out out[2];        /* stdout (or the terminal), stderr */
    uint64_t cursor[PROC_STREAMS]; /* bytes of each stream that we have seen the end of */

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
