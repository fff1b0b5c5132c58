#include "envd/pbjson.h"

#include <math.h>

#include "base/clock.h"
#include "base/id.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_LEN = 2, WIRE_GROUP = 3, WIRE_GROUP_END = 4, WIRE_32 = 5 };

/* ---- reading the binary form ---- */

struct reader {
    const unsigned char *p, *end;
};

static bool get_varint(struct reader *r, uint64_t *ret)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70 && r->p < r->end; shift += 7) {
        unsigned char b = *r->p++;
        if (shift < 64)
            v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *ret = v;
            return true;
        }
    }
    return false;
}

static bool get_len(struct reader *r, struct reader *ret)
{
    uint64_t n;
    if (!get_varint(r, &n) || n > (uint64_t)(r->end - r->p))
        return false;
    *ret = (struct reader){r->p, r->p + n};
    r->p += n;
    return true;
}

static bool skip_bytes(struct reader *r, size_t n)
{
    if ((size_t)(r->end - r->p) < n)
        return false;
    r->p += n;
    return true;
}

static bool get_tag(struct reader *r, uint32_t *ret_number, unsigned *ret_wire)
{
    uint64_t tag;
    if (!get_varint(r, &tag) || tag > UINT32_MAX || tag >> 3 == 0)
        return false;
    *ret_number = (uint32_t)(tag >> 3);
    *ret_wire = (unsigned)(tag & 7);
    return true;
}

static bool skip_field(struct reader *r, uint32_t number, unsigned wire, int depth)
{
    uint64_t v;
    struct reader sub;
    switch (wire) {
    case WIRE_VARINT:
        return get_varint(r, &v);
    case WIRE_64:
        return skip_bytes(r, 8);
    case WIRE_LEN:
        return get_len(r, &sub);
    case WIRE_32:
        return skip_bytes(r, 4);
    case WIRE_GROUP:
        break;
    default:
        return false;
    }
    /* A group (deprecated, but legal to meet) runs to the end tag of its own number. */
    while (depth < PB_DEPTH_MAX) {
        uint32_t n;
        unsigned w;
        if (!get_tag(r, &n, &w))
            return false;
        if (w == WIRE_GROUP_END)
            return n == number;
        if (!skip_field(r, n, w, depth + 1))
            return false;
    }
    return false;
}

static const struct pb_field *find_field(const struct pb_msg *m, uint32_t number)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->fields[i].number == number)
            return &m->fields[i];
    return NULL;
}

static bool decode_into(const struct pb_msg *m, struct reader r, json_t *obj, int depth);

static json_t *enum_to_json(const struct pb_field *f, int32_t v)
{
    for (const struct pb_enum *e = f->enums; e->name; e++)
        if (e->value == v)
            return json_string(e->name);
    return json_integer(v);
}

static json_t *varint_to_json(const struct pb_field *f, uint64_t v)
{
    uint32_t u = (uint32_t)v;
    switch (f->type) {
    case PB_BOOL:
        return json_boolean(v != 0);
    case PB_UINT32:
        return json_integer(u);
    case PB_INT32:
        return json_integer((int32_t)u);
    case PB_SINT32:
        return json_integer((int32_t)((u >> 1) ^ (0u - (u & 1))));
    case PB_INT64:
        return json_integer((json_int_t)v);
    case PB_ENUM:
        return enum_to_json(f, (int32_t)u);
    default:
        return NULL;
    }
}

static json_t *bytes_to_json(struct reader r)
{
    size_t n = (size_t)(r.end - r.p);
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(n / 3 * 4 + 8);
    if (hf_base64_add(&b, r.p, n) < 0)
        return NULL;
    return json_stringn(b.n ? b.p : "", b.n);
}

static json_t *timestamp_to_json(struct reader r)
{
    int64_t seconds = 0, nanos = 0;
    while (r.p < r.end) {
        uint32_t number;
        unsigned wire;
        uint64_t v;
        if (!get_tag(&r, &number, &wire))
            return NULL;
        if ((number != 1 && number != 2) || wire != WIRE_VARINT) {
            if (!skip_field(&r, number, wire, 0))
                return NULL;
            continue;
        }
        if (!get_varint(&r, &v))
            return NULL;
        if (number == 1)
            seconds = (int64_t)v;
        else
            nanos = (int32_t)(uint32_t)v;
    }
    int64_t ns;
    if (nanos < 0 || nanos > 999999999 || __builtin_mul_overflow(seconds, INT64_C(1000000000), &ns) ||
        __builtin_add_overflow(ns, nanos, &ns))
        return NULL;
    char text[HF_RFC3339_MAX];
    hf_rfc3339_ns(ns, text);
    return json_string(text);
}

