#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Pin what packaging/servers.in asks for into packaging/servers.lock, with the hashes of every architecture's wheels.
#   packaging/lock-servers.sh            for a change of servers.in
#   packaging/lock-servers.sh --upgrade  for newer versions of everything
set -eu
cd "$(dirname "$0")"
command -v uv >/dev/null 2>&1 || {
    echo "lock-servers: uv is missing; install it with: pip install uv" >&2
    exit 1
}
# 3.13 is the Python of Debian trixie.
uv pip compile --quiet --python-version 3.13 --python-platform linux --only-binary :all: --generate-hashes --no-header \
    "$@" servers.in --output-file servers.lock >/dev/null
sed -i -e '1i # SPDX-License-Identifier: LGPL-2.1-or-later' \
    -e '1i # Written by packaging/lock-servers.sh from packaging/servers.in.' servers.lock
