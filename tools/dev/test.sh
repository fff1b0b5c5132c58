# shellcheck shell=bash
# usage: ./dev test [--quick] [SUITE...]
#
# Runs the suites in this order and ends with the line "N passed, N failed, N skipped":
#   lint         ./dev lint, each check one test
#   clang        the whole tree builds with clang -Werror
#   unit         unit tests (gcc)
#   fuzz         fuzz corpora replayed as plain tests
#   asan         unit tests and corpora again under ASan + UBSan
#   integration  privileged tests of the engine and the daemon in C
#   e2e          the published e2b SDK (two generations) and raw HTTP against a daemon
#   e2e-asan     the same, with the daemon under ASan + UBSan
#   faults       kill points, bombs, full disks, hostile programs inside
#   demo         ./dev demo
#   leaks        after all: no process, mount, loop device, network namespace, cgroup, firewall table or interface of
#                ours is left on the host
# --quick leaves out clang, asan, e2e-asan, faults and demo. A test that lacks something on this machine is skipped with
# the reason and counted.

HF_SUITES=(lint clang unit fuzz asan integration e2e e2e-asan faults demo)
HF_QUICK_SUITES=(lint unit fuzz integration e2e)

# A result is one line of the results file: suite TAB name TAB pass|fail|skip TAB seconds TAB reason
result() {
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-0}" "${5:-}" >>"$HF_RESULTS"
    [ "$3" = pass ] || say "$1/$2: $3${5:+ ($5)}"
}

suite_lint() {
    use lint
    local name r out start
    for name in "${HF_LINTS[@]}"; do
        r=0
        start=$EPOCHREALTIME
        out=$("lint_$name" 2>&1) || r=$?
        case $r in
            0) result lint "$name" pass "$(since "$start")" ;;
            77) result lint "$name" skip 0 "the tool is not installed" ;;
            *)
                echo "$out" >&2
                result lint "$name" fail "$(since "$start")"
                ;;
        esac
    done
}

since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }'; }

# One build as one test.
suite_build() { # SUITE NAME FUNCTION
    local start=$EPOCHREALTIME
    if "$3"; then
        result "$1" "$2" pass "$(since "$start")"
    else
        result "$1" "$2" fail "$(since "$start")" "does not build"
        return 1
    fi
}

suite_clang() { suite_build clang build build_clang || true; }

# Runs one meson suite and adds each of its tests to the results; failed ones are printed with their output.
suite_meson() { # SUITE BUILD-DIR MESON-SUITE
    local suite=$1 dir=$2 log=$2/meson-logs/hf-$3
    rm -f "$log.json"
    meson test -C "$dir" --no-rebuild --suite "$3" --logbase "hf-$3" --print-errorlogs >"$log.out" 2>&1 || true
    if [ ! -f "$log.json" ]; then
        grep -q 'No suitable tests' "$log.out" && return 0
        tail -n 40 "$log.out" >&2
        result "$suite" "meson-$3" fail 0 "meson test did not run"
        return 0
    fi
    python3 tools/dev/meson-results "$suite" "$log.json" >>"$HF_RESULTS"
    grep -qP "^$suite\t.*\tfail\t" "$HF_RESULTS" && tail -n 200 "$log.out" >&2
    return 0
}

suite_unit() { suite_meson unit build unit; }
suite_fuzz() { suite_meson fuzz build fuzz; }
suite_integration() { suite_meson integration build integration; }

HF_SANITIZER_OPTIONS=(
    ASAN_OPTIONS=detect_leaks=1:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
)

suite_asan() {
    suite_build asan build build_asan || return 0
    export "${HF_SANITIZER_OPTIONS[@]}"
    suite_meson asan build-asan unit
    suite_meson asan build-asan fuzz
    unset ASAN_OPTIONS UBSAN_OPTIONS
}

suite_e2e() { node_suite e2e; }

# The programs that run in and around a sandbox are static and stay as they are; the daemon is the sanitized one.
suite_e2e_asan() {
    suite_build e2e-asan build build_asan || return 0
    (
        export "${HF_SANITIZER_OPTIONS[@]}"
        export HOLDFAST_BIN=$HF_ROOT/build-asan/holdfast
        export HOLDFAST_SHIM_PATH=$HF_ROOT/build/holdfast-shim HOLDFAST_ENVD_PATH=$HF_ROOT/build/holdfast-envd
        node_suite e2e-asan
    )
}