static bool map_entry_into(struct reader r, json_t *map)
{
    struct reader part[2] = {{NULL, NULL}, {NULL, NULL}};
    while (r.p < r.end) {
        uint32_t number;
        unsigned wire;
        if (!get_tag(&r, &number, &wire))
            return false;
        bool known = (number == 1 || number == 2) && wire == WIRE_LEN;
        if (known ? !get_len(&r, &part[number - 1]) : !skip_field(&r, number, wire, 0))
            return false;
    }
    size_t kn = (size_t)(part[0].end - part[0].p), vn = (size_t)(part[1].end - part[1].p);
    json_t *value = json_stringn(vn ? (const char *)part[1].p : "", vn);
    hf_auto_free char *key = hf_xstrndup(kn ? (const char *)part[0].p : "", kn);
    if (!value || strlen(key) != kn) { /* keys of jansson objects end at a NUL */
        json_decref(value);
        return false;
    }
    return json_object_set_new(map, key, value) == 0; /* fails for a key that is not UTF-8 */
}

static json_t *len_to_json(const struct pb_field *f, struct reader r, int depth)
{
    size_t n = (size_t)(r.end - r.p);
    switch (f->type) {
    case PB_STRING:
        return json_stringn(n ? (const char *)r.p : "", n); /* NULL when not UTF-8 */
    case PB_BYTES:
        return bytes_to_json(r);
    case PB_TIMESTAMP:
        return timestamp_to_json(r);
    case PB_MESSAGE: {
        json_t *sub = json_object();
        if (decode_into(f->msg, r, sub, depth + 1))
            return sub;
        json_decref(sub);
        return NULL;
    }
    default:
        return NULL;
    }
}

static bool store(const struct pb_field *f, json_t *obj, json_t *v)
{
    if (!v)
        return false;
    if (!(f->flags & PB_REPEATED))
        return json_object_set_new(obj, f->json, v) == 0;
    json_t *a = json_object_get(obj, f->json);
    if (!a) {
        a = json_array();
        json_object_set_new(obj, f->json, a);
    }
    return json_array_append_new(a, v) == 0;
}

static bool decode_packed(const struct pb_field *f, struct reader r, json_t *obj)
{
    while (r.p < r.end) {
        uint64_t v;
        if (!get_varint(&r, &v) || !store(f, obj, varint_to_json(f, v)))
            return false;
    }
    return true;
}

static bool is_scalar(enum pb_type t)
{
    return t == PB_BOOL || t == PB_UINT32 || t == PB_INT32 || t == PB_SINT32 || t == PB_INT64 || t == PB_ENUM;
}

static bool decode_field(const struct pb_field *f, unsigned wire, struct reader *r, json_t *obj, int depth)
{
    if (wire == WIRE_VARINT && is_scalar(f->type)) {
        uint64_t v;
        return get_varint(r, &v) && store(f, obj, varint_to_json(f, v));
    }
    struct reader sub;
    if (wire != WIRE_LEN || !get_len(r, &sub))
        return false;
    if (is_scalar(f->type))
        return (f->flags & PB_REPEATED) && decode_packed(f, sub, obj);
    json_t *there = f->flags & PB_REPEATED ? NULL : json_object_get(obj, f->json);
    if (f->type == PB_MAP_STRING) {
        if (!there) {
            there = json_object();
            json_object_set_new(obj, f->json, there);
        }
        return map_entry_into(sub, there);
    }
    if (f->type == PB_MESSAGE && there) /* a second occurrence merges into the first */
        return decode_into(f->msg, sub, there, depth + 1);
    return store(f, obj, len_to_json(f, sub, depth));
}

