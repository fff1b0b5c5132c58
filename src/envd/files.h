/* What the three parts of /files share. Loop thread; the work itself runs in the loop's worker pool. */
#pragma once

#include "envd/envd.h"
#include "envd/fs.h"

#define FILES_CHUNK (256u * 1024u)    /* bytes of one read, and of one copy */
#define FILES_PIECE (512u * 1024u)    /* bytes of an upload that one job works on */
#define FILES_QUERY_MAX (64u * 1024u) /* decoded query values of one request */
#define FILES_DRAIN_MAX \
    (64u * 1024u * 1024u) /* rest of a failed upload that is read so that its answer arrives */
#define FILES_COMPOSE_BODY_MAX (1024u * 1024u)
#define FILES_COMPOSE_SOURCES_MAX 4096u
#define FILES_GZIP_LEVEL 1 /* the box's CPU is dearer than its network */
#define FILES_GZIP_MAYBE_MAX                                                       \
    (4u * 1024u * 1024u) /* larger files go unpacked to clients that can take both \
                          */

/* Query of a /files request, checked: who acts on what. */
struct files_query {
    bool has_path;
    char *raw_path; /* as given; its length, since names are bytes */
    size_t raw_path_n;
    struct envd_user user;
    char *workdir; /* envd's setting at the time of the request, for worker threads */
};
void files_query_done(struct files_query *q);

/* "v1_" + base64 without padding of SHA-256("path:operation:user:token[:expiration]"). expires < 0: none. */
int files_signature(struct hf_str path, const char *operation, struct hf_str user, const char *token,
                    int64_t expires, struct hf_buf *out) HF_MUST_USE;

/* fileget.c, filepost.c, compose.c: take q's content. */
void files_get(struct envd *e, struct hf_req *req, struct files_query *q);
void files_post(struct envd *e, struct hf_req *req, struct files_query *q);
void files_compose(struct envd *e, struct hf_req *req);

/* {"path","name","type":"file"} of a file that was written. */
json_t *files_written_json(const char *path);
