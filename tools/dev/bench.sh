# shellcheck shell=bash
# usage: ./dev bench [--json] [--rounds N] [NAME...]
#
# Measures the figures (create, batch, exec, kill, memory, proxy, files) beside crun, runc, bwrap and nginx in
# the same run, and prints tables with the goals; --json prints one JSON object on stdout. Default: all, 50 rounds.
# The last result is kept in .cache/bench/last.json.

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
    local upstream=$HF_CACHE/bench/upstream
    cc -O2 -D_GNU_SOURCE -static -o "$upstream" tests/bench/upstream.c
    # node finds the SDK beside tests/e2e.
    ln -sfn ../e2e/node_modules tests/bench/node_modules
    # A private mount namespace: crun refuses hybrid cgroup trees, and whatever breaks here unmounts itself.
    unshare --mount --propagation private bash -c '
        mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified
        exec "$@"' bench "$HF_NODE" tests/bench/run.mjs \
        --data "$HF_CACHE/bench" --base "$HF_BASE_TAR" --upstream "$upstream" "$@"
}
