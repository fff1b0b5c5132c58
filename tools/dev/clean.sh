# shellcheck shell=bash
# usage: ./dev clean [--all]
#
# Stops the daemons that ./dev started, ends their sandboxes, unmounts their pools and removes the build
# directories. What they had on the network (namespace, firewall table, uplink) goes too. --all also removes
# .cache (base template, demo data, Node) and the npm packages.

# Data directories that ./dev's own runs use.
hf_data_dirs() {
    local d
    for d in "${HOLDFAST_DEMO_DATA:-$HF_CACHE/demo}" "$HF_CACHE/e2e" "$HF_CACHE/bench"; do
        [ -d "$d" ] && realpath "$d"
    done
    return 0
}

verb_clean() {
    local all=
    [ "${1:-}" = --all ] && all=1
    if [ -n "$(hf_data_dirs)" ]; then
        need_root clean "$@"
        local d
        while read -r d; do
            python3 tools/host-state release "$d" || warn "something of $d could not be removed (see above)"
        done < <(hf_data_dirs)
    fi
    rm -rf build build-clang build-asan build-fuzz
    if [ -n "$all" ]; then
        # A pool that is still mounted must not be emptied through its mount point.
        if grep -q " $HF_CACHE/" /proc/self/mounts; then
            die "something is still mounted below .cache: see 'grep .cache /proc/mounts'"
        fi
        rm -rf "$HF_CACHE" tests/e2e/node_modules
    fi
    say "clean"
}
