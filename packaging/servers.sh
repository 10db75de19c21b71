#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Make the private Python environment of the bundled servers below DESTDIR, from the wheels of servers.lock in a directory,
# and put beside it what runs in it: the bundled servers, the scripts with the map that describes them, and the ensembles.
#   DESTDIR=… packaging/servers.sh WHEELS
# It asks no registry. Its programs are found by python -m, so nothing in it names the place it was made in.
set -eu
wheels=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
python=${python:-/usr/bin/python3}
export prefix=${prefix:-/usr}
pythondir=${pythondir:-$prefix/lib/python3/dist-packages}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
root=$DESTDIR$prefix/lib/mcpd-servers
site=$root/lib/python$version/site-packages
mkdir -p "$root/bin" "$site"
"$python" -m pip install --quiet --no-index --find-links "$wheels" --require-hashes --no-deps --only-binary :all: \
    --no-compile --no-warn-script-location --target "$site" --requirement packaging/servers.lock
# mcpd installs servers from PyPI with uv; the other programs are not needed.
mv "$site/bin/uv" "$root/bin/uv"
rm -rf "$site/bin"
ln -sfn "/usr/bin/python$version" "$root/bin/python"
ln -sfn python "$root/bin/python3"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$version" >"$root/pyvenv.cfg"
# The bundled servers use mcpd's models; the rest of the system's Python packages stay out.
ln -sfn "$pythondir/mcpd" "$site/mcpd"

packaging/install.sh share

mkdir -p "$DESTDIR$prefix/bin"
program() { # program NAME MODULE, with its page
    printf '#!/bin/sh\nexec %s -I -m mcpd.servers.%s "$@"\n' "$prefix/lib/mcpd-servers/bin/python" "$2" \
        >"$DESTDIR$prefix/bin/$1"
    chmod 755 "$DESTDIR$prefix/bin/$1"
    page=build/man/$1.1
    [ ! -f "$page" ] || install -D -m 644 "$page" "$DESTDIR$prefix/share/man/man1/$1.1"
}
program llm-orc ensembles
program mcp-orchestration orchestration
program mcp-scripts scripts
program mcp-workstation workstation
