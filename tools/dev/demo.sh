# shellcheck shell=bash
# usage: ./dev demo [--json]
#
# The main job, end to end, with the published e2b SDK: a session whose sandbox is destroyed four ways under it
# and which goes on with everything it had; then a program that keeps its memory through a pause, a killed daemon
# and a snapshot. Installs, builds and makes the base template first where needed.
# --json prints the result as JSON on stdout (progress stays on stderr). Exit 0 only if everything held.
# The data directory is .cache/demo, or $HOLDFAST_DEMO_DATA.

# Makes .cache/base.tar (the root file system of the template `base`) unless it is there.
base_template() {
    HF_BASE_TAR=${HF_BASE_TAR:-$HF_CACHE/base.tar}
    export HF_BASE_TAR
    [ -s "$HF_BASE_TAR" ] && return 0
    [ -x tools/base-template ] || die "tools/base-template is missing"
    say "building the base template (once): Debian minbase with python3, nodejs, git, curl, sudo"
    mkdir -p "$HF_CACHE"
    tools/base-template "$HF_BASE_TAR" >&2
}

run_demo() { # [--json]
    need_node
    base_template || die "the base template could not be built"
    "$HF_NODE" tests/e2e/demo.mjs --data "${HOLDFAST_DEMO_DATA:-$HF_CACHE/demo}" --base "$HF_BASE_TAR" "$@"
}

verb_demo() {
    need_root demo "$@"
    [ $# = 0 ] || [ "$*" = --json ] || die "demo: the only option is --json"
    use setup
    use build
    verb_setup
    say "build"
    build_normal
    run_demo "$@"
}