static bool decode_into(const struct pb_msg *m, struct reader r, json_t *obj, int depth)
{
    if (depth > PB_DEPTH_MAX)
        return false;
    while (r.p < r.end) {
        uint32_t number;
        unsigned wire;
        if (!get_tag(&r, &number, &wire))
            return false;
        const struct pb_field *f = find_field(m, number);
        if (!(f ? decode_field(f, wire, &r, obj, depth) : skip_field(&r, number, wire, depth)))
            return false;
    }
    return true;
}

json_t *pb_to_json(const struct pb_msg *m, const void *p, size_t n)
{
    json_t *obj = json_object();
    const unsigned char *bytes = p ? p : (const unsigned char *)"";
    if (decode_into(m, (struct reader){bytes, bytes + n}, obj, 0))
        return obj;
    json_decref(obj);
    return NULL;
}

/* ---- values of the JSON form ---- */

static int want(const struct pb_field *f, const char *what, struct hf_err *err)
{
    return hf_err_set(err, -EINVAL, "field \"%s\" must be %s", f->json, what);
}

static bool text_to_i64(const char *s, int64_t *ret)
{
    char *end = NULL;
    if (!(*s == '-' || (*s >= '0' && *s <= '9')))
        return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno != 0 || *end != '\0')
        return false;
    *ret = v;
    return true;
}

/* proto3 JSON takes an integer as number, as number with an empty fraction (1e3) and as text. */
static bool json_to_i64(const json_t *v, int64_t *ret)
{
    if (json_is_integer(v)) {
        *ret = json_integer_value(v);
        return true;
    }
    if (json_is_string(v))
        return text_to_i64(json_string_value(v), ret);
    double d = json_real_value(v);
    if (!json_is_real(v) || d != floor(d) || d < -9007199254740992.0 || d > 9007199254740992.0)
        return false;
    *ret = (int64_t)d;
    return true;
}

static int json_to_enum(const struct pb_field *f, const json_t *v, int64_t *ret, struct hf_err *err)
{
    if (!json_is_string(v))
        return json_to_i64(v, ret) && *ret >= INT32_MIN && *ret <= INT32_MAX
                   ? 0
                   : want(f, "a name or a number", err);
    for (const struct pb_enum *e = f->enums; e->name; e++)
        if (strcmp(e->name, json_string_value(v)) == 0) {
            *ret = e->value;
            return 0;
        }
    return hf_err_set(err, -EINVAL, "field \"%s\": unknown value \"%.80s\"", f->json, json_string_value(v));
}

/* The integer that goes on the wire, or the one to keep in the normalised object. */
static int json_to_scalar(const struct pb_field *f, const json_t *v, int64_t *ret, struct hf_err *err)
{
    if (f->type == PB_BOOL) {
        *ret = json_is_true(v);
        return json_is_boolean(v) ? 0 : want(f, "true or false", err);
    }
    if (f->type == PB_ENUM)
        return json_to_enum(f, v, ret, err);
    if (!json_to_i64(v, ret))
        return want(f, "a whole number", err);
    if (f->type == PB_UINT32 && (*ret < 0 || *ret > UINT32_MAX))
        return want(f, "between 0 and 4294967295", err);
    if ((f->type == PB_INT32 || f->type == PB_SINT32) && (*ret < INT32_MIN || *ret > INT32_MAX))
        return want(f, "between -2147483648 and 2147483647", err);
    return 0;
}

/* The value of f in obj under either of its names; NULL when absent or null. */
static json_t *field_of(const struct pb_field *f, const json_t *obj)
{
    json_t *v = json_object_get(obj, f->json);
    if (!v && f->proto)
        v = json_object_get(obj, f->proto);
    return json_is_null(v) ? NULL : v;
}

/* ---- writing the binary form ---- */

static int put_varint(struct hf_buf *b, uint64_t v)
{
    unsigned char tmp[10];
    size_t n = 0;
    do {
        tmp[n] = (unsigned char)(v & 0x7f);
        v >>= 7;
        if (v)
            tmp[n] |= 0x80;
        n++;
    } while (v);
    return hf_buf_add(b, tmp, n);
}

static int put_len(struct hf_buf *b, uint32_t number, const void *p, size_t n)
{
    int r = put_varint(b, (uint64_t)number << 3 | WIRE_LEN);
    if (r == 0)
        r = put_varint(b, n);
    if (r == 0 && n)
        r = hf_buf_add(b, p, n);
    return r;
}

