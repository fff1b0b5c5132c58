/* holdfast sandbox network | outbound, and what other verbs share about networks. */
#include "cli/network.h"

#include <unistd.h>

#include "cli/args.h"
#include "cli/show.h"
#include "cli/url.h"

#define FILE_MAX (4u << 20) /* bytes of a policy file */

/* ---- shared ---- */

json_t *hf_network_list(const struct hf_args *a, const char *opt)
{
    json_t *list = NULL;
    const char *v;
    for (size_t i = 0; (v = hf_arg_nth(a, opt, i)); i++) {
        list = list ? list : json_array();
        (void)json_array_append_new(list, json_string(v));
    }
    return list;
}

static void set_list(json_t *body, const char *key, json_t *list)
{
    if (list)
        (void)json_object_set_new(body, key, list);
}

int hf_network_body(const struct hf_args *a, json_t *body, struct hf_err *err)
{
    bool on = hf_arg(a, "allow-internet") != NULL, off = hf_arg(a, "no-internet") != NULL;
    if (on && off)
        return hf_err_set(err, -EINVAL, "either --allow-internet or --no-internet, not both");
    if (on || off)
        (void)json_object_set_new(body, "allow_internet_access", json_boolean(on));
    json_t *network = json_object();
    set_list(network, "allowOut", hf_network_list(a, "allow-out"));
    set_list(network, "denyOut", hf_network_list(a, "deny-out"));
    set_list(network, "policies", hf_network_list(a, "policy"));
    if (json_object_size(network))
        (void)json_object_set(body, "network", network);
    json_decref(network);
    return 0;
}

int hf_network_file(const char *path, json_t **ret, struct hf_err *err)
{
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(FILE_MAX);
    char chunk[8192];
    json_error_t e;
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!f)
        return hf_err_set(err, -errno, "%s: %s", path, strerror(errno));
    int r = 0;
    for (size_t n; r == 0 && (n = fread(chunk, 1, sizeof(chunk), f)) > 0;)
        r = hf_buf_add(&text, chunk, n);
    if (r == 0 && ferror(f))
        r = -EIO;
    if (f != stdin)
        (void)fclose(f);
    if (r < 0)
        return hf_err_set(err, r, "%s: %s", path, r == -EMSGSIZE ? "larger than 4 MiB" : strerror(-r));
    *ret = json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES, &e);
    if (!*ret)
        return hf_err_set(err, -EINVAL, "%s: line %d: %s", path, e.line, e.text);
    if (json_is_object(*ret))
        return 0;
    json_decref(hf_take_ptr(*ret));
    return hf_err_set(err, -EINVAL, "%s: must hold a JSON object", path);
}

static const json_t *either(const json_t *p, const char *camel, const char *snake)
{
    const json_t *v = json_object_get(p, camel);
    return v ? v : json_object_get(p, snake);
}

/* "a, b, c" of texts or numbers; malloc'ed. */
static char *joined(const json_t *list)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1u << 20);
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        const char *text = json_string_value(v);
        int r = text ? hf_buf_addf(&b, "%s%s", i ? ", " : "", text)
                     : hf_buf_addf(&b, "%s%lld", i ? ", " : "", (long long)json_integer_value(v));
        if (r < 0)
            break;
    }
    return b.n ? hf_buf_take(&b) : hf_xstrdup("");
}

static void show_list(const struct hf_cli *cli, const char *name, const json_t *list)
{
    hf_auto_free char *text = joined(list);
    hf_show_field(cli, name, "%s", text);
}

