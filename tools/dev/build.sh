# shellcheck shell=bash
# usage: ./dev build [DIR] [-- MESON OPTIONS]
#
# Configures DIR (default: build) when it is new, then builds everything into it: build/holdfast,
# build/holdfast-shim, build/holdfast-envd. Compiler and options are those of the first time.

# configure_dir DIR [meson options]: only when it is new
configure_dir() {
    local dir=$1 log
    shift
    [ -f "$dir/build.ninja" ] && return 0
    rm -rf "$dir"
    log=$(mktemp)
    meson setup "$dir" "$@" >"$log" 2>&1 || {
        cat "$log" >&2
        rm -f "$log"
        return 1
    }
    rm -f "$log"
}

# build_dir DIR [meson options]
build_dir() {
    configure_dir "$@" && ninja -C "$1" --quiet >&2
}

build_normal() { build_dir build "$@"; }
build_clang() { CC=clang build_dir build-clang; }
build_asan() { build_dir build-asan -Db_sanitize=address,undefined -Dstatic_guest=false; }

# Only the fuzz targets: programs without libFuzzer cannot be linked with its instrumentation.
build_fuzz() {
    CC=clang configure_dir build-fuzz -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false -Dstatic_guest=false || return 1
    local targets
    mapfile -t targets < <(ninja -C build-fuzz -t targets all | sed -n 's/^\(tests\/fuzz\/.*\/fuzz_[^:/]*\): c_LINKER.*/\1/p')
    [ ${#targets[@]} -gt 0 ] || die "there are no fuzz targets"
    ninja -C build-fuzz --quiet "${targets[@]}" >&2
}

verb_build() {
    local dir=build
    if [ $# -gt 0 ] && [ "$1" != -- ]; then
        dir=$1
        shift
    fi
    [ "${1:-}" = -- ] && shift
    use setup
    install_packages "${HF_PACKAGES[@]}"
    node_on_path
    say "build: $dir"
    build_dir "$dir" "$@"
}
