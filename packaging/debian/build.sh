#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Build the Debian packages from the work tree, in a Debian trixie of their own (make deb): build/deb/*.deb.
# Needs root for debootstrap and systemd-nspawn; the build itself runs as an ordinary user and without a network.
# The trixie tree and the downloaded wheels are kept in ~/.cache/mcpd; MCPD_DEBIAN_MIRROR names another Debian mirror.
set -eu
cd "$(dirname "$0")/../.."
here=packaging/debian
output=build/deb
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mcpd/packages
mirror=${MCPD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
suite=trixie

die() {
    echo "make deb: $*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || die "debootstrap and systemd-nspawn need root: run it with sudo"
for command in debootstrap systemd-nspawn git; do
    command -v "$command" >/dev/null 2>&1 || die "$command is missing: run packaging/setup.sh check"
done

# What the build sees: all files that git would not ignore, committed or not, but those that only the checkout needs.
files() {
    git ls-files --cached --others --exclude-standard --deduplicate -z -- . ':!bench' ':!.ci' ':!tests/[!u]*' |
        sort -z | xargs -0 sh -c 'for file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done' -
}

inputs=$(files | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
if [ "$(cat "$output/.inputs" 2>/dev/null || true)" = "$inputs" ]; then
    echo "make deb: $output is up to date"
    exit 0
fi

mkdir -p "$cache" build
exec 9>"$cache/lock"
flock 9

# The tree that the build runs in, made once for what debian/control asks for.
packages=$(sed -n '/^Build-Depends/,/^[A-Z][a-z]*:/{s/^ \([a-z0-9.+-]*\).*/\1/p}' "$here/control" | grep -v debhelper-compat)
tools="build-essential debhelper lintian"
key=$(echo "$suite $(dpkg --print-architecture) $mirror $tools $packages" | sha256sum | cut -c1-16)
root=$cache/build-$suite-$key
if [ ! -e "$root/.made" ]; then
    echo "make deb: making a Debian $suite to build in (minutes, once): $root"
    rm -rf "$root" "$cache/build-$suite-"*
    debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
        die "debootstrap failed: see $cache/debootstrap.log"
    # The host's way to its mirror, where it needs one.
    for file in /etc/apt/apt.conf.d/99*; do [ ! -e "$file" ] || cp "$file" "$root/etc/apt/apt.conf.d/"; done
    echo '127.0.0.1 localhost' >"$root/etc/hosts"
    SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes systemd-nspawn -q -D "$root" --register=no --keep-unit --pipe \
        --bind-ro=/etc/resolv.conf --setenv=DEBIAN_FRONTEND=noninteractive sh -eu -c "
            apt-get update -q
            apt-get install -q -y --no-install-recommends $(echo "$tools $packages" | tr '\n' ' ')
            apt-get clean
            useradd --create-home builder" >>"$cache/debootstrap.log" 2>&1 </dev/null ||
        die "installing the build dependencies failed: see $cache/debootstrap.log"
    touch "$root/.made"
fi

# The wheels of the servers' environment, by their hashes.
python_version=$(basename "$(ls -d "$root"/usr/lib/python3.[0-9]*)" | sed 's/^python//')
machine=$(uname -m)
wheels=$cache/wheels-$(sha256sum packaging/servers.lock | cut -c1-16)
if [ ! -e "$wheels/.made" ]; then
    echo "make deb: downloading the wheels of packaging/servers.lock"
    pip=
    for python in .venv/bin/python python3; do
        "$python" -m pip --version >/dev/null 2>&1 && pip="$python -m pip" && break
    done
    [ -n "$pip" ] || die "no pip to download the wheels with: run packaging/setup.sh check"
    rm -rf "$cache"/wheels-*
    abi=cp$(echo "$python_version" | tr -d .)
    # shellcheck disable=SC2086  # a command with its arguments
    $pip download -qq --disable-pip-version-check --no-deps --require-hashes --only-binary :all: --dest "$wheels" \
        --python-version "$python_version" --implementation cp --abi "$abi" --abi abi3 --abi none \
        --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" --platform "manylinux_2_28_$machine" \
        --platform "manylinux_2_34_$machine" --requirement packaging/servers.lock
    touch "$wheels/.made"
fi

work=$(mktemp -d "$PWD/build/deb-XXXXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/mcpd"
files | tar --create --null --no-recursion --files-from=- | tar --extract --directory "$work/mcpd"
mv "$work/mcpd/$here" "$work/mcpd/debian"
mkdir "$work/mcpd/packaging/wheels"
cp "$wheels"/*.whl "$work/mcpd/packaging/wheels/"
# Times and modes of a checkout are its own; the package has those of its last change.
epoch=$(date --date "$(sed -n 's/^ -- .*>  //p' "$here/changelog" | head -1)" +%s)
chmod -R u=rwX,go=rX "$work/mcpd"
find "$work/mcpd" -exec touch --no-dereference --date "@$epoch" {} +
owner=$(awk -F: '$1 == "builder" { print $3 ":" $4 }' "$root/etc/passwd")
chown -R "$owner" "$work"

inside() { # inside COMMAND…: in the tree, on a copy of it in memory
    SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes systemd-nspawn -q -D "$root" --volatile=overlay --register=no --keep-unit --pipe \
        --private-network --user=builder --bind="$work:/build" --chdir=/build/mcpd \
        --setenv=LC_ALL=C.UTF-8 --setenv=DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-}" "$@" </dev/null
}
echo "make deb: building; the log is $output/build.log"
mkdir -p "$output"
inside dpkg-buildpackage --build=binary --no-sign >"$output/build.log" 2>&1 || {
    tail -n 40 "$output/build.log" >&2
    die "the build failed"
}
echo "make deb: lintian"
inside sh -c 'lintian --pedantic --tag-display-limit 0 --fail-on error,warning /build/*.changes' || die "lintian found faults"

rm -f "$output"/*.deb "$output"/*.changes "$output"/*.buildinfo
for file in "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo; do
    install -m 644 "$file" "$output/"
    echo "make deb: $output/$(basename "$file")"
done
echo "$inputs" >"$output/.inputs"
