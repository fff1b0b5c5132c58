#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

HF_PRINTF(4, 0)
static void set(struct hf_err *err, int r, int status, const char *fmt, va_list ap)
{
    err->r = r;
    err->status = status;
    (void)vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
}

int hf_err_set(struct hf_err *err, int r, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set(err, r, 0, fmt, ap);
        va_end(ap);
    }
    return r;
}

int hf_err_http(struct hf_err *err, int r, int status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set(err, r, status, fmt, ap);
        va_end(ap);
    }
    return r;
}

int hf_err_wrap(struct hf_err *err, const char *fmt, ...)
{
    if (!err)
        return -EIO;
    char prefix[HF_ERR_MSG_MAX], whole[HF_ERR_MSG_MAX * 2 + 3];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    (void)snprintf(whole, sizeof(whole), "%s: %s", prefix, err->msg);
    (void)snprintf(err->msg, sizeof(err->msg), "%.*s", HF_ERR_MSG_MAX - 1, whole);
    return err->r;
}

int hf_err_http_status(const struct hf_err *err)
{
    if (err->status)
        return err->status;
    switch (-err->r) {
    case EINVAL:
    case ERANGE:
    case ENAMETOOLONG:
    case EBADMSG:
        return 400;
    case EACCES:
    case EPERM:
        return 403;
    case ENOENT:
        return 404;
    case EEXIST:
    case EBUSY:
        return 409;
    case EMSGSIZE:
    case E2BIG:
        return 413;
    case ENOSYS:
    case EOPNOTSUPP:
        return 501;
    case EAGAIN:
        return 503;
    case ETIMEDOUT:
        return 504;
    case ENOSPC:
    case EDQUOT:
        return 507;
    default:
        return 500;
    }
}
