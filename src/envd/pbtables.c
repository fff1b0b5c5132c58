/* Message tables of proto/process.proto and proto/filesystem.proto; tests/unit/envd/pbjson_test.c holds them
 * against protoc's own encoding. Fields from 100 up are holdfast's extensions, which other clients skip. */
#include "envd/pbjson.h"

#define FIELDS(arr) .fields = (arr), .n = HF_ARRAY_LEN(arr)
#define STR(no, name)                                     \
    {                                                     \
        .number = (no), .json = (name), .type = PB_STRING \
    }
#define STR2(no, name, original)                                               \
    {                                                                          \
        .number = (no), .json = (name), .proto = (original), .type = PB_STRING \
    }
#define BYTES(no, name)                                  \
    {                                                    \
        .number = (no), .json = (name), .type = PB_BYTES \
    }
#define BOOL(no, name)                                  \
    {                                                   \
        .number = (no), .json = (name), .type = PB_BOOL \
    }
#define BOOL2(no, name, original)                                            \
    {                                                                        \
        .number = (no), .json = (name), .proto = (original), .type = PB_BOOL \
    }
#define U32(no, name)                                     \
    {                                                     \
        .number = (no), .json = (name), .type = PB_UINT32 \
    }
#define I64(no, name)                                    \
    {                                                    \
        .number = (no), .json = (name), .type = PB_INT64 \
    }
#define MAP(no, name)                                         \
    {                                                         \
        .number = (no), .json = (name), .type = PB_MAP_STRING \
    }
#define MSG(no, name, m)                                               \
    {                                                                  \
        .number = (no), .json = (name), .type = PB_MESSAGE, .msg = (m) \
    }
#define LIST(no, name, m)                                                                    \
    {                                                                                        \
        .number = (no), .json = (name), .type = PB_MESSAGE, .flags = PB_REPEATED, .msg = (m) \
    }
#define ENUM(no, name, e)                                             \
    {                                                                 \
        .number = (no), .json = (name), .type = PB_ENUM, .enums = (e) \
    }

const struct pb_msg pb_empty = {.name = "Empty"};

/* ---- process.proto ---- */

static const struct pb_enum signals[] = {
    {0, "SIGNAL_UNSPECIFIED"}, {9, "SIGNAL_SIGKILL"}, {15, "SIGNAL_SIGTERM"}, {0, NULL}};

static const struct pb_field size_f[] = {U32(1, "cols"), U32(2, "rows")};
static const struct pb_msg size_m = {.name = "PTY.Size", FIELDS(size_f)};
static const struct pb_field pty_f[] = {MSG(1, "size", &size_m)};
static const struct pb_msg pty_m = {.name = "PTY", FIELDS(pty_f)};

static const struct pb_field config_f[] = {
    STR(1, "cmd"),
    {.number = 2, .json = "args", .type = PB_STRING, .flags = PB_REPEATED},
    MAP(3, "envs"),
    STR(4, "cwd"),
};
static const struct pb_msg config_m = {.name = "ProcessConfig", FIELDS(config_f)};

static const struct pb_field selector_f[] = {U32(1, "pid"), STR(2, "tag")};
static const struct pb_msg selector_m = {.name = "ProcessSelector", FIELDS(selector_f)};

static const struct pb_field input_f[] = {BYTES(1, "stdin"), BYTES(2, "pty")};
static const struct pb_msg input_m = {.name = "ProcessInput", FIELDS(input_f)};

static const struct pb_field start_event_f[] = {U32(1, "pid")};
static const struct pb_msg start_event_m = {.name = "StartEvent", FIELDS(start_event_f)};
static const struct pb_field data_event_f[] = {BYTES(1, "stdout"), BYTES(2, "stderr"), BYTES(3, "pty")};
static const struct pb_msg data_event_m = {.name = "DataEvent", FIELDS(data_event_f)};
static const struct pb_field end_event_f[] = {
    {.number = 1, .json = "exitCode", .proto = "exit_code", .type = PB_SINT32},
    BOOL(2, "exited"),
    STR(3, "status"),
    STR(4, "error"),
};
static const struct pb_msg end_event_m = {.name = "EndEvent", FIELDS(end_event_f)};
static const struct pb_field event_f[] = {
    MSG(1, "start", &start_event_m),
    MSG(2, "data", &data_event_m),
    MSG(3, "end", &end_event_m),
    MSG(4, "keepalive", &pb_empty),
    I64(100, "missed"),
};
static const struct pb_msg event_m = {.name = "ProcessEvent", FIELDS(event_f)};