static void show_rules(const struct hf_cli *cli, const json_t *rules)
{
    static const char *const heads[] = {"RULE", "ACTION", "HOST", "SCHEME", "METHODS", "PATH", "ADDS", NULL};
    struct hf_table t;
    size_t i, k;
    json_t *r, *v;
    if (!json_is_array(rules) || json_array_size(rules) == 0)
        return;
    (void)putchar('\n');
    hf_table_init(&t, heads);
    json_array_foreach((json_t *)(uintptr_t)rules, i, r)
    {
        hf_auto_free char *methods = joined(json_object_get(r, "methods"));
        json_t *added = json_array();
        json_array_foreach(json_object_get(r, "inject"), k, v)(void)
            json_array_append(added, json_object_get(v, "header"));
        hf_auto_free char *adds = joined(added);
        json_decref(added);
        const char *scheme = hf_show_str(r, "scheme"), *path = hf_show_str(r, "path");
        hf_table_cell(&t, hf_show_str(r, "name"));
        hf_table_cell(&t, hf_show_str(r, "action"));
        hf_table_cell(&t, hf_show_str(r, "host"));
        hf_table_cell(&t, *scheme ? scheme : "any");
        hf_table_cell(&t, *methods ? methods : "any");
        hf_table_cell(&t, *path ? path : "any");
        hf_table_cell(&t, adds);
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

void hf_network_show_policy(const struct hf_cli *cli, const json_t *p)
{
    show_list(cli, "Allowed", either(p, "allowOut", "allow_out"));
    show_list(cli, "Denied", either(p, "denyOut", "deny_out"));
    const json_t *rules = json_object_get(p, "rules");
    if (json_is_object(rules)) {
        const char *host;
        json_t *v, *hosts = json_array();
        json_object_foreach((json_t *)(uintptr_t)rules, host, v)(void)
            json_array_append_new(hosts, json_string(host));
        show_list(cli, "Headers added", hosts);
        json_decref(hosts);
    }
    show_rules(cli, rules);
}

int hf_network_show_verdict(const struct hf_cli *cli, const json_t *v)
{
    bool allow = strcmp(hf_show_str(v, "decision"), "allow") == 0;
    if (cli->json) {
        hf_show_json(v);
    } else {
        const char *color = hf_color(cli, allow ? "green" : "red"), *reset = hf_color(cli, "reset");
        hf_auto_free char *by = hf_text_printable(hf_show_str(v, "by"));
        (void)printf("%s%s%s: %s\n", color, allow ? "allow" : "deny", reset, by);
        show_list(cli, "Headers added", json_object_get(v, "adds_headers"));
    }
    return allow ? HF_EXIT_OK : HF_EXIT_ERROR;
}

/* ---- sandbox network ---- */

static const struct hf_opt network_opts[] = {
    {"set", 0, "FILE", "replace it by this JSON document (- for stdin)", NULL},
    {"allow", 0, "HOST", "replace it: an address, CIDR, domain or *.domain; may be repeated", NULL},
    {"deny", 0, "CIDR", "replace it: an address or CIDR; may be repeated", NULL},
    {"policy", 0, "NAME", "bind these policies in place of those that are bound; may be repeated", NULL},
    {"internet", 0, "on|off", "replace it: everything else is allowed, or denied", "on off"},
    {0},
};

static int put_body(const struct hf_args *a, json_t **ret, bool *ret_any, struct hf_err *err)
{
    const char *file = hf_arg(a, "set"), *internet = hf_arg(a, "internet");
    json_t *allow = hf_network_list(a, "allow"), *deny = hf_network_list(a, "deny"),
           *policies = hf_network_list(a, "policy");
    *ret_any = file || internet || allow || deny || policies;
    int r = 0;
    if (file && (internet || allow || deny || policies))
        r = hf_err_set(err, -EINVAL, "--set FILE says everything; leave the other options out");
    else if (internet && strcmp(internet, "on") != 0 && strcmp(internet, "off") != 0)
        r = hf_err_set(err, -EINVAL, "--internet takes on or off, not '%s'", internet);
    else if (file)
        r = hf_network_file(file, ret, err);
    else
        *ret = json_object();
    if (r < 0) {
        json_decref(allow);
        json_decref(deny);
        json_decref(policies);
        return r;
    }
    set_list(*ret, "allowOut", allow);
    set_list(*ret, "denyOut", deny);
    set_list(*ret, "policies", policies);
    if (internet)
        (void)json_object_set_new(*ret, "allow_internet_access", json_boolean(strcmp(internet, "on") == 0));
    return 0;
}

static int call(struct hf_cli *cli, const char *method, const char *fmt, const char *id, const json_t *body,
                struct hf_answer *ret, struct hf_err *err)
{
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    bool v1 = strcmp(fmt, "network") != 0 || strcmp(method, "GET") == 0;
    int r = hf_url_path(&path, v1 ? "/v1/sandboxes/%s/" : "/sandboxes/%s/", id);
    if (r == 0)
        r = hf_buf_adds(&path, fmt);
    if (r < 0)
        return hf_err_set(err, r, "the sandbox id is too long");
    return hf_api(cli, method, path.p, body, ret, err);
}

static void show_counters(const struct hf_cli *cli, const json_t *c)
{
    static const char *const names[][2] = {{"bytes_out", "Bytes out"},     {"bytes_in", "Bytes in"},
                                           {"connections", "Connections"}, {"denied", "Packets denied"},
                                           {"dns_queries", "DNS queries"}, {"dns_denied", "DNS denied"},
                                           {"l7_requests", "L7 requests"}, {"l7_denied", "L7 denied"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++) {
        const json_t *v = json_object_get(c, names[i][0]);
        if (json_is_integer(v))
            hf_show_field(cli, names[i][1], "%lld", (long long)json_integer_value(v));
    }
}

static void show_network(const struct hf_cli *cli, const json_t *v)
{
    const json_t *own = json_object_get(v, "network"), *p = json_object_get(v, "effective");
    bool internet = json_is_true(json_object_get(p, "allowInternetAccess"));
    hf_show_field(cli, "Everything else", "%s", internet ? "allowed (internet)" : "denied");
    show_list(cli, "Policies", json_object_get(own, "policies"));
    hf_show_field(cli, "Traffic in", "%s",
                  json_is_true(json_object_get(p, "allowPublicTraffic")) ? "public" : "with the token only");
    hf_show_field(cli, "Through", "%s", hf_show_str(json_object_get(p, "egressProxy"), "address"));
    hf_show_field(cli, "No network here", "%s", hf_show_str(v, "missing"));
    show_counters(cli, json_object_get(v, "counters"));
    hf_network_show_policy(cli, p);
}

static int run_network(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer put = {0}, a = {0};
    json_auto_t *body = NULL;
    bool change = false;
    int r = put_body(args, &body, &change, &err);
    if (r < 0)
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    if (change)
        r = call(cli, "PUT", "network", args->v[0], body, &put, &err);
    if (r == -EINVAL && strstr(err.msg, "ALL_TRAFFIC"))
        hf_cli_hint(cli, "add --internet off: names have a meaning only where everything else is denied");
    if (r == 0)
        r = call(cli, "GET", "network", args->v[0], NULL, &a, &err);
    if (r < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else if (!cli->quiet)
        show_network(cli, a.body);
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_sandbox_network = {
    .name = "network",
    .summary = "show or replace what a sandbox may reach",
    .args = "ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = network_opts,
    .details =
        "Without options it shows the policy that is in force, with the groups the sandbox is bound to,\n"
        "and counters. Any option replaces the sandbox's own policy as a whole: what is left out is as\n"
        "in a sandbox that was made without it (so the internet is on, unless policies are bound).\n"
        "Bound policies stay unless --policy names others. Open connections are judged again.",
    .examples = "holdfast sandbox network $id\n"
                "holdfast sandbox network $id --internet off --allow api.example.com --allow 10.0.0.5\n"
                "holdfast sandbox network $id --set network.json",
    .run = run_network,
};

/* ---- sandbox outbound ---- */

static const struct hf_opt outbound_opts[] = {
    {"limit", 'n', "N", "how many records, 1 to 1000 (default 100)", NULL},
    {"after", 0, "SEQ", "only records behind this one", NULL},
    {0},
};

static void show_records(const struct hf_cli *cli, const json_t *list)
{
    static const char *const heads[] = {"SEQ",  "TIME", "KIND",   "DECISION", "WHAT",
                                        "HOST", "PATH", "STATUS", "REASON",   NULL};
    struct hf_table t;
    size_t i;
    json_t *r;
    hf_table_init(&t, heads);
    hf_table_flag(&t, 6, HF_TABLE_FLEX);
    json_array_foreach((json_t *)(uintptr_t)list, i, r)
    {
        bool request = strcmp(hf_show_str(r, "kind"), "request") == 0;
        const char *host = hf_show_str(r, request ? "host" : "name"), *reason = hf_show_str(r, "reason");
        char seq[24], status[24] = "";
        (void)snprintf(seq, sizeof(seq), "%lld", (long long)json_integer_value(json_object_get(r, "seq")));
        if (json_integer_value(json_object_get(r, "status")))
            (void)snprintf(status, sizeof(status), "%d",
                           (int)json_integer_value(json_object_get(r, "status")));
        const char *decision = request ? hf_show_str(r, "decision") : "deny";
        hf_table_cell(&t, seq);
        hf_table_cell(&t, hf_show_str(r, "time"));
        hf_table_cell(&t, hf_show_str(r, "kind"));
        hf_table_cell_color(&t, decision, hf_color(cli, strcmp(decision, "allow") == 0 ? "green" : "red"));
        hf_table_cell(&t, hf_show_str(r, request ? "method" : "what"));
        hf_table_cell(&t, *host ? host : hf_show_str(r, "addr"));
        hf_table_cell(&t, hf_show_str(r, "path"));
        hf_table_cell(&t, status);
        hf_table_cell(&t, reason);
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_outbound(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf query = HF_BUF_INIT(HF_URL_MAX);
    int r = hf_buf_adds(&query, "outbound");
    if (r == 0)
        r = hf_url_query(&query, "limit", hf_arg(args, "limit"));
    if (r == 0)
        r = hf_url_query(&query, "cursor", hf_arg(args, "after"));
    if (r < 0)
        return hf_cli_usage(cli, args->verb, "the options are too long");
    if (call(cli, "GET", query.p, args->v[0], NULL, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    const json_t *list = json_object_get(a.body, "outbound");
    const char *next = hf_show_str(a.body, "next_cursor");
    if (cli->json)
        hf_show_json(list);
    else if (json_array_size(list) == 0)
        hf_cli_say(cli, "no records");
    else
        show_records(cli, list);
    if (*next)
        hf_cli_say(cli, "there are more: --after %s", next);
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_sandbox_outbound = {
    .name = "outbound",
    .summary = "list what a sandbox sent out and what it was denied",
    .args = "ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = outbound_opts,
    .details =
        "Oldest first; the records can be read after the sandbox's end as well. Requests appear where\n"
        "HTTP rules or names are in force; denials always.",
    .examples = "holdfast sandbox outbound $id\n"
                "holdfast sandbox outbound $id --json | jq '.[] | select(.decision == \"deny\")'",
    .run = run_outbound,
};
