#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Put everything at its place below DESTDIR: the only map of what lies where. The Makefile sets the variables.
#   packaging/install.sh python   the package mcpd, where nothing else (pip, pybuild) has put it
#   packaging/install.sh share    the manifests of the bundled servers, the scripts with their map, and the ensembles
#   packaging/install.sh files    everything else
set -eu
cd "$(dirname "$0")/.."
root=$DESTDIR
share=$prefix/share

put() { # put MODE SOURCE TARGET; a .in is filled in
    case $2 in
    *.in)
        mkdir -p "$(dirname "$root$3")"
        sed -e "s|@libexecdir@|$libexecdir|g" -e "s|@pythondir@|$pythondir|g" -e "s|@python@|$python|g" \
            -e "s|@bindir@|$prefix/bin|g" -e "s|@privileged_group@|$privileged_group|g" "$2" >"$root$3"
        chmod "$1" "$root$3"
        ;;
    *) install -D -m "$1" "$2" "$root$3" ;;
    esac
}

put_all() { # put_all DIRECTORY FILE…; a pattern that matches nothing is no file
    directory=$1
    shift
    for file; do
        [ ! -f "$file" ] || put 644 "$file" "$directory/$(basename "$file" .in)"
    done
}

script() { # script TARGET MODULE
    mkdir -p "$(dirname "$root$1")"
    printf '#!%s -I\nimport sys\n\nfrom %s import main\n\nsys.exit(main())\n' "$python" "$2" >"$root$1"
    chmod 755 "$root$1"
}

install_python() {
    mkdir -p "$root$pythondir"
    cp -R mcpd "$root$pythondir/"
    find "$root$pythondir/mcpd" -name __pycache__ -prune -exec rm -rf {} +
    put_all "$pythondir/mcpd/bus/interfaces" dbus/*.xml
    for data in clients client-profiles; do
        put_all "$pythondir/mcpd/clients/data/$data" data/$data/*.toml
    done
}

install_files() {
    script "$libexecdir/mcpd" mcpd.daemon
    script "$prefix/bin/mcpctl" mcpd.cli.main
    script "$prefix/bin/mcpd-bridge" mcpd.bridge.main

    for scope in system user; do
        for unit in systemd/"$scope"/*; do
            case $unit in
            *.preset) put 644 "$unit" "$prefix/lib/systemd/$scope-preset/90-mcpd.preset" ;;
            *) put_all "$prefix/lib/systemd/$scope" "$unit" ;;
            esac
        done
    done
    put_all "$prefix/lib/systemd/catalog" systemd/*.catalog
    put 644 systemd/sysusers.conf "$prefix/lib/sysusers.d/mcpd.conf"
    put 644 systemd/tmpfiles.conf "$prefix/lib/tmpfiles.d/mcpd.conf"

    put_all "$share/dbus-1/interfaces" dbus/org.mcpd.*.xml
    put_all "$share/dbus-1/system.d" dbus/org.mcpd.*.conf
    put_all "$share/dbus-1/system-services" dbus/system-services/*.service
    put_all "$share/dbus-1/services" dbus/services/*.service
    put_all "$share/polkit-1/actions" dbus/*.policy
    put_all "$share/polkit-1/rules.d" dbus/rules.d/*.rules.in
    put_all "$share/metainfo" data/*.metainfo.xml

    # The state is below /var; the path that other readers of the format know stays valid (docs/adr/0004).
    mkdir -p "$root$share/mcp/servers"
    ln -sfn /var/lib/mcp/installed "$root$share/mcp/installed"
    put 644 data/registry.json "$share/mcp/registry.json"
    # The administrator's from then on.
    [ -e "$root/etc/mcp/sources.list" ] || put 644 data/sources.list /etc/mcp/sources.list
    put_all "$share/mcp/profiles" data/profiles/*.toml

    [ -d build/man ] && [ -d build/completions ] ||
        echo 'install: without manual pages and completions, which "make docs" makes first' >&2
    for page in build/man/*.[158]; do
        case $page in
        # Their commands come with the environment of the bundled servers: servers.sh
        */llm-orc.1 | */mcp-orchestration.1 | */mcp-scripts.1 | */mcp-workstation.1) ;;
        *) put_all "$share/man/man${page##*.}" "$page" ;;
        esac
    done
    put_all "$share/bash-completion/completions" build/completions/mcpctl
    put_all "$zshcompletiondir" build/completions/_mcpctl
    put_all "$share/fish/vendor_completions.d" build/completions/mcpctl.fish

    put_all "$docdir" README.md CHANGELOG.md SECURITY.md docs/*.md
    put_all "$docdir/adr" docs/adr/*.md
    put_all "$docdir/how-to" docs/how-to/*.md
}

install_share() {
    (cd data/share && find . -type f ! -path '*/__pycache__/*') | while read -r file; do
        put 644 "data/share/$file" "$share/mcp/$file"
    done
}

for part; do
    case $part in
    python | share | files) "install_$part" ;;
    *)
        echo "usage: packaging/install.sh [python] [share] [files]" >&2
        exit 2
        ;;
    esac
done
