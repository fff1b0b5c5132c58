# shellcheck shell=bash
# usage: ./dev fuzz [--seconds N] [TARGET...]
#
# Builds the libFuzzer targets with clang, ASan and UBSan, and runs each for N seconds (default 30) on its
# corpus. New inputs go to .cache/fuzz/<target>; a crash is kept there and named, and the exit status is 1.

verb_fuzz() {
    local seconds=30 wanted=()
    while [ $# -gt 0 ]; do
        case $1 in
            --seconds)
                [[ ${2:-} =~ ^[0-9]+$ ]] || die "--seconds wants a number"
                seconds=$2
                shift
                ;;
            -*) die "fuzz: unknown option $1" ;;
            *) wanted+=("$1") ;;
        esac
        shift
    done
    use setup
    use build
    install_packages "${HF_PACKAGES[@]}"
    build_fuzz
    local failed=0 ran=0 exe target dir prefix corpus
    while read -r exe; do
        target=$(basename "$exe")
        target=${target#fuzz_}
        # build-fuzz/tests/fuzz/envd/files/fuzz_envd_files_path → tests/fuzz/envd/files/corpus/path
        dir=$(dirname "${exe#build-fuzz/}")
        prefix=${dir#tests/fuzz/}
        corpus=$dir/corpus/${target#"${prefix//\//_}"_}
        if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $target "* ]]; then
            continue
        fi
        ran=$((ran + 1))
        mkdir -p "$HF_CACHE/fuzz/$target"
        say "fuzz $target: $seconds s"
        "$exe" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=0 -verbosity=0 \
            -artifact_prefix="$HF_CACHE/fuzz/$target/" "$HF_CACHE/fuzz/$target" "$corpus" || {
            warn "fuzz $target FAILED: the input is in .cache/fuzz/$target"
            failed=1
        }
    done < <(find build-fuzz -type f -executable -name 'fuzz_*' | sort)
    [ $ran -gt 0 ] || die "no such fuzz target"
    return $failed
}
