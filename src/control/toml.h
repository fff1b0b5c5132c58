/* A strict subset of TOML 1.0, enough for settings: comments, [tables], bare and dotted keys, basic and
 * literal strings on one line, integers (with underscores), booleans. Arrays, inline tables, dates, floats
 * and multi-line strings are refused by name. Pure: no I/O, no state after the call. */
#pragma once

#include "base/err.h"

#define HF_TOML_SIZE_MAX (256u * 1024u) /* bytes of a document */
#define HF_TOML_KEY_MAX 128u            /* bytes of a full key, "table.key" */
#define HF_TOML_STRING_MAX 4096u        /* bytes of a string value after unescaping */

enum hf_toml_type { HF_TOML_STRING, HF_TOML_INTEGER, HF_TOML_BOOLEAN };

struct hf_toml_value {
    enum hf_toml_type type;
    const char *text; /* the string unescaped; the integer in decimal; "true" or "false" */
    int64_t integer;
    bool boolean;
    unsigned line; /* of the key, from 1 */
};

/* Called for every key in order; key is the full dotted name, valid during the call like value->text. A
 * negative return ends the parse and is handed through (fill err). */
typedef int (*hf_toml_fn)(void *arg, const char *key, const struct hf_toml_value *value, struct hf_err *err);

/* 0; -EINVAL with "line N: …" for bad syntax or a key given twice; -EMSGSIZE beyond a limit; or what fn
 * returned. Keys before an error were already reported. */
int hf_toml_parse(struct hf_str text, hf_toml_fn fn, void *arg, struct hf_err *err) HF_MUST_USE;
