/* The network of a session's sandboxes: what an open asked for is kept with the session, so that a later
 * sandbox that nobody says anything about has what the one before it had, not more. */
#include "control/network.h"

#include "egress/policy.h"
#include "session/session_int.h"
#include "store/net.h"

int hf_session_take_network(struct hf_control *c, const char *tenant, const json_t *body,
                            struct session_ask *ask, struct hf_err *err)
{
    const json_t *network = NULL, *policies = json_object_get(body, "policies");
    int internet = -1;
    int r = hf_validate_network(body, &network, &internet, err);
    if (r < 0)
        return r;
    bool named = policies && !json_is_null(policies);
    if (!network && !named && internet < 0)
        return 0;
    json_auto_t *request = network ? json_copy((json_t *)(uintptr_t)network) : json_object();
    if (named && json_object_get(request, "policies"))
        return hf_err_http(err, -EINVAL, 400,
                           "validation error: give \"policies\" or \"network\".\"policies\", not both");
    if (named)
        (void)json_object_set(request, "policies", (json_t *)(uintptr_t)policies);
    /* Checked now, so that a typing error makes no session; resolved again when the template is known. */
    json_auto_t *checked = NULL;
    r = hf_network_resolve(c, tenant, request, internet, &checked, err);
    if (r == 0)
        ask->asked = hf_take_ptr(request);
    ask->internet = internet;
    return r;
}

json_t *hf_session_metadata(const struct hf_session_row *row, json_t **ret_network)
{
    json_t *m = row->metadata ? json_loads(row->metadata, 0, NULL) : NULL;
    if (!json_is_object(m)) {
        json_decref(m);
        m = json_object();
    }
    const char *text = json_string_value(json_object_get(m, HF_NETWORK_KEPT));
    if (ret_network)
        *ret_network = text ? json_loads(text, 0, NULL) : NULL;
    (void)json_object_del(m, HF_NETWORK_KEPT);
    return m;
}

char *hf_session_metadata_with(json_t *metadata, const json_t *network)
{
    json_auto_t *m = metadata ? json_copy(metadata) : json_object();
    hf_auto_free char *text = network ? json_dumps(network, JSON_COMPACT) : NULL;
    if (text)
        (void)json_object_set_new(m, HF_NETWORK_KEPT, json_string(text));
    return json_dumps(m, JSON_COMPACT);
}

/* What was kept is checked again: its groups may be gone, and the host may have lost its fabric. */
static int check_kept(struct hf_control *c, const char *tenant, const json_t *doc, struct hf_err *err)
{
    json_auto_t *merged = NULL;
    int r = hf_network_merge(c, tenant, doc, &merged, err);
    if (r == 0 && !hf_network_ready(c) && hf_network_needs_wire(merged))
        return hf_err_http(
            err, -EOPNOTSUPP, 501,
            "the session's network is not possible here: sandboxes have loopback only, because %s",
            hf_network_missing(c));
    return r;
}

int hf_session_pick_network(struct session_op *op, struct hf_err *err)
{
    struct hf_control *c = op->s->c;
    json_auto_t *request = NULL;
    if (!op->ask.asked)
        json_decref(hf_session_metadata(&op->row, &op->ask.network));
    if (op->ask.network)
        return check_kept(c, op->tenant, op->ask.network, err);
    int r = hf_network_for_template(c, op->tenant, op->template_id, op->alias, op->ask.asked, &request, err);
    int internet = op->ask.asked ? op->ask.internet : -1;
    return r < 0 ? r : hf_network_resolve(c, op->tenant, request, internet, &op->ask.network, err);
}

void hf_session_keep_network(struct session_op *op, struct hf_meta_batch *b)
{
    json_auto_t *metadata = hf_session_metadata(&op->row, NULL);
    hf_auto_free char *text = hf_session_metadata_with(metadata, op->ask.network);
    hf_set_session_metadata(b, op->row.id, text);
}

json_t *hf_session_present_network(json_t *doc)
{
    json_t *v = doc ? hf_policy_present(doc) : json_null();
    json_decref(doc);
    return v;
}
