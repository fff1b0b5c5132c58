#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"

static enum hf_log_level min_level = HF_LOG_INFO;
static const char *const names[] = {"debug", "info", "warn", "error"};

void hf_log_set_level(enum hf_log_level level)
{
    min_level = level;
}

int hf_log_level_parse(const char *s, enum hf_log_level *ret)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++)
        if (strcmp(s, names[i]) == 0) {
            *ret = (enum hf_log_level)i;
            return 0;
        }
    return -EINVAL;
}

void hf_log(enum hf_log_level level, const char *msg, const char *fields, ...)
{
    if (level < min_level)
        return;
    int saved = errno;
    char line[2048], when[HF_RFC3339_MAX];
    hf_rfc3339_ms(hf_real_ms(), when);
    int n = snprintf(line, sizeof(line) - 1, "time=%s level=%s msg=\"%s\"", when, names[level], msg);
    if (n > 0 && fields[0] && (size_t)n < sizeof(line) - 2) {
        va_list ap;
        line[n++] = ' ';
        va_start(ap, fields);
        int more = vsnprintf(line + n, sizeof(line) - 1 - (size_t)n, fields, ap);
        va_end(ap);
        n = more < 0 ? n : (int)HF_MIN((size_t)(n + more), sizeof(line) - 2);
    }
    line[n++] = '\n';
    ssize_t r = write(STDERR_FILENO, line, (size_t)n); /* one write: lines of threads do not mix */
    (void)r;
    errno = saved;
}

const char *hf_log_quote(const char *s)
{
    enum { SLOTS = 8, MAX = 200 };
    static _Thread_local char slots[SLOTS][MAX * 4 + 8];
    static _Thread_local unsigned next;
    char *out = slots[next++ % SLOTS], *o = out;
    *o++ = '"';
    for (size_t i = 0; s && s[i] && i < MAX; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            *o++ = '\\';
            *o++ = (char)c;
        } else if (c < 0x20 || c == 0x7f) {
            o += snprintf(o, 5, "\\x%02x", c);
        } else {
            *o++ = (char)c;
        }
    }
    *o++ = '"';
    *o = '\0';
    return out;
}
