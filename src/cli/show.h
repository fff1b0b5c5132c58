/* Showing the API's JSON to people: small helpers that several verbs share. */
#pragma once

#include <jansson.h>

#include "cli/cli.h"
#include "cli/table.h"

/* Prints JSON for programs: one line, or indented on a terminal. */
void hf_show_json(const json_t *j);
/* A list as the options ask for it: JSON, the values of key (--quiet), the sentence none when it is empty, or
 * print's table. */
void hf_show_list(const struct hf_cli *cli, const json_t *all, const char *key, const char *none,
                  void (*print)(const struct hf_cli *cli, const json_t *all));
/* A string member, or "" . */
const char *hf_show_str(const json_t *j, const char *key);
/* "5m 3s" since or until a time stamp; "" when it is absent or broken. Returns out. */
const char *hf_show_since(const json_t *j, const char *key, char out[32]);
const char *hf_show_until(const json_t *j, const char *key, char out[32]);
/* Green for what runs, yellow for what rests or moves, red for what is gone. */
const char *hf_show_state_color(const struct hf_cli *cli, const char *state);
/* "a=1 b=2" of a string map; malloc'ed. */
char *hf_show_map(const json_t *map) HF_MUST_USE;
/* Prints the table to stdout, headings bold, cut to the terminal. */
void hf_show_table(const struct hf_cli *cli, const struct hf_table *t);
/* "Name:   value" lines; nothing for an empty value. */
void hf_show_field(const struct hf_cli *cli, const char *name, const char *fmt, ...) HF_PRINTF(3, 4);
/* {"a":"1"} of repeated --opt a=1 options; NULL when none was given; err names the bad one. */
int hf_show_pairs(const struct hf_args *a, const char *opt, json_t **ret, struct hf_err *err) HF_MUST_USE;
