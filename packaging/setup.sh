#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Set up what a checkout needs: the missing Debian packages, then .venv. Names everything it installs.
#   packaging/setup.sh run     what mcpd needs to run from a checkout (make demo)
#   packaging/setup.sh check   that, and what the checks and tests need (make check)
set -eu
cd "$(dirname "$0")/.."

purpose=${1:-run}
case $purpose in
run | check) ;;
*)
    echo "usage: packaging/setup.sh [run|check]" >&2
    exit 2
    ;;
esac
python=${PYTHON:-/usr/bin/python3}

# A package is wanted when the file it is needed for is missing.
missing=
want() { [ -e "$2" ] || missing="$missing $1"; }
want_command() { command -v "$2" >/dev/null 2>&1 || missing="$missing $1"; }

want ca-certificates /etc/ssl/certs/ca-certificates.crt
want python3 /usr/bin/python3
[ -e /usr/bin/python3 ] && /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
want_command bubblewrap bwrap
want_command dbus-daemon dbus-daemon
want_command git git
want_command nodejs node
want_command npm npm
if [ "$purpose" = check ]; then
    # python-dbusmock brings dbus-python, which is compiled here.
    want_command gcc gcc
    want_command pkg-config pkg-config
    [ -e /usr/bin/python3-config ] || missing="$missing python3-dev"
    pkg-config --exists dbus-1 2>/dev/null || missing="$missing libdbus-1-dev"
    pkg-config --exists glib-2.0 2>/dev/null || missing="$missing libglib2.0-dev"
    want_command libglib2.0-bin gdbus
    want_command qtbase5-dev-tools qdbusxml2cpp
    want_command systemd busctl
    want_command xdg-dbus-proxy xdg-dbus-proxy
    want_command util-linux setpriv
    want_command procps ps
    # What the scripts that come with mcpd call.
    want_command jq jq
    # What the workstation searches with.
    want_command ripgrep rg
    # What the guides verify signatures with.
    want_command openssl openssl
    want tzdata /usr/share/zoneinfo/Europe/Vienna
    # The packages, and the machines they are tested on.
    want_command debootstrap debootstrap
    want debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg
    want_command systemd-container systemd-nspawn
    # The manual pages and what reads them, and the shells that complete.
    want_command scdoc scdoc
    want_command man-db man
    want_command mandoc mandoc
    want_command fish fish
    want_command zsh zsh
    # The browser that the pages are looked at with.
    want_command chromium chromium
    want fonts-dejavu-core /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
fi

if [ -n "$missing" ]; then
    echo "setup: installing Debian packages (this may take minutes):$missing"
    sudo=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "setup: run this as root, or install the packages above yourself" >&2
            exit 1
        }
        sudo=sudo
    fi
    $sudo apt-get update -qq
    # shellcheck disable=SC2086  # a list of names
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

extra=demo,servers
[ "$purpose" = run ] || extra=dev
# What .venv was made from; it is made again when that changes.
wanted="$("$python" --version) $(sha256sum pyproject.toml | cut -d' ' -f1)"
stamp=.venv/.setup-$extra
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
    echo "setup: installing Python packages into .venv"
    "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extra]"
    echo "$wanted" >"$stamp"
fi
[ "$purpose" = run ] || PYTHON=.venv/bin/python packaging/conformance.sh >/dev/null
