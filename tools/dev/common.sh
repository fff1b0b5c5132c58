# shellcheck shell=bash
# Shared by every verb: messages, root, directories, Node. Sourced by ./dev with `set -euo pipefail`.

HF_CACHE=$HF_ROOT/.cache
HF_NODE_MIN=20.18.1 # what the e2b SDK needs

say() { echo "== $*" >&2; }
warn() { echo "dev: $*" >&2; }
die() {
    echo "dev: $*" >&2
    exit 1
}

is_root() { [ "$(id -u)" = 0 ]; }

# Starts ./dev again as root with the same arguments when it is not root already.
need_root() {
    is_root && return 0
    command -v sudo >/dev/null || die "'./dev $1' must run as root, and this machine has no sudo: run it as root"
    say "'./dev $1' needs root: asking sudo"
    exec sudo --preserve-env=CI,HOLDFAST_DEMO_DATA,http_proxy,https_proxy,no_proxy "$HF_ROOT/dev" "$@"
}

# Runs a command as root (in verbs that are otherwise fine without).
as_root() {
    if is_root; then
        "$@"
    else
        command -v sudo >/dev/null || die "must run as root to: $* (this machine has no sudo)"
        sudo "$@"
    fi
}

# After a run through sudo the build directories go back to the person who asked for them.
give_back() {
    [ -n "${SUDO_UID:-}" ] || return 0
    local path
    [ -d "$HF_CACHE" ] && chown "$SUDO_UID" "$HF_CACHE"
    for path in build build-clang build-asan build-fuzz .cache/node tests/e2e/node_modules; do
        [ -e "$HF_ROOT/$path" ] && chown -R -h "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$HF_ROOT/$path"
    done
    return 0
}
is_root && trap give_back EXIT

# version_ge A B: A >= B
version_ge() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }

node_is_new_enough() {
    local v
    v=$("$1" --version 2>/dev/null) || return 1
    version_ge "${v#v}" "$HF_NODE_MIN"
}

# Prints the path of a Node that can run the SDK: the host's, or the one that setup took from npm.
node_path() {
    local own=$HF_CACHE/node/node_modules/.bin-node
    if node_is_new_enough node; then
        command -v node
    elif [ -x "$own" ] && node_is_new_enough "$own"; then
        echo "$own"
    else
        return 1
    fi
}

# Tests in other suites call `node` by its name: it is the same one.
node_on_path() {
    local node
    node=$(node_path) || return 0
    PATH=$(dirname "$(readlink -f "$node")"):$PATH
    export PATH
}

# Fails unless the Node for SDK programs is there; exports HF_NODE.
need_node() {
    HF_NODE=$(node_path) || die "no Node >= $HF_NODE_MIN: run ./dev setup"
    export HF_NODE
}

# sources a sibling verb file once
use() {
    # shellcheck source=/dev/null
    source "$HF_ROOT/tools/dev/$1.sh"
}
