# SPDX-License-Identifier: LGPL-2.1-or-later
"""Command line of mcpctl: find servers, install them and change their versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.cli.argument_types import add_consent, add_id, pair, positive, sha256

if TYPE_CHECKING:
    import argparse

    from mcpd.cli.parser import _Adder

TARGET_HELP: Final = (
    "an id from the catalog, pypi:NAME[==VERSION], npm:NAME[@VERSION], git+URL[@REV][#PATH], a directory, a file "
    "with a manifest, registry entry or server.json, a bundle (.mcpb) or an archive (.tar.gz, .zip); bundles and "
    "archives also as https: URLs with --sha256"
)
_NOT_FROM_CATALOG: Final = "(not for servers from the catalog)"


def add_catalog(add: _Adder) -> None:
    """Add ``mcpctl list``, ``search`` and ``show``."""
    add("list", "servers:list_servers", "list the installed servers", json=True)
    search = add("search", "catalog:search", "search the catalog for servers to install", json=True)
    search.add_argument("text", metavar="TEXT", nargs="*", help="words to search for (default: list everything)")
    search.add_argument("--category", metavar="CATEGORY", help="show only servers of this category, e.g. mcp-web")
    _source(search, "show only servers of this registry")
    search.add_argument("--installable", action="store_true", help="show only servers that can be installed here")
    search.add_argument("--installed", action="store_true", help="show only installed servers")
    search.add_argument("--updatable", action="store_true", help="show only servers with an available update")
    search.add_argument("--limit", type=positive, default=200, metavar="N", help="show at most N servers (200)")
    show = add("show", "servers:show", "show details of a server", json=True)
    add_id(show)
    _source(show, "show the entry of this registry, even if the server is installed")


def add_changes(add: _Adder) -> None:
    """Add the commands that install and remove servers, and choose their versions."""
    _install(add("install", "install:install", "install a server", json=True))
    remove = add("remove", "install:remove", "remove servers", aliases=["uninstall"])
    add_id(remove, nargs="+")
    remove.add_argument("--keep-config", action="store_true", help="keep the configuration, the secrets and the state")
    update = add("update", "update:update", "update servers", json=True)
    add_id(update, nargs="*")
    update.add_argument("--check", action="store_true", help="list available updates without installing them")
    add_consent(update)
    _versions(add)
    add("refresh", "install:refresh", "refresh the catalog from the registries", json=True)


def _versions(add: _Adder) -> None:
    rollback = add("rollback", "versions:rollback", "roll a server back to an earlier generation", json=True)
    add_id(rollback)
    rollback.add_argument(
        "--to", type=positive, metavar="N", help="number of the generation, as 'mcpctl history' lists it (default: the "
        "latest that differs from the active one)",
    )  # fmt: skip
    add_id(add("history", "versions:history", "list the generations of a server", json=True))
    pin = add("pin", "versions:pin", "keep servers at their installed versions", json=True)
    add_id(pin, nargs="+")
    pin.add_argument("--remove", action="store_true", help="unpin the servers, so that they are updated again")
    verify = add("verify", "versions:verify", "compare installed files with the hashes recorded for them", json=True)
    add_id(verify, nargs="*")
    approve = add(
        "approve", "versions:approve", "show how a pending update changes a server's tools, and activate it", json=True
    )
    add_id(approve)
    instead = approve.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="show the changes without activating the update")
    instead.add_argument("--drop", action="store_true", help="remove the pending update without asking")
    approve.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _source(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--source", metavar="URL", help=text)


def _install(install: argparse.ArgumentParser) -> None:
    install.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    _source(install, "install from this registry (default: the first that has the server)")
    install.add_argument(
        "--version",
        dest="at_version",
        metavar="VERSION",
        help="install this version (git: revision) of a server from the catalog and pin it; refused if the entry has "
        "the hash of another version",
    )
    install.add_argument("--sha256", type=sha256, metavar="DIGEST", help="required hash of a bundle or archive")
    install.add_argument("--dry-run", action="store_true", help="show what would be installed, without installing it")
    install.add_argument("--id", metavar="ID", help=f"id of the installed server {_NOT_FROM_CATALOG}")
    install.add_argument("--command", dest="program", metavar="NAME", help="program in the package to start")
    install.add_argument(
        "--arg",
        dest="arguments",
        action="append",
        default=[],
        metavar="ARG",
        help="argument of that program, repeatable; write --arg=-x for one that begins with a dash",
    )
    install.add_argument(
        "--permission",
        dest="permissions",
        action="append",
        default=[],
        metavar="PERM",
        help=f"grant a permission, e.g. network or filesystem:ro:PATH, repeatable {_NOT_FROM_CATALOG}",
    )
    install.add_argument(
        "--secret",
        dest="secrets",
        action="append",
        default=[],
        metavar="KEY",
        help="environment variable that holds a secret; its value is asked for, or read with --secret-file; "
        f"repeatable {_NOT_FROM_CATALOG}",
    )
    install.add_argument(
        "--env",
        dest="env",
        action="append",
        default=[],
        type=pair,
        metavar="KEY=VALUE",
        help=f"environment variable, repeatable {_NOT_FROM_CATALOG}",
    )
    install.add_argument(
        "--run-as",
        choices=("user", "system"),
        help=f"run as the user who starts it, or (system servers only) as mcp-server for everyone {_NOT_FROM_CATALOG}",
    )
    install.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        type=pair,
        metavar="KEY=VALUE",
        help="set a property, as 'mcpctl config set' does; if its type is not known, a JSON value is read as JSON",
    )
    install.add_argument(
        "--secret-file",
        dest="secret_files",
        action="append",
        default=[],
        type=pair,
        metavar="KEY=FILE",
        help="set a sensitive property to the content of FILE (-: standard input)",
    )
    install.add_argument(
        "--reinstall",
        action="store_true",
        help="reinstall, or switch the package source; a pinned server keeps its version unless --version changes it",
    )
    install.add_argument(
        "--no-check",
        action="store_true",
        help="install a remote server without checking that it answers",
    )
    add_consent(install)
