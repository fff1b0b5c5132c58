/* HTTP by libcurl: the REST API of the daemon, and unary calls to the daemon inside a sandbox. Blocking. */
#pragma once

#include <curl/curl.h>
#include <jansson.h>

#include "base/buf.h"
#include "cli/cli.h"

#define HF_CLIENT_BODY_MAX (64u * 1024u * 1024u) /* bytes of one answer that is kept in memory */
#define HF_CLIENT_CONNECT_MS 10000L
#define HF_CLIENT_CALL_MS 180000L /* one REST call; a create may have to wait for its turn */

/* An answer of the REST API. */
struct hf_answer {
    long status;
    json_t *body;          /* owned; NULL when there is none */
    char next_token[1024]; /* x-next-token, "" = last page */
};
#define hf_auto_answer hf_cleanup(hf_answer_done)
void hf_answer_done(struct hf_answer *a);

/* path starts with '/', is encoded already (url.h); body NULL = none (borrowed). 0 for a 2xx answer;
 * otherwise -errno with the API's own message in err and its advice in cli's hint; err->status is the HTTP
 * status, or 0 when no answer came. */
int hf_api(struct hf_cli *cli, const char *method, const char *path, const json_t *body,
           struct hf_answer *ret, struct hf_err *err) HF_MUST_USE;

/* A running sandbox as its data plane wants to be addressed. */
struct hf_box {
    char *id;
    char *token;      /* "" = none */
    const char *user; /* borrowed; NULL = the sandbox's default user */
};
#define hf_auto_box hf_cleanup(hf_box_done)
void hf_box_done(struct hf_box *box);
/* The API's detail of a sandbox; -ENOENT says what became of it, where that is known. */
int hf_box_detail(struct hf_cli *cli, const char *id, struct hf_answer *ret, struct hf_err *err) HF_MUST_USE;
/* Looks the sandbox up; -ENOENT when unknown, -EBUSY when it does not run. Does not prolong its life. */
int hf_box_open(struct hf_cli *cli, const char *id, struct hf_box *ret, struct hf_err *err) HF_MUST_USE;
/* What became of a sandbox that is not there any more: "killed (timeout): …". False when nobody knows it. */
bool hf_box_fate(struct hf_cli *cli, const char *id, char *out, size_t n);
/* Unary Connect call, "/process.Process/List". ret may be NULL. */
int hf_box_rpc(struct hf_cli *cli, const struct hf_box *box, const char *method, const json_t *in,
               json_t **ret, struct hf_err *err) HF_MUST_USE;

/* ---- parts for streams and files ---- */

/* A fresh easy handle for a URL, with everything that all our requests share; never NULL. */
CURL *hf_client_easy(const struct hf_cli *cli, const char *url, char errbuf[CURL_ERROR_SIZE]) HF_MUST_USE;
/* Appends "Name: value"; never NULL, takes the list. */
struct curl_slist *hf_client_header(struct curl_slist *list, const char *name, const char *value) HF_MUST_USE;
struct curl_slist *hf_box_headers(const struct hf_box *box, bool rpc) HF_MUST_USE;
/* Turns a transport failure into words; returns -errno. */
int hf_client_transport_err(struct hf_cli *cli, const char *base, CURLcode code, const char *errbuf,
                            struct hf_err *err);
/* Turns an answer that is not 2xx into words. */
int hf_client_answer_err(struct hf_cli *cli, long status, struct hf_str body, struct hf_err *err);
/* A libcurl write callback that collects into a struct hf_buf. */
size_t hf_client_collect(char *p, size_t size, size_t n, void *buf);