static const struct pb_field info_f[] = {MSG(1, "config", &config_m), U32(2, "pid"), STR(3, "tag")};
static const struct pb_msg info_m = {.name = "ProcessInfo", FIELDS(info_f)};

const struct pb_msg pb_process_list_request = {.name = "ListRequest"};
static const struct pb_field list_response_f[] = {LIST(1, "processes", &info_m)};
const struct pb_msg pb_process_list_response = {.name = "ListResponse", FIELDS(list_response_f)};

static const struct pb_field start_request_f[] = {MSG(1, "process", &config_m), MSG(2, "pty", &pty_m),
                                                  STR(3, "tag"), BOOL(4, "stdin")};
const struct pb_msg pb_process_start_request = {.name = "StartRequest", FIELDS(start_request_f)};
static const struct pb_field event_response_f[] = {MSG(1, "event", &event_m)};
const struct pb_msg pb_process_start_response = {.name = "StartResponse", FIELDS(event_response_f)};

static const struct pb_field selected_f[] = {MSG(1, "process", &selector_m)};
const struct pb_msg pb_process_connect_request = {.name = "ConnectRequest", FIELDS(selected_f)};
const struct pb_msg pb_process_connect_response = {.name = "ConnectResponse", FIELDS(event_response_f)};
const struct pb_msg pb_process_close_stdin_request = {.name = "CloseStdinRequest", FIELDS(selected_f)};

static const struct pb_field update_f[] = {MSG(1, "process", &selector_m), MSG(2, "pty", &pty_m)};
const struct pb_msg pb_process_update_request = {.name = "UpdateRequest", FIELDS(update_f)};

static const struct pb_field input_start_f[] = {MSG(1, "process", &selector_m)};
static const struct pb_msg input_start_m = {.name = "StreamInputRequest.StartEvent", FIELDS(input_start_f)};
static const struct pb_field input_data_f[] = {MSG(2, "input", &input_m)};
static const struct pb_msg input_data_m = {.name = "StreamInputRequest.DataEvent", FIELDS(input_data_f)};
static const struct pb_field stream_input_f[] = {
    MSG(1, "start", &input_start_m), MSG(2, "data", &input_data_m), MSG(3, "keepalive", &pb_empty)};
const struct pb_msg pb_process_stream_input_request = {.name = "StreamInputRequest", FIELDS(stream_input_f)};

static const struct pb_field send_input_f[] = {MSG(1, "process", &selector_m), MSG(2, "input", &input_m)};
const struct pb_msg pb_process_send_input_request = {.name = "SendInputRequest", FIELDS(send_input_f)};

static const struct pb_field send_signal_f[] = {MSG(1, "process", &selector_m), ENUM(2, "signal", signals)};
const struct pb_msg pb_process_send_signal_request = {.name = "SendSignalRequest", FIELDS(send_signal_f)};

/* ---- filesystem.proto ---- */

static const struct pb_enum file_types[] = {{0, "FILE_TYPE_UNSPECIFIED"},
                                            {1, "FILE_TYPE_FILE"},
                                            {2, "FILE_TYPE_DIRECTORY"},
                                            {3, "FILE_TYPE_SYMLINK"},
                                            {0, NULL}};
static const struct pb_enum event_types[] = {{0, "EVENT_TYPE_UNSPECIFIED"},
                                             {1, "EVENT_TYPE_CREATE"},
                                             {2, "EVENT_TYPE_WRITE"},
                                             {3, "EVENT_TYPE_REMOVE"},
                                             {4, "EVENT_TYPE_RENAME"},
                                             {5, "EVENT_TYPE_CHMOD"},
                                             {0, NULL}};

