/* What the network document says about traffic into a sandbox, and the secrets that follow from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/id.h"
#include "control/ingress.h"
#include "control/present.h"
#include "harness.h"

static struct hf_harness h;
static struct hf_sandbox *sb;

static int up(void **state)
{
    hf_harness_init(&h);
    hf_harness_up(&h);
    sb = hf_harness_create(&h);
    return 0;
}

static int down(void **state)
{
    hf_harness_down(&h);
    hf_harness_done(&h);
    return 0;
}

static const struct hf_ingress *with(const char *doc)
{
    free(sb->row.network);
    sb->row.network = hf_xstrdup(doc);
    hf_sandbox_network_changed(sb);
    return hf_sandbox_ingress(sb);
}

#define PRIVATE "{\"allow_public_traffic\":false,\"token_version\":%d}"

static void token(int version, char out[HF_INGRESS_TOKEN])
{
    hf_auto_free char *doc = hf_xasprintf(PRIVATE, version);
    (void)with(doc);
    hf_sandbox_traffic_token(sb, out);
}

static void test_document(void **state)
{
    const struct hf_ingress *in = with("{\"allow_public_traffic\":true}");
    assert_false(in->is_private);
    assert_string_equal(in->mask_host, "");
    assert_int_equal(in->n_https_ports, 0);
    in = with("{\"allow_public_traffic\":false,\"mask_request_host\":\"a:${PORT}\","
              "\"https_ports\":[443,8443,0,70000,\"x\"]}");
    assert_true(in->is_private);
    assert_string_equal(in->mask_host, "a:${PORT}");
    assert_int_equal(in->n_https_ports, 2);
    assert_int_equal(in->https_ports[1], 8443);
    /* What does not say that it is open is closed. */
    static const char *const closed[] = {
        "{}", "", "{", "[]", "{\"allow_public_traffic\":\"true\"}", "{\"allow_public_traffic\":null}"};
    for (size_t i = 0; i < HF_ARRAY_LEN(closed); i++)
        assert_true(with(closed[i])->is_private);
    in = with("{\"mask_request_host\":\"a\\r\\nX: y\"}"); /* no lines into heads */
    assert_string_equal(in->mask_host, "");
    assert_ptr_equal(in, hf_sandbox_ingress(sb)); /* parsed once */
}

static void test_tokens(void **state)
{
    char envd[65], first[HF_INGRESS_TOKEN], again[HF_INGRESS_TOKEN], rotated[HF_INGRESS_TOKEN];
    unsigned char key[HF_SHA256_LEN];
    token(1, first);
    memcpy(key, hf_sandbox_ingress(sb)->preview_key, sizeof(key));
    token(1, again);
    assert_string_equal(first, again);
    token(2, rotated);
    assert_string_not_equal(first, rotated);
    assert_memory_not_equal(key, hf_sandbox_ingress(sb)->preview_key, sizeof(key)); /* old links end too */
    hf_sandbox_token(sb->c, sb->row.id, envd);
    assert_string_not_equal(first, envd);
    assert_int_equal(strlen(first), 64);
    struct hf_sandbox *other = hf_harness_create(&h);
    free(other->row.network);
    other->row.network = hf_xasprintf(PRIVATE, 1);
    hf_sandbox_network_changed(other);
    hf_sandbox_traffic_token(other, again);
    assert_string_not_equal(first, again);
}

static void test_presented(void **state)
{
    char t[HF_INGRESS_TOKEN];
    token(1, t);
    json_auto_t *handle = hf_present_handle(sb), *detail = hf_present_detail(sb);
    assert_string_equal(json_string_value(json_object_get(handle, "trafficAccessToken")), t);
    assert_string_equal(json_string_value(json_object_get(detail, "trafficAccessToken")), t);
    (void)with("{\"allow_public_traffic\":true}");
    json_auto_t *open = hf_present_handle(sb);
    assert_true(json_is_null(json_object_get(open, "trafficAccessToken")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_document, up, down),
        cmocka_unit_test_setup_teardown(test_tokens, up, down),
        cmocka_unit_test_setup_teardown(test_presented, up, down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