suite_faults() { node_suite faults; }

# tests/e2e/run.mjs starts the daemon, runs the node tests against it and appends to the results file.
node_suite() {
    need_node
    use demo
    if ! base_template; then
        result "$1" base-template fail 0 "the base template could not be built"
        return 0
    fi
    local before r=0
    before=$(wc -l <"$HF_RESULTS")
    HF_RESULTS=$HF_RESULTS HF_BASE_TAR=$HF_BASE_TAR "$HF_NODE" tests/e2e/run.mjs "$1" >&2 || r=$?
    [ "$r" = 0 ] && [ "$(wc -l <"$HF_RESULTS")" -gt "$before" ] && return 0
    grep -qP "^$1\t.*\tfail\t" "$HF_RESULTS" || result "$1" runner fail 0 "ended with status $r and counted no failure"
}

suite_demo() {
    use demo
    local start=$EPOCHREALTIME
    if run_demo >&2; then
        result demo demo pass "$(since "$start")"
    else
        result demo demo fail "$(since "$start")"
    fi
}

leak_check() { # FILE
    local left
    if left=$(python3 tools/host-state diff "$1" 10); then
        result leaks host pass 0
        return 0
    fi
    echo "left on the host after the tests:" >&2
    echo "$left" >&2
    if [ "${HOLDFAST_LEAK_CHECK:-}" = warn ]; then
        result leaks host skip 0 "something is left, but HOLDFAST_LEAK_CHECK=warn says that others use this host"
    else
        result leaks host fail 0 "see above"
    fi
}

summary() {
    echo
    awk -F'\t' '
        { n[$1 SUBSEP $3]++; s[$1] += $4; if (!($1 in seen)) { seen[$1] = 1; order[++k] = $1 } }
        END {
            printf "%-12s %7s %7s %8s %9s\n", "suite", "passed", "failed", "skipped", "seconds"
            for (i = 1; i <= k; i++)
                printf "%-12s %7d %7d %8d %9.1f\n", order[i], n[order[i],"pass"], n[order[i],"fail"], n[order[i],"skip"], s[order[i]]
        }' "$HF_RESULTS"
    if grep -qP '\tskip\t' "$HF_RESULTS"; then
        echo "skipped:"
        awk -F'\t' '$3 == "skip" { print "  " $1 "/" $2 ": " $5 }' "$HF_RESULTS"
    fi
    if grep -qP '\tfail\t' "$HF_RESULTS"; then
        echo "failed:"
        awk -F'\t' '$3 == "fail" { print "  " $1 "/" $2 ($5 == "" ? "" : ": " $5) }' "$HF_RESULTS"
    fi
    awk -F'\t' '{ n[$3]++ } END { printf "%d passed, %d failed, %d skipped\n", n["pass"], n["fail"], n["skip"] }' "$HF_RESULTS"
}

verb_test() {
    need_root test "$@"
    local suites=() quick="" arg
    for arg in "$@"; do
        case $arg in
            --quick) quick=1 ;;
            -*) die "test: unknown option $arg" ;;
            *)
                [[ " ${HF_SUITES[*]} " == *" $arg "* ]] || die "test: no suite '$arg' (there are: ${HF_SUITES[*]})"
                suites+=("$arg")
                ;;
        esac
    done
    if [ ${#suites[@]} = 0 ]; then
        suites=("${HF_SUITES[@]}")
        [ -n "$quick" ] && suites=("${HF_QUICK_SUITES[@]}")
    fi
    use setup
    use build
    verb_setup
    mkdir -p "$HF_CACHE"
    HF_RESULTS=$(mktemp "$HF_CACHE/results.XXXXXX")
    local before=$HF_RESULTS.before
    python3 tools/host-state snapshot "$before"
    if suite_build build build build_normal; then
        local suite
        for suite in "${suites[@]}"; do
            say "test: $suite"
            "suite_${suite//-/_}"
        done
    fi
    leak_check "$before"
    summary
    local failed=0
    grep -qP '\tfail\t' "$HF_RESULTS" && failed=1
    rm -f "$HF_RESULTS" "$before"
    return $failed
}
