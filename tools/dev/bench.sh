# shellcheck shell=bash
# usage: ./dev bench [--json] [--rounds N] [NAME...]
#
# Measures the figures (create, batch, exec, kill, memory, proxy, files) beside crun, runc, bwrap and nginx in
# the same run, and prints tables with the goals; --json prints one JSON object on stdout. Default: all, 50 rounds.
# The last result is kept in .cache/bench/last.json.
#
# `./dev bench network [NAME...]` measures the network instead: the ingress proxy beside nginx and haproxy, and what
# the other modules of tests/bench/network.mjs bring; the last result is .cache/bench/network.json.
#
# `./dev bench persistence [NAME...]` measures pauses, resumes, snapshots, forks and rollbacks beside plain CRIU and
# `runc checkpoint`; the last result is .cache/bench/persistence.json.

# Small C programs that the benches use as app and as load; static, so that they also run inside a sandbox.
bench_tools() {
    mkdir -p "$HF_CACHE/bench/tools"
    local tool
    for tool in upstream wsload; do
        cc -O2 -D_GNU_SOURCE -static -o "$HF_CACHE/bench/tools/$tool" "tests/bench/$tool.c"
    done
}

verb_bench() {
    need_root bench "$@"
    use setup
    use build
    use demo
    verb_setup
    install_packages "${HF_BENCH_PACKAGES[@]}"
    build_normal
    need_node
    base_template || die "the base template could not be built"
    mkdir -p "$HF_CACHE/bench"
    bench_tools
    # node finds the SDK beside tests/e2e.
    ln -sfn ../e2e/node_modules tests/bench/node_modules
    local script=tests/bench/run.mjs
    if [[ ${1-} == network ]]; then
        script=tests/bench/network.mjs
        shift
        set -- --tools "$HF_CACHE/bench/tools" "$@"
    elif [[ ${1-} == persistence ]]; then
        script=tests/bench/persistence.mjs
        shift
    else
        set -- --upstream "$HF_CACHE/bench/tools/upstream" "$@"
    fi
    # A private mount namespace: crun refuses hybrid cgroup trees, and whatever breaks here unmounts itself.
    unshare --mount --propagation private bash -c '
        mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified
        exec "$@"' bench "$HF_NODE" "$script" \
        --data "$HF_CACHE/bench" --base "$HF_BASE_TAR" "$@"
}
