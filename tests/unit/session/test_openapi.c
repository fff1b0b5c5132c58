/* docs/api/openapi.yaml and the route tables name the same methods and paths. Argument: the file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/path.h"
#include "control/api.h"
#include "session/session.h"

#define OPS_MAX 256

static const char *file;
static struct {
    char op[160]; /* "GET /path" */
    bool seen;
} ops[OPS_MAX];
static size_t n_ops;

static void add_op(const char *path, struct hf_str method)
{
    assert_true(n_ops < OPS_MAX);
    char *op = ops[n_ops++].op;
    (void)snprintf(op, sizeof(ops[0].op), "%.*s %s", (int)method.n, method.p, path);
    for (char *p = op; *p != ' '; p++)
        *p = (char)(*p & ~0x20);
}

/* "  /path:" begins a path, "    get:" an operation; nothing else of the file matters here. */
static int read_file(void **state)
{
    hf_auto_free char *text = NULL;
    size_t n;
    char path[128] = "";
    bool inside = false;
    if (hf_read_file(file, 1u << 20, &text, &n) < 0)
        return -1;
    for (char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        struct hf_str s = {line, len};
        if (hf_str_eq(s, "paths:") || (len && line[0] != ' ' && inside))
            inside = hf_str_eq(s, "paths:");
        else if (inside && hf_str_starts(s, "  /") && line[len - 1] == ':')
            (void)snprintf(path, sizeof(path), "%.*s", (int)len - 3, line + 2);
        else if (inside && hf_str_starts(s, "    ") && line[4] != ' ' && line[len - 1] == ':' &&
                 !hf_str_eq(s, "    parameters:"))
            add_op(path, (struct hf_str){line + 4, len - 5});
        line += len + (line[len] == '\n');
    }
    return 0;
}

static void find(const struct hf_api_route *routes)
{
    for (; routes->method; routes++) {
        char op[160];
        bool found = false;
        (void)snprintf(op, sizeof(op), "%s %s", routes->method, routes->pattern);
        for (size_t i = 0; i < n_ops; i++) {
            if (strcmp(ops[i].op, op) != 0)
                continue;
            if (ops[i].seen)
                fail_msg("%s is routed twice", op);
            found = ops[i].seen = true;
        }
        if (!found)
            fail_msg("%s is routed and not in the description", op);
    }
}

static void test_same(void **state)
{
    const struct hf_api_route *const tables[] = {
        hf_api_list_routes,     hf_api_ingress_routes, hf_api_observe_routes, hf_api_sandbox_routes,
        hf_api_template_routes, hf_api_node_routes,    hf_api_missing_routes, hf_session_module.routes,
        hf_api_network_routes,  hf_api_policy_routes,  hf_api_secret_routes,  hf_api_snapshot_routes,
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(tables); i++)
        find(tables[i]);
    for (size_t i = 0; i < n_ops; i++) {
        if (!ops[i].seen)
            fail_msg("%s is described and has no route", ops[i].op);
    }
    assert_true(n_ops > 40);
}

int main(int argc, char **argv)
{
    file = argc > 1 ? argv[1] : "docs/api/openapi.yaml";
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same)};
    return cmocka_run_group_tests(tests, read_file, NULL);
}
