# shellcheck shell=bash
# usage: ./dev lint
#
# clang-format, include arrows (tools/check-layers), file length, forbidden calls, shell scripts, and that no
# machine's paths or addresses of registries got into the repository.

HF_FILE_LINES_MAX=800

c_files() { git ls-files -co --exclude-standard -- 'src/*.[ch]' 'tests/*.[ch]' 'src/**/*.[ch]' 'tests/**/*.[ch]'; }

lint_format() { c_files | xargs -r clang-format --dry-run -Werror; }
lint_layers() { tools/check-layers; }

lint_length() {
    local file lines bad=0
    while read -r file; do
        lines=$(wc -l <"$file")
        if [ "$lines" -gt $HF_FILE_LINES_MAX ]; then
            echo "$file: $lines lines, more than $HF_FILE_LINES_MAX: split it"
            bad=1
        fi
    done < <(git ls-files -co --exclude-standard -- '*.c' '*.h' '*.sh' '*.mjs' dev tools)
    return $bad
}

# Calls that the house style refuses, in code (not in comments).
lint_calls() {
    local found
    found=$(c_files | xargs -r grep -nE '\b(strcpy|strcat|sprintf|vsprintf|atoi|atol|strtok|strncpy|gets|system|popen|alloca)\(' |
        grep -vE ':[[:space:]]*(/?\*|//)' || true)
    [ -z "$found" ] && return 0
    echo "$found"
    return 1
}

lint_shell() {
    command -v shellcheck >/dev/null || return 77
    local scripts
    mapfile -t scripts < <(git ls-files -co --exclude-standard -- '*.sh' dev .ci/run)
    local file
    while read -r file; do
        head -c 64 "$file" | head -n1 | grep -qE '^#!.*\b(ba)?sh\b' && scripts+=("$file")
    done < <(git ls-files -co --exclude-standard -- tools | grep -v '\.sh$')
    shellcheck -x -S warning "${scripts[@]}"
}

lint_private() {
    local found
    found=$(git grep -nIE '"resolved": "http|(^|[^A-Za-z0-9_.])/work/|registry\.[a-z]+\.(org|com)' -- . ':!tools/dev/lint.sh' || true)
    [ -z "$found" ] && return 0
    echo "names a machine's path or a registry's address:"
    echo "$found"
    return 1
}

HF_LINTS=(format layers length calls shell private)

verb_lint() {
    local name r failed=0
    for name in "${HF_LINTS[@]}"; do
        r=0
        "lint_$name" || r=$?
        case $r in
            0) say "lint $name: ok" ;;
            77) say "lint $name: skipped (the tool is not installed: ./dev setup)" ;;
            *)
                say "lint $name: FAILED"
                failed=1
                ;;
        esac
    done
    return $failed
}
