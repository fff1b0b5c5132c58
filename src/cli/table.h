/* Tables for people: aligned by what a terminal shows, not by bytes. */
#pragma once

#include <stdio.h>

#include "base/buf.h"

#define HF_TABLE_COLUMNS_MAX 12
#define HF_TABLE_RIGHT (1u << 0) /* numbers */
#define HF_TABLE_FLEX (1u << 1)  /* cut first when the terminal is too narrow */

struct hf_table {
    const char *const *heads; /* borrowed */
    unsigned flags[HF_TABLE_COLUMNS_MAX];
    size_t n_columns;
    char **cells; /* owned, safe to print, row by row */
    const char **colors;
    size_t n_cells, cap;
};

/* heads: NULL-terminated, at most HF_TABLE_COLUMNS_MAX. */
void hf_table_init(struct hf_table *t, const char *const *heads);
void hf_table_done(struct hf_table *t);
void hf_table_flag(struct hf_table *t, size_t column, unsigned flags);
/* Adds the next cell, left to right; text NULL or "" prints as "-". Control characters become '?', broken
 * UTF-8 becomes U+FFFD: a name must not be able to drive the terminal. */
void hf_table_cell(struct hf_table *t, const char *text);
/* As above, inside a colour (an escape sequence of hf_color, may be ""). */
void hf_table_cell_color(struct hf_table *t, const char *text, const char *color);
/* width: columns of the terminal, 0 = do not cut. Headings in `bold` (may be ""), colours closed by `reset`.
 */
void hf_table_print(const struct hf_table *t, FILE *out, size_t width, const char *bold, const char *reset);

/* Columns that UTF-8 text takes on a terminal. */
size_t hf_text_width(const char *s);
/* A copy that is safe to show (see hf_table_cell); malloc'ed. */
char *hf_text_printable(const char *s) HF_MUST_USE;
