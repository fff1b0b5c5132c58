/* The terminal: what it can do, raw mode that is always undone, progress that only slow things show. */
#pragma once

#include "base/base.h"
#include "cli/cli.h"

/* stdout's width in columns; 0 when it is no terminal. */
size_t hf_term_width(void);
/* Rows and columns of the terminal on fd; 80x24 when unknown. */
void hf_term_size(int fd, unsigned *ret_cols, unsigned *ret_rows);

/* Puts the terminal on fd into raw mode. It is put back by hf_term_restore, at exit(3) and when a signal ends
 * the process. -ENOTTY when fd is no terminal. */
int hf_term_raw(int fd) HF_MUST_USE;
void hf_term_restore(void); /* idempotent, async-signal-safe */

/* Asks on the terminal; false for anything but y/yes. A script has said what it wants: true without one. */
bool hf_term_confirm(const char *question);

#define HF_PROGRESS_AFTER_MS 1000u /* shorter work shows nothing */
#define HF_PROGRESS_EVERY_MS 100u

/* One line on stderr, on a terminal only, gone when done. */
struct hf_progress {
    char label[96];
    bool on; /* there is somebody to show it to */
    bool shown;
    uint64_t start_ms, last_ms;
    unsigned frame;
};
void hf_progress_start(struct hf_progress *p, const struct hf_cli *cli, const char *fmt, ...) HF_PRINTF(3, 4);
/* total 0 = unknown: a spinner with the amount, or without when done is 0 as well. */
void hf_progress_bytes(struct hf_progress *p, uint64_t done, uint64_t total);
void hf_progress_end(struct hf_progress *p);
