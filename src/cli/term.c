#include "cli/term.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "base/clock.h"
#include "base/text.h"

size_t hf_term_width(void)
{
    struct winsize ws;
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) < 0)
        return 0;
    return ws.ws_col;
}

void hf_term_size(int fd, unsigned *ret_cols, unsigned *ret_rows)
{
    struct winsize ws = {0};
    bool known = ioctl(fd, TIOCGWINSZ, &ws) == 0 && ws.ws_col && ws.ws_row;
    *ret_cols = known ? ws.ws_col : 80;
    *ret_rows = known ? ws.ws_row : 24;
}

static struct termios saved;
static volatile sig_atomic_t raw_fd = -1;

void hf_term_restore(void)
{
    int fd = raw_fd;
    if (fd < 0)
        return;
    raw_fd = -1;
    (void)tcsetattr(fd, TCSADRAIN, &saved);
}

/* Ends by the same signal, with the terminal put back first. */
static void on_fatal(int sig)
{
    hf_term_restore();
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

int hf_term_raw(int fd)
{
    static const int fatal[] = {SIGSEGV, SIGBUS,  SIGABRT, SIGFPE,  SIGILL,
                                SIGHUP,  SIGTERM, SIGINT,  SIGQUIT, SIGPIPE};
    static bool registered;
    struct termios raw;
    if (tcgetattr(fd, &saved) < 0)
        return -errno;
    if (!registered) {
        struct sigaction sa = {.sa_handler = on_fatal, .sa_flags = SA_NODEFER};
        (void)atexit(hf_term_restore);
        for (size_t i = 0; i < HF_ARRAY_LEN(fatal); i++)
            (void)sigaction(fatal[i], &sa, NULL);
        registered = true;
    }
    raw = saved;
    cfmakeraw(&raw);
    raw_fd = fd;
    if (tcsetattr(fd, TCSADRAIN, &raw) < 0) {
        raw_fd = -1;
        return -errno;
    }
    return 0;
}

bool hf_term_confirm(const char *question)
{
    char answer[16] = "";
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return true;
    (void)fprintf(stderr, "%s [y/N] ", question);
    ssize_t n = read(STDIN_FILENO, answer, sizeof(answer) - 1);
    if (n <= 0)
        return false;
    answer[n] = '\0';
    answer[strcspn(answer, "\r\n")] = '\0';
    return strcmp(answer, "y") == 0 || strcmp(answer, "Y") == 0 || strcmp(answer, "yes") == 0;
}

void hf_progress_start(struct hf_progress *p, const struct hf_cli *cli, const char *fmt, ...)
{
    va_list ap;
    *p = (struct hf_progress){.on = !cli->quiet && !cli->json && isatty(STDERR_FILENO),
                              .start_ms = hf_mono_ms()};
    va_start(ap, fmt);
    (void)vsnprintf(p->label, sizeof(p->label), fmt, ap);
    va_end(ap);
}

void hf_progress_bytes(struct hf_progress *p, uint64_t done, uint64_t total)
{
    static const char *const frames[] = {"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"};
    uint64_t now = hf_mono_ms();
    char a[HF_HUMAN_MAX], b[HF_HUMAN_MAX], rate[HF_HUMAN_MAX];
    if (!p->on || now - p->start_ms < HF_PROGRESS_AFTER_MS || now - p->last_ms < HF_PROGRESS_EVERY_MS)
        return;
    p->last_ms = now;
    p->shown = true;
    const char *frame = frames[p->frame++ % HF_ARRAY_LEN(frames)];
    uint64_t per_second = done * 1000 / HF_MAX(now - p->start_ms, (uint64_t)1);
    if (total)
        (void)fprintf(stderr, "\r\033[K%s %s  %3u%%  %s of %s  %s/s", frame, p->label,
                      (unsigned)(HF_MIN(done, total) * 100 / total), hf_human_size(done, a),
                      hf_human_size(total, b), hf_human_size(per_second, rate));
    else if (done)
        (void)fprintf(stderr, "\r\033[K%s %s  %s  %s/s", frame, p->label, hf_human_size(done, a),
                      hf_human_size(per_second, rate));
    else
        (void)fprintf(stderr, "\r\033[K%s %s  %s", frame, p->label,
                      hf_human_seconds((now - p->start_ms) / 1000, a));
}

void hf_progress_end(struct hf_progress *p)
{
    if (p->shown)
        (void)fputs("\r\033[K", stderr);
    p->on = p->shown = false;
}