static int put_int(struct hf_buf *b, uint32_t number, uint64_t v)
{
    int r = put_varint(b, (uint64_t)number << 3 | WIRE_VARINT);
    return r == 0 ? put_varint(b, v) : r;
}

static int encode_timestamp(const struct pb_field *f, const json_t *v, struct hf_buf *out, struct hf_err *err)
{
    int64_t ns;
    if (!json_is_string(v) ||
        hf_rfc3339_parse((struct hf_str){json_string_value(v), json_string_length(v)}, &ns) < 0)
        return want(f, "an RFC 3339 time", err);
    int64_t seconds = ns / 1000000000, nanos = ns % 1000000000;
    if (nanos < 0) { /* nanos count forward, also before 1970 */
        nanos += 1000000000;
        seconds--;
    }
    int r = put_int(out, 1, (uint64_t)seconds);
    return r == 0 && nanos ? put_int(out, 2, (uint64_t)nanos) : r;
}

static int encode_map(const struct pb_field *f, const json_t *v, struct hf_buf *out, struct hf_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v))
        return want(f, "an object of strings", err);
    json_object_foreach((json_t *)v, key, value)
    {
        if (!json_is_string(value))
            return want(f, "an object of strings", err);
        hf_auto_buf struct hf_buf entry = HF_BUF_INIT(out->max);
        int r = put_len(&entry, 1, key, strlen(key));
        if (r == 0)
            r = put_len(&entry, 2, json_string_value(value), json_string_length(value));
        if (r == 0)
            r = put_len(out, f->number, entry.p, entry.n);
        if (r < 0)
            return r;
    }
    return 0;
}

static int encode_bytes(const struct pb_field *f, const json_t *v, struct hf_buf *out, struct hf_err *err)
{
    if (!json_is_string(v))
        return want(f, "base64 text", err);
    int r = hf_unbase64_add(out, (struct hf_str){json_string_value(v), json_string_length(v)});
    return r == -EINVAL ? want(f, "base64 text", err) : r;
}

static int encode_msg(const struct pb_msg *m, const json_t *obj, struct hf_buf *out, int depth,
                      struct hf_err *err);

static int encode_value(const struct pb_field *f, const json_t *v, struct hf_buf *out, int depth,
                        struct hf_err *err)
{
    if (is_scalar(f->type)) {
        int64_t i;
        int r = json_to_scalar(f, v, &i, err);
        if (r < 0)
            return r;
        uint64_t u = (uint64_t)i;
        if (f->type == PB_SINT32)
            u = (uint32_t)((uint32_t)i << 1) ^ (uint32_t)(i >> 63);
        return put_int(out, f->number, u);
    }
    if (f->type == PB_STRING)
        return json_is_string(v) ? put_len(out, f->number, json_string_value(v), json_string_length(v))
                                 : want(f, "text", err);
    hf_auto_buf struct hf_buf sub = HF_BUF_INIT(out->max);
    int r;
    if (f->type == PB_BYTES)
        r = encode_bytes(f, v, &sub, err);
    else if (f->type == PB_TIMESTAMP)
        r = encode_timestamp(f, v, &sub, err);
    else
        r = json_is_object(v) ? encode_msg(f->msg, v, &sub, depth + 1, err) : want(f, "an object", err);
    return r < 0 ? r : put_len(out, f->number, sub.p, sub.n);
}