static const struct pb_field entry_f[] = {
    STR(1, "name"),
    ENUM(2, "type", file_types),
    STR(3, "path"),
    I64(4, "size"),
    U32(5, "mode"),
    STR(6, "permissions"),
    STR(7, "owner"),
    STR(8, "group"),
    {.number = 9, .json = "modifiedTime", .proto = "modified_time", .type = PB_TIMESTAMP},
    STR2(10, "symlinkTarget", "symlink_target"),
    MAP(11, "metadata"),
};
static const struct pb_msg entry_m = {.name = "EntryInfo", FIELDS(entry_f)};

static const struct pb_field path_f[] = {STR(1, "path")};
static const struct pb_field one_entry_f[] = {MSG(1, "entry", &entry_m)};
const struct pb_msg pb_fs_stat_request = {.name = "StatRequest", FIELDS(path_f)};
const struct pb_msg pb_fs_stat_response = {.name = "StatResponse", FIELDS(one_entry_f)};
const struct pb_msg pb_fs_make_dir_request = {.name = "MakeDirRequest", FIELDS(path_f)};
const struct pb_msg pb_fs_make_dir_response = {.name = "MakeDirResponse", FIELDS(one_entry_f)};
const struct pb_msg pb_fs_remove_request = {.name = "RemoveRequest", FIELDS(path_f)};

static const struct pb_field move_f[] = {STR(1, "source"), STR(2, "destination")};
const struct pb_msg pb_fs_move_request = {.name = "MoveRequest", FIELDS(move_f)};
const struct pb_msg pb_fs_move_response = {.name = "MoveResponse", FIELDS(one_entry_f)};

static const struct pb_field list_dir_f[] = {STR(1, "path"), U32(2, "depth")};
const struct pb_msg pb_fs_list_dir_request = {.name = "ListDirRequest", FIELDS(list_dir_f)};
static const struct pb_field entries_f[] = {LIST(1, "entries", &entry_m)};
const struct pb_msg pb_fs_list_dir_response = {.name = "ListDirResponse", FIELDS(entries_f)};

static const struct pb_field watch_f[] = {
    STR(1, "path"),
    BOOL(2, "recursive"),
    BOOL2(3, "includeEntry", "include_entry"),
    BOOL2(4, "allowNetworkMounts", "allow_network_mounts"),
};
const struct pb_msg pb_fs_watch_dir_request = {.name = "WatchDirRequest", FIELDS(watch_f)};
const struct pb_msg pb_fs_create_watcher_request = {.name = "CreateWatcherRequest", FIELDS(watch_f)};

static const struct pb_field fs_event_f[] = {STR(1, "name"), ENUM(2, "type", event_types),
                                             MSG(3, "entry", &entry_m)};
static const struct pb_msg fs_event_m = {.name = "FilesystemEvent", FIELDS(fs_event_f)};
static const struct pb_field watch_response_f[] = {
    MSG(1, "start", &pb_empty), MSG(2, "filesystem", &fs_event_m), MSG(3, "keepalive", &pb_empty)};
const struct pb_msg pb_fs_watch_dir_response = {.name = "WatchDirResponse", FIELDS(watch_response_f)};

static const struct pb_field watcher_id_f[] = {STR2(1, "watcherId", "watcher_id")};
const struct pb_msg pb_fs_create_watcher_response = {.name = "CreateWatcherResponse", FIELDS(watcher_id_f)};
const struct pb_msg pb_fs_get_watcher_events_request = {.name = "GetWatcherEventsRequest",
                                                        FIELDS(watcher_id_f)};
const struct pb_msg pb_fs_remove_watcher_request = {.name = "RemoveWatcherRequest", FIELDS(watcher_id_f)};
static const struct pb_field events_f[] = {LIST(1, "events", &fs_event_m)};
const struct pb_msg pb_fs_get_watcher_events_response = {.name = "GetWatcherEventsResponse",
                                                         FIELDS(events_f)};
