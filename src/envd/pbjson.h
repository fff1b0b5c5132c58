/* Protobuf binary <-> proto3 JSON, driven by one constant table per message.
 *
 * Sources: protobuf.dev "Encoding" and "ProtoJSON Format". Unknown fields are skipped, both JSON names
 * (lowerCamel and original) are accepted, int64 may be text or number, bytes any base64 alphabet, enums name
 * or number, null = unset. Pure, no I/O: fuzzed by tests/fuzz/envd. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

enum pb_type {
    PB_STRING,
    PB_BYTES,
    PB_BOOL,
    PB_UINT32,
    PB_INT32,
    PB_SINT32,
    PB_INT64,
    PB_ENUM,
    PB_MESSAGE,
    PB_TIMESTAMP, /* google.protobuf.Timestamp <-> RFC 3339 text */
    PB_MAP_STRING /* map<string, string> <-> object */
};
#define PB_REPEATED 1u
#define PB_DEPTH_MAX 16

struct pb_enum {
    int value;
    const char *name;
};

struct pb_msg;
struct pb_field {
    uint32_t number;
    const char *json;  /* lowerCamel */
    const char *proto; /* original name; NULL = the same */
    enum pb_type type;
    unsigned flags;
    const struct pb_msg *msg;    /* PB_MESSAGE */
    const struct pb_enum *enums; /* PB_ENUM; ends with a NULL name */
};
struct pb_msg {
    const char *name;
    const struct pb_field *fields;
    size_t n;
};

/* New object, or NULL for malformed input. Fields that are absent on the wire are absent in the object. */
json_t *pb_to_json(const struct pb_msg *m, const void *p, size_t n);
/* 0, -EINVAL (a value of the wrong type: err names the field) or -EMSGSIZE. Unknown keys are ignored. */
int pb_from_json(const struct pb_msg *m, const json_t *obj, struct hf_buf *out,
                 struct hf_err *err) HF_MUST_USE;
/* Checks and normalises a JSON request in place: alternative names to lowerCamel, enum numbers to names,
 * int64 text to numbers; wrong types are -EINVAL with the field's name in err. */
int pb_normalise(const struct pb_msg *m, json_t *obj, struct hf_err *err) HF_MUST_USE;

/* Tables of process.proto and filesystem.proto, written from the documented field numbers (proto/README). */
extern const struct pb_msg pb_process_list_request, pb_process_list_response, pb_process_start_request,
    pb_process_start_response, pb_process_connect_request, pb_process_connect_response,
    pb_process_update_request, pb_process_stream_input_request, pb_process_send_input_request,
    pb_process_send_signal_request, pb_process_close_stdin_request, pb_empty;
extern const struct pb_msg pb_fs_stat_request, pb_fs_stat_response, pb_fs_make_dir_request,
    pb_fs_make_dir_response, pb_fs_move_request, pb_fs_move_response, pb_fs_list_dir_request,
    pb_fs_list_dir_response, pb_fs_remove_request, pb_fs_watch_dir_request, pb_fs_watch_dir_response,
    pb_fs_create_watcher_request, pb_fs_create_watcher_response, pb_fs_get_watcher_events_request,
    pb_fs_get_watcher_events_response, pb_fs_remove_watcher_request;
