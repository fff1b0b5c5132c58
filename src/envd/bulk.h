/* Sends a large part of a file as the rest of a response with sendfile(2), from the worker pool: the bytes go
 * from the page cache to the socket, and a slow disk never stops the loop. */
#pragma once

#include "wire/http.h"

/* hf_res_begin was called with a Content-Length that the n bytes from offset complete. On success fd is
 * taken, req's ops are replaced and the response will be ended (or broken, when the file turns out to be
 * shorter). A negative errno (nothing has changed): the caller must write the body itself. */
int bulk_send(struct hf_req *req, int fd, uint64_t offset, uint64_t n) HF_MUST_USE;
