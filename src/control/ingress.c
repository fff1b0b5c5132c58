#include "control/ingress.h"

#include <stdio.h>

#include "base/id.h"
#include "proxy/proxy.h"
#include "wire/head.h"

/* HMAC-SHA256(seed, "<label>\n<id>\n<version>"): one secret per purpose, sandbox and rotation. */
static void derive(const struct hf_sandbox *sb, const char *label, int64_t version,
                   unsigned char out[HF_SHA256_LEN])
{
    char text[HF_ROW_ID + 64];
    int n = snprintf(text, sizeof(text), "%s\n%s\n%lld", label, sb->row.id, (long long)version);
    hf_hmac_sha256(sb->c->seed, sizeof(sb->c->seed), text, (size_t)n, out);
}

static void read_ports(struct hf_ingress *in, const json_t *ports)
{
    size_t i;
    json_t *v;
    in->https_ports = hf_xcalloc(json_array_size(ports) + 1, sizeof(*in->https_ports));
    json_array_foreach(ports, i, v)
    {
        json_int_t port = json_integer_value(v);
        if (port > 0 && port <= UINT16_MAX)
            in->https_ports[in->n_https_ports++] = (uint16_t)port;
    }
}

static struct hf_ingress *parse(struct hf_sandbox *sb)
{
    struct hf_ingress *in = hf_new(struct hf_ingress);
    unsigned char mac[HF_SHA256_LEN];
    json_auto_t *doc = sb->row.network ? json_loads(sb->row.network, 0, NULL) : NULL;
    const char *mask = json_string_value(json_object_get(doc, "mask_request_host"));
    if (mask && !hf_is_header_value(hf_str_c(mask)))
        mask = NULL; /* it goes into a head: a document that was tampered with must not write lines there */
    int64_t version = json_integer_value(json_object_get(doc, "token_version"));
    in->is_private = !json_is_true(json_object_get(doc, "allow_public_traffic"));
    in->mask_host = hf_xstrdup(mask ? mask : "");
    read_ports(in, json_object_get(doc, "https_ports"));
    derive(sb, "traffic", version, mac);
    hf_hex(mac, sizeof(mac), in->token);
    derive(sb, "preview", version, in->preview_key);
    explicit_bzero(mac, sizeof(mac));
    return in;
}

const struct hf_ingress *hf_sandbox_ingress(struct hf_sandbox *sb)
{
    if (!sb->ingress)
        sb->ingress = parse(sb);
    return sb->ingress;
}

void hf_sandbox_network_changed(struct hf_sandbox *sb)
{
    struct hf_ingress *in = hf_take_ptr(sb->ingress);
    if (!in)
        return;
    free(in->mask_host);
    free(in->https_ports);
    explicit_bzero(in, sizeof(*in));
    free(in);
}

void hf_sandbox_traffic_token(struct hf_sandbox *sb, char out[HF_INGRESS_TOKEN])
{
    memcpy(out, hf_sandbox_ingress(sb)->token, HF_INGRESS_TOKEN);
}

char *hf_sandbox_preview_url(struct hf_sandbox *sb, uint16_t port, int64_t expiry_s)
{
    char value[72];
    hf_preview_sign(hf_sandbox_ingress(sb)->preview_key, sb->row.id, port, expiry_s, value);
    return hf_xasprintf("%s://%u-%s.%s/?hf_preview=%s", sb->c->https ? "https" : "http", port, sb->row.id,
                        sb->c->domain, value);
}
