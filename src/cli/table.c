#include "cli/table.h"

#include <locale.h>
#include <wchar.h>

/* wcwidth(3) knows the wide characters, but only in a UTF-8 locale. The user's may be C: take one that every
 * glibc has, for this thread and the duration of one call. */
struct utf8 {
    locale_t locale, before;
};

static struct utf8 utf8_begin(void)
{
    struct utf8 u = {.locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0)};
    u.before = u.locale ? uselocale(u.locale) : (locale_t)0;
    return u;
}

static void utf8_end(struct utf8 *u)
{
    if (!u->locale)
        return;
    uselocale(u->before);
    freelocale(u->locale);
}

/* Next character of s: its bytes in *ret_n and its columns; -1 for a byte that is no character. */
static int next_char(const char *s, size_t *ret_n)
{
    mbstate_t state = {0};
    wchar_t c;
    size_t n = mbrtowc(&c, s, strlen(s), &state);
    if (n == (size_t)-1 || n == (size_t)-2 || n == 0) {
        *ret_n = 1;
        return -1;
    }
    *ret_n = n;
    return wcwidth(c);
}

static size_t width_in_locale(const char *s)
{
    size_t w = 0;
    while (*s) {
        size_t n;
        int c = next_char(s, &n);
        w += (size_t)HF_MAX(c, 0);
        s += n;
    }
    return w;
}

size_t hf_text_width(const char *s)
{
    struct utf8 u = utf8_begin();
    size_t w = width_in_locale(s);
    utf8_end(&u);
    return w;
}

char *hf_text_printable(const char *s)
{
    struct utf8 u = utf8_begin();
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(SIZE_MAX / 4);
    int r = hf_buf_adds(&b, "");
    while (*s && r == 0) {
        size_t n;
        int w = next_char(s, &n);
        if (w >= 0)
            r = hf_buf_add(&b, s, n);
        else if ((unsigned char)*s < 0x80 || n > 1)
            r = hf_buf_adds(&b, "?"); /* a control character (C1 ones take two bytes) */
        else
            r = hf_buf_adds(&b, "\xef\xbf\xbd");
        s += n;
    }
    utf8_end(&u);
    return hf_buf_take(&b);
}

void hf_table_init(struct hf_table *t, const char *const *heads)
{
    *t = (struct hf_table){.heads = heads};
    while (heads[t->n_columns] && t->n_columns < HF_TABLE_COLUMNS_MAX)
        t->n_columns++;
}

void hf_table_done(struct hf_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t->colors);
    *t = (struct hf_table){0};
}

void hf_table_flag(struct hf_table *t, size_t column, unsigned flags)
{
    t->flags[column] = flags;
}

void hf_table_cell_color(struct hf_table *t, const char *text, const char *color)
{
    if (t->n_cells == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->cells = hf_xrealloc(t->cells, t->cap * sizeof(*t->cells));
        t->colors = hf_xrealloc(t->colors, t->cap * sizeof(*t->colors));
    }
    t->cells[t->n_cells] = hf_text_printable(text && *text ? text : "-");
    t->colors[t->n_cells++] = color ? color : "";
}

void hf_table_cell(struct hf_table *t, const char *text)
{
    hf_table_cell_color(t, text, "");
}

/* Bytes of s that fit into `room` columns. */
static size_t cut_at(const char *s, size_t room, size_t *ret_width)
{
    size_t at = 0, w = 0;
    while (s[at]) {
        size_t n;
        int c = next_char(s + at, &n);
        if (w + (size_t)HF_MAX(c, 0) > room)
            break;
        w += (size_t)HF_MAX(c, 0);
        at += n;
    }
    *ret_width = w;
    return at;
}

static void pad(FILE *out, size_t n)
{
    while (n--)
        (void)fputc(' ', out);
}

struct layout {
    size_t width[HF_TABLE_COLUMNS_MAX];
    const char *reset;
    FILE *out;
};

static void print_cell(const struct hf_table *t, const struct layout *l, size_t column, const char *text,
                       const char *color)
{
    size_t full = width_in_locale(text), room = l->width[column], w = full, bytes = strlen(text);
    const char *tail = "";
    bool last = column + 1 == t->n_columns;
    if (full > room && room > 0) {
        bytes = cut_at(text, room - 1, &w);
        tail = "…";
        w++;
    }
    size_t fill = room > w ? room - w : 0;
    if (t->flags[column] & HF_TABLE_RIGHT)
        pad(l->out, fill);
    (void)fprintf(l->out, "%s%.*s%s%s", color, (int)bytes, text, tail, *color ? l->reset : "");
    if (!(t->flags[column] & HF_TABLE_RIGHT) && !last)
        pad(l->out, fill);
    (void)fputs(last ? "\n" : "  ", l->out);
}

static void measure(const struct hf_table *t, struct layout *l, size_t width)
{
    size_t total = 2 * (t->n_columns - 1);
    for (size_t c = 0; c < t->n_columns; c++) {
        l->width[c] = width_in_locale(t->heads[c]);
        for (size_t i = c; i < t->n_cells; i += t->n_columns)
            l->width[c] = HF_MAX(l->width[c], width_in_locale(t->cells[i]));
        total += l->width[c];
    }
    for (size_t c = t->n_columns; width && total > width && c-- > 0;) {
        size_t min = width_in_locale(t->heads[c]), over = total - width;
        if (!(t->flags[c] & HF_TABLE_FLEX) || l->width[c] <= min)
            continue;
        size_t less = HF_MIN(over, l->width[c] - min);
        l->width[c] -= less;
        total -= less;
    }
}

void hf_table_print(const struct hf_table *t, FILE *out, size_t width, const char *bold, const char *reset)
{
    struct utf8 u = utf8_begin();
    struct layout l = {.reset = reset, .out = out};
    measure(t, &l, width);
    for (size_t c = 0; c < t->n_columns; c++)
        print_cell(t, &l, c, t->heads[c], bold);
    for (size_t i = 0; i < t->n_cells; i++)
        print_cell(t, &l, i % t->n_columns, t->cells[i], t->colors[i]);
    utf8_end(&u);
}
