/* Every request and response that crosses the wire; the first input byte picks one. */
#pragma once

#include "envd/pbjson.h"

static const struct pb_msg *const messages[] = {
    &pb_process_start_request,
    &pb_process_start_response,
    &pb_process_list_response,
    &pb_process_stream_input_request,
    &pb_process_send_input_request,
    &pb_process_send_signal_request,
    &pb_process_update_request,
    &pb_process_connect_request,
    &pb_fs_stat_response,
    &pb_fs_list_dir_response,
    &pb_fs_watch_dir_request,
    &pb_fs_watch_dir_response,
    &pb_fs_move_request,
    &pb_fs_get_watcher_events_response,
    &pb_empty,
};
