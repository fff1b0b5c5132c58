/* Parts of E2B's API that this version does not have: each answers 501 and says what is missing, so that no
 * client takes silence for success. */
#include "control/api.h"

static void no_volumes(struct hf_call *call)
{
    hf_call_fail(call, 501,
                 "volumes are not supported by this version of holdfast; "
                 "every session has a workspace volume of its own: POST /v1/sessions");
}

static void no_builds(struct hf_call *call)
{
    hf_call_fail(call, 501,
                 "building templates is not supported by this version of holdfast; "
                 "import a root file system: holdfast template import NAME FILE.tar");
}

static void no_tags(struct hf_call *call)
{
    hf_call_fail(call, 501,
                 "changing a template's tags or visibility is not supported by this version of holdfast");
}

const struct hf_api_route hf_api_missing_routes[] = {
    {"GET", "/volumes", no_volumes, 0},
    {"POST", "/volumes", no_volumes, HF_API_BODY_OPT},
    {"GET", "/volumes/{volumeID}", no_volumes, 0},
    {"DELETE", "/volumes/{volumeID}", no_volumes, 0},
    {"POST", "/templates", no_builds, HF_API_BODY_OPT},
    {"POST", "/v2/templates", no_builds, HF_API_BODY_OPT},
    {"POST", "/v3/templates", no_builds, HF_API_BODY_OPT},
    {"GET", "/templates/{templateID}/files/{hash}", no_builds, 0},
    {"POST", "/templates/tags", no_tags, HF_API_BODY_OPT},
    {"DELETE", "/templates/tags", no_tags, HF_API_BODY_OPT},
    {"GET", "/templates/{templateID}/tags", no_tags, 0},
    {"PATCH", "/templates/{templateID}", no_tags, HF_API_BODY_OPT},
    {"PATCH", "/v2/templates/{templateID}", no_tags, HF_API_BODY_OPT},
    {"POST", "/templates/{templateID}/builds/{buildID}", no_builds, HF_API_BODY_OPT},
    {"POST", "/v2/templates/{templateID}/builds/{buildID}", no_builds, HF_API_BODY_OPT},
    {"GET", "/templates/{templateID}/builds/{buildID}/status", no_builds, 0},
    {"GET", "/templates/{templateID}/builds/{buildID}/logs", no_builds, 0},
    {NULL, NULL, NULL, 0},
};
