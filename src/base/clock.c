#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;
    (void)clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t hf_mono_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t hf_boot_ms(void)
{
    return read_clock(CLOCK_BOOTTIME) / 1000000u;
}

int64_t hf_real_ns(void)
{
    return (int64_t)read_clock(CLOCK_REALTIME);
}

static void format(int64_t sec, long frac, int digits, char out[HF_RFC3339_MAX])
{
    struct tm tm;
    time_t t = (time_t)sec;
    char date[24];
    (void)gmtime_r(&t, &tm);
    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out, HF_RFC3339_MAX, "%s.%0*ldZ", date, digits, frac);
}

static int64_t floor_div(int64_t a, int64_t b, int64_t *ret_rem)
{
    int64_t q = a / b, rem = a % b;
    if (rem < 0) {
        rem += b;
        q--;
    }
    *ret_rem = rem;
    return q;
}

void hf_rfc3339_ms(int64_t real_ms, char out[HF_RFC3339_MAX])
{
    int64_t frac, sec = floor_div(real_ms, 1000, &frac);
    format(sec, (long)frac, 3, out);
}

void hf_rfc3339_ns(int64_t real_ns, char out[HF_RFC3339_MAX])
{
    int64_t frac, sec = floor_div(real_ns, 1000000000, &frac);
    format(sec, (long)frac, 9, out);
}

/* Reads exactly n digits at *i. */
static int digits(struct hf_str s, size_t *i, int n, int *ret)
{
    int v = 0;
    for (int k = 0; k < n; k++, (*i)++) {
        if (*i >= s.n || s.p[*i] < '0' || s.p[*i] > '9')
            return -EINVAL;
        v = v * 10 + (s.p[*i] - '0');
    }
    *ret = v;
    return 0;
}

static int literal(struct hf_str s, size_t *i, const char *set)
{
    if (*i >= s.n || !strchr(set, s.p[*i]))
        return -EINVAL;
    (*i)++;
    return 0;
}

int hf_rfc3339_parse(struct hf_str s, int64_t *ret_real_ns)
{
    size_t i = 0;
    struct tm tm = {0};
    int64_t frac = 0;
    if (digits(s, &i, 4, &tm.tm_year) || literal(s, &i, "-") || digits(s, &i, 2, &tm.tm_mon) ||
        literal(s, &i, "-") || digits(s, &i, 2, &tm.tm_mday) || literal(s, &i, "Tt ") ||
        digits(s, &i, 2, &tm.tm_hour) || literal(s, &i, ":") || digits(s, &i, 2, &tm.tm_min) ||
        literal(s, &i, ":") || digits(s, &i, 2, &tm.tm_sec))
        return -EINVAL;
    if (tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 ||
        tm.tm_min > 59 || tm.tm_sec > 60 || tm.tm_year < 1678 || tm.tm_year > 2261)
        return -EINVAL;
    if (i < s.n && s.p[i] == '.') {
        int64_t unit = 100000000;
        size_t start = ++i;
        for (; i < s.n && s.p[i] >= '0' && s.p[i] <= '9'; i++, unit /= 10)
            frac += (s.p[i] - '0') * unit;
        if (i == start)
            return -EINVAL;
    }
    int64_t offset = 0;
    if (i < s.n && (s.p[i] == 'Z' || s.p[i] == 'z')) {
        i++;
    } else {
        int h, m, sign = i < s.n && s.p[i] == '-' ? -1 : 1;
        if (literal(s, &i, "+-") || digits(s, &i, 2, &h) || literal(s, &i, ":") || digits(s, &i, 2, &m) ||
            h > 23 || m > 59)
            return -EINVAL;
        offset = sign * (h * 3600 + m * 60);
    }
    if (i != s.n)
        return -EINVAL;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *ret_real_ns = ((int64_t)timegm(&tm) - offset) * 1000000000 + frac;
    return 0;
}
