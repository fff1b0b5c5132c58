# shellcheck shell=bash
# usage: ./dev build [DIR] [-- MESON OPTIONS]
#
# Configures DIR (default: build) when it is new, then builds everything into it: build/holdfast,
# build/holdfast-shim, build/holdfast-envd. Compiler and options are those of the first time.

# build_dir DIR [meson options]: configure once, build always
build_dir() {
    local dir=$1
    shift
    if [ ! -f "$dir/build.ninja" ]; then
        rm -rf "$dir"
        meson setup "$dir" "$@" >"/tmp/hf-meson-$$" 2>&1 || {
            cat "/tmp/hf-meson-$$" >&2
            rm -f "/tmp/hf-meson-$$"
            return 1
        }
        rm -f "/tmp/hf-meson-$$"
    fi
    ninja -C "$dir" --quiet >&2
}

build_normal() { build_dir build "$@"; }
build_clang() { CC=clang build_dir build-clang; }
build_asan() { build_dir build-asan -Db_sanitize=address,undefined -Dstatic_guest=false; }
build_fuzz() { CC=clang build_dir build-fuzz -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false -Dstatic_guest=false; }

verb_build() {
    local dir=build
    if [ $# -gt 0 ] && [ "$1" != -- ]; then
        dir=$1
        shift
    fi
    [ "${1:-}" = -- ] && shift
    use setup
    install_packages "${HF_PACKAGES[@]}"
    say "build: $dir"
    build_dir "$dir" "$@"
}
