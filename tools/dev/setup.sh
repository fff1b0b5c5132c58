# shellcheck shell=bash
# usage: ./dev setup
#
# Installs what building, testing and the demo need: Debian packages that are missing, a Node that is new
# enough for the e2b SDK (from npm, when the host has none), and the SDK itself for tests/e2e.
# Running it again when nothing is missing takes well under a second.

# What the build needs, then what the daemon runs, then what the tests and the template builder run.
HF_PACKAGES=(
    gcc clang libclang-rt-14-dev libfuzzer-14-dev clang-format meson ninja-build pkg-config python3 libc6-dev
    libuv1-dev libjansson-dev libsqlite3-dev libseccomp-dev libcurl4-openssl-dev libarchive-dev zlib1g-dev
    libssl-dev libnghttp2-dev
    node-llhttp libcmocka-dev
    e2fsprogs xfsprogs util-linux mount nftables iproute2 procps
    mmdebstrap ca-certificates openssl curl git shellcheck busybox-static
)
# What building CRIU needs (below).
HF_CRIU_PACKAGES=(
    make patch xz-utils libprotobuf-c-dev libprotobuf-dev protobuf-c-compiler protobuf-compiler libnl-3-dev libnet1-dev
    libcap-dev libbsd-dev uuid-dev python3-protobuf
)
HF_CRIU_VERSION=4.1.1
HF_CRIU_SHA256=f80a66cb3726bb2116266d4759ce3bcbfab7abdb6b6d430bf20dd41911717afe
HF_CRIU_PATH=/usr/local/lib/holdfast/criu

# Only for ./dev bench (tools/dev/bench.sh).
# shellcheck disable=SC2034
HF_BENCH_PACKAGES=(nginx-light wrk crun runc iptables bubblewrap haproxy iperf3 mitmproxy nghttp2-client)

missing_packages() {
    local p
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
    done
}

# Installs the packages that are missing; services in them are not started.
install_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} = 0 ] && return 0
    command -v apt-get >/dev/null || die "needs these Debian packages, and there is no apt-get: ${missing[*]}"
    say "installing: ${missing[*]}"
    local policy=/usr/sbin/policy-rc.d made_policy=
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
        as_root chmod 755 $policy
        made_policy=1
    fi
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
    local ok=1
    as_root "${apt[@]}" update >&2 || warn "apt-get update failed; trying with the lists that are there"
    as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 || ok=
    [ -n "$made_policy" ] && as_root rm -f $policy
    [ -n "$ok" ] || die "could not install: ${missing[*]}"
}

# A copy of package.json and its lock file is installed with `npm ci`; done again only when the lock changes.
npm_ci() { # DIR (holds package.json and package-lock.json) TARGET
    local from=$1 to=$2 stamp sum
    stamp=$to/node_modules/.holdfast-lock
    sum=$(sha256sum "$from/package-lock.json" | cut -d' ' -f1)
    [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] && return 0
    say "npm ci: $from"
    mkdir -p "$to"
    [ "$from" -ef "$to" ] || cp "$from/package.json" "$from/package-lock.json" "$to/"
    (cd "$to" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) || die "npm ci failed in $to"
    echo "$sum" >"$stamp"
}

install_node() {
    if ! node_path >/dev/null; then
        command -v npm >/dev/null || install_packages nodejs npm
        # npm's own package `node` is a choice between these per-platform packages; the lock file pins them.
        npm_ci "$HF_ROOT/tools/node" "$HF_CACHE/node"
        local bin
        bin=$(find "$HF_CACHE/node/node_modules" -path '*/bin/node' -type f | head -n1)
        [ -n "$bin" ] || die "npm has no Node for this machine ($(uname -m)): install Node >= $HF_NODE_MIN"
        ln -sfn "$bin" "$HF_CACHE/node/node_modules/.bin-node"
        node_path >/dev/null || die "the Node from npm does not run here: install Node >= $HF_NODE_MIN"
    fi
    command -v npm >/dev/null || install_packages nodejs npm
}

# The Debian archive that this host itself is configured for, as its apt tells it.
debian_archive() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' 2>/dev/null |
        grep -E '/debian/?$' | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }'
}

# CRIU from Debian 13's source, with tools/criu/holdfast.patch: neither Debian 12's nor an unpatched one can save a
# sandbox (docs/adr/0017). The stamp beside the program says what it was built from.
install_criu() {
    local stamp tar=$HF_CACHE/criu_$HF_CRIU_VERSION.orig.tar.xz dir=$HF_CACHE/criu archive
    stamp="$HF_CRIU_VERSION $(sha256sum tools/criu/holdfast.patch | cut -d' ' -f1)"
    [ -x "$HF_CRIU_PATH" ] && [ "$(cat "$HF_CRIU_PATH.stamp" 2>/dev/null)" = "$stamp" ] && return 0
    install_packages "${HF_CRIU_PACKAGES[@]}"
    mkdir -p "$HF_CACHE"
    if ! echo "$HF_CRIU_SHA256  $tar" | sha256sum -c --status 2>/dev/null; then
        archive=$(debian_archive)
        [ -n "$archive" ] || die "cannot build CRIU: this host's apt knows no Debian archive"
        say "fetching the source of CRIU $HF_CRIU_VERSION"
        /usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file "${archive%/}/pool/main/c/criu/criu_$HF_CRIU_VERSION.orig.tar.xz" "$tar" \
            "SHA256:$HF_CRIU_SHA256" >&2 || die "cannot fetch the source of CRIU"
    fi
    say "building CRIU $HF_CRIU_VERSION (about half a minute)"
    rm -rf "$dir"
    mkdir -p "$dir"
    tar -xJf "$tar" -C "$dir" --strip-components=1
    patch -s -d "$dir" -p1 <tools/criu/holdfast.patch
    make -C "$dir" -j"$(nproc)" criu WERROR=0 NO_GNUTLS=1 >"$dir/build.log" 2>&1 ||
        { tail -n 20 "$dir/build.log" >&2; die "CRIU does not build (all of it: $dir/build.log)"; }
    as_root install -D -m 755 "$dir/criu/criu" "$HF_CRIU_PATH"
    echo "$stamp" | as_root tee "$HF_CRIU_PATH.stamp" >/dev/null
    rm -rf "$dir"
    as_root "$HF_CRIU_PATH" check >&2 || warn "criu check: this kernel lacks something; saves of memory may fail"
}

verb_setup() {
    install_packages "${HF_PACKAGES[@]}"
    install_criu
    install_node
    npm_ci "$HF_ROOT/tests/e2e" "$HF_ROOT/tests/e2e"
    node_on_path
    say "setup is complete (node $("$(node_path)" --version))"
}
