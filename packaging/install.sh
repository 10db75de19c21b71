#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Put everything at its place below DESTDIR (make install).
set -eu
cd "$(dirname "$0")/.."
root=$DESTDIR

put() { # put MODE SOURCE TARGET; a .in is filled in
    case $2 in
    *.in)
        mkdir -p "$(dirname "$root$3")"
        sed -e "s|@libexecdir@|$libexecdir|g" -e "s|@pythondir@|$pythondir|g" -e "s|@python@|$python|g" "$2" >"$root$3"
        chmod "$1" "$root$3"
        ;;
    *) install -D -m "$1" "$2" "$root$3" ;;
    esac
}

mkdir -p "$root$pythondir"
cp -R mcpd "$root$pythondir/"
mkdir -p "$root$pythondir/mcpd/bus/interfaces"
cp dbus/*.xml "$root$pythondir/mcpd/bus/interfaces/"
script() { # script TARGET MODULE
    mkdir -p "$(dirname "$root$1")"
    printf '#!%s -I\nimport sys\n\nfrom %s import main\n\nsys.exit(main())\n' "$python" "$2" >"$root$1"
    chmod 755 "$root$1"
}
script "$libexecdir/mcpd" mcpd.daemon
script "$prefix/bin/mcpctl" mcpd.cli.main
script "$prefix/bin/mcpd-bridge" mcpd.bridge.main
for scope in system user; do
    for unit in systemd/$scope/*; do
        [ -e "$unit" ] || continue
        put 644 "$unit" "$prefix/lib/systemd/$scope/$(basename "$unit" .in)"
    done
done
put 644 systemd/sysusers.conf "$prefix/lib/sysusers.d/mcpd.conf"
put 644 systemd/tmpfiles.conf "$prefix/lib/tmpfiles.d/mcpd.conf"
for interface in dbus/*.xml; do put 644 "$interface" "$prefix/share/dbus-1/interfaces/$(basename "$interface")"; done
put 644 dbus/org.mcpd.Mcp1.conf "$prefix/share/dbus-1/system.d/org.mcpd.Mcp1.conf"
put 644 dbus/system-services/org.mcpd.Mcp1.service "$prefix/share/dbus-1/system-services/org.mcpd.Mcp1.service"
put 644 dbus/services/org.mcpd.Mcp1.service "$prefix/share/dbus-1/services/org.mcpd.Mcp1.service"
put 644 dbus/org.mcpd.mcp1.policy "$prefix/share/polkit-1/actions/org.mcpd.mcp1.policy"
mkdir -p "$root$prefix/share/mcp"
ln -sfn /var/lib/mcp/installed "$root$prefix/share/mcp/installed"