static int encode_field(const struct pb_field *f, const json_t *v, struct hf_buf *out, int depth,
                        struct hf_err *err)
{
    if (f->type == PB_MAP_STRING)
        return encode_map(f, v, out, err);
    if (!(f->flags & PB_REPEATED))
        return encode_value(f, v, out, depth, err);
    if (!json_is_array(v))
        return want(f, "a list", err);
    for (size_t i = 0; i < json_array_size(v); i++) {
        int r = encode_value(f, json_array_get(v, i), out, depth, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int encode_msg(const struct pb_msg *m, const json_t *obj, struct hf_buf *out, int depth,
                      struct hf_err *err)
{
    if (depth > PB_DEPTH_MAX)
        return hf_err_set(err, -EINVAL, "message is nested deeper than %d levels", PB_DEPTH_MAX);
    for (size_t i = 0; i < m->n; i++) {
        const json_t *v = field_of(&m->fields[i], obj);
        int r = v ? encode_field(&m->fields[i], v, out, depth, err) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

int pb_from_json(const struct pb_msg *m, const json_t *obj, struct hf_buf *out, struct hf_err *err)
{
    if (!json_is_object(obj))
        return hf_err_set(err, -EINVAL, "%s must be a JSON object", m->name);
    size_t before = out->n;
    struct hf_err local = {0};
    int r = encode_msg(m, obj, out, 0, &local);
    if (r < 0) {
        out->n = before;
        return hf_err_set(err, r, "%s", local.msg[0] ? local.msg : "message too large");
    }
    return 0;
}

/* ---- checking a JSON request ---- */

static int normalise_msg(const struct pb_msg *m, json_t *obj, int depth, struct hf_err *err);

static int normalise_map(const struct pb_field *f, json_t *v, struct hf_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v))
        return want(f, "an object of strings", err);
    json_object_foreach(v, key, value)
    {
        if (!json_is_string(value))
            return want(f, "an object of strings", err);
    }
    return 0;
}

/* Checks v; a scalar in another spelling is answered with its plain form in *ret_new (else NULL). */
static int normalise_value(const struct pb_field *f, json_t *v, json_t **ret_new, int depth,
                           struct hf_err *err)
{
    *ret_new = NULL;
    if (is_scalar(f->type)) {
        int64_t i;
        int r = json_to_scalar(f, v, &i, err);
        if (r < 0)
            return r;
        if (f->type == PB_ENUM)
            *ret_new = enum_to_json(f, (int32_t)i);
        else if (f->type != PB_BOOL && !json_is_integer(v))
            *ret_new = json_integer(i);
        return 0;
    }
    if (f->type == PB_MAP_STRING)
        return normalise_map(f, v, err);
    if (f->type == PB_MESSAGE)
        return json_is_object(v) ? normalise_msg(f->msg, v, depth + 1, err) : want(f, "an object", err);
    if (!json_is_string(v))
        return want(f, f->type == PB_BYTES ? "base64 text" : "text", err);
    int64_t ns;
    if (f->type == PB_TIMESTAMP &&
        hf_rfc3339_parse((struct hf_str){json_string_value(v), json_string_length(v)}, &ns) < 0)
        return want(f, "an RFC 3339 time", err);
    return 0;
}

static int normalise_list(const struct pb_field *f, json_t *list, int depth, struct hf_err *err)
{
    if (!json_is_array(list))
        return want(f, "a list", err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *fresh;
        int r = normalise_value(f, json_array_get(list, i), &fresh, depth, err);
        if (r < 0)
            return r;
        if (fresh)
            json_array_set_new(list, i, fresh);
    }
    return 0;
}

static int normalise_field(const struct pb_field *f, json_t *obj, int depth, struct hf_err *err)
{
    json_t *v = field_of(f, obj);
    if (!v) { /* null is the same as absent */
        (void)json_object_del(obj, f->json);
        return 0;
    }
    if (!json_object_get(obj, f->json)) {
        json_object_set(obj, f->json, v);
        (void)json_object_del(obj, f->proto);
    }
    if (f->flags & PB_REPEATED)
        return normalise_list(f, v, depth, err);
    json_t *fresh;
    int r = normalise_value(f, v, &fresh, depth, err);
    if (r == 0 && fresh)
        json_object_set_new(obj, f->json, fresh);
    return r;
}

static int normalise_msg(const struct pb_msg *m, json_t *obj, int depth, struct hf_err *err)
{
    if (depth > PB_DEPTH_MAX)
        return hf_err_set(err, -EINVAL, "message is nested deeper than %d levels", PB_DEPTH_MAX);
    for (size_t i = 0; i < m->n; i++) {
        int r = normalise_field(&m->fields[i], obj, depth, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int pb_normalise(const struct pb_msg *m, json_t *obj, struct hf_err *err)
{
    if (!json_is_object(obj))
        return hf_err_set(err, -EINVAL, "%s must be a JSON object", m->name);
    return normalise_msg(m, obj, 0, err);
}
