# SPDX-License-Identifier: LGPL-2.1-or-later
"""The part of mcpctl's command line that finds servers, installs them, and changes their versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.cli.argument_types import add_consent, add_id, pair, positive, sha256

if TYPE_CHECKING:
    import argparse

    from mcpd.cli.parser import _Adder

TARGET_HELP: Final = (
    "an id from the catalog, pypi:NAME[==VERSION], npm:NAME[@VERSION], git+URL[@REV][#PATH], a directory, a file "
    "with a manifest, registry entry or server.json, a bundle (.mcpb) or an archive (.tar.gz, .zip); the last two also "
    "as https: URLs, with --sha256"
)
_NOT_FROM_CATALOG: Final = "(not for servers of the catalog)"


def add_catalog(add: _Adder) -> None:
    """Add ``mcpctl list``, ``search`` and ``show``."""
    add("list", "servers:list_servers", "list the installed servers", json=True)
    search = add("search", "catalog:search", "search the servers that can be installed", json=True)
    search.add_argument("text", metavar="TEXT", nargs="*", help="words to look for; none lists everything")
    search.add_argument("--category", metavar="CATEGORY", help="only servers of this category, e.g. mcp-web")
    _source(search, "only servers of this registry")
    search.add_argument("--installable", action="store_true", help="only servers that can be installed here")
    search.add_argument("--installed", action="store_true", help="only servers that are installed")
    search.add_argument("--updatable", action="store_true", help="only servers that have an update")
    search.add_argument("--limit", type=positive, default=200, metavar="N", help="show at most N servers (200)")
    show = add("show", "servers:show", "show all that is known about a server", json=True)
    add_id(show)
    _source(show, "show what this registry offers, though the server is installed")


def add_changes(add: _Adder) -> None:
    """Add the commands that install and remove servers, and change which version of them is used."""
    _install(add("install", "install:install", "install a server", json=True))
    remove = add("remove", "install:remove", "remove servers", aliases=["uninstall"])
    add_id(remove, nargs="+")
    remove.add_argument("--keep-config", action="store_true", help="keep the configuration, the secrets and the state")
    update = add("update", "update:update", "update servers", json=True)
    add_id(update, nargs="*")
    update.add_argument("--check", action="store_true", help="only look which servers have an update")
    add_consent(update)
    _versions(add)
    add("refresh", "install:refresh", "read the registries again", json=True)


def _versions(add: _Adder) -> None:
    rollback = add("rollback", "versions:rollback", "go back to an earlier generation of a server", json=True)
    add_id(rollback)
    rollback.add_argument(
        "--to", type=positive, metavar="N", help="number of the generation, as 'mcpctl history' lists it (default: the "
        "last that was something else)",
    )  # fmt: skip
    add_id(add("history", "versions:history", "list the generations of a server that are still there", json=True))
    pin = add("pin", "versions:pin", "keep servers at their versions, whatever is offered", json=True)
    add_id(pin, nargs="+")
    pin.add_argument("--remove", action="store_true", help="update them again")
    verify = add("verify", "versions:verify", "compare installed files with what was recorded of them", json=True)
    add_id(verify, nargs="*")
    approve = add(
        "approve", "versions:approve", "use an update that changes what a server says of its tools, after showing how",
        json=True,
    )  # fmt: skip
    add_id(approve)
    instead = approve.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="only show what it changes")
    instead.add_argument("--drop", action="store_true", help="refuse the update: remove what waits, without a question")
    approve.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _source(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--source", metavar="URL", help=text)


def _install(install: argparse.ArgumentParser) -> None:
    install.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    _source(install, "take the server of the catalog from this registry (default: the first that has it)")
    install.add_argument(
        "--version",
        dest="at_version",
        metavar="VERSION",
        help="install the server of the catalog in this version (of git: revision), unless its entry has the hash of "
        "another one, and pin it to that",
    )
    install.add_argument("--sha256", type=sha256, metavar="DIGEST", help="what a bundle or archive has to hash to")
    install.add_argument("--dry-run", action="store_true", help="only show what would be installed")
    install.add_argument("--id", metavar="ID", help=f"id to install it under {_NOT_FROM_CATALOG}")
    install.add_argument("--command", dest="program", metavar="NAME", help="program of the package to start")
    install.add_argument(
        "--arg",
        dest="arguments",
        action="append",
        default=[],
        metavar="ARG",
        help="argument of that program, repeatable; one that begins with a dash is written --arg=-x",
    )
    install.add_argument(
        "--permission",
        dest="permissions",
        action="append",
        default=[],
        metavar="PERM",
        help=f"grant it a permission, e.g. network or filesystem:ro:PATH, repeatable {_NOT_FROM_CATALOG}",
    )
    install.add_argument(
        "--secret",
        dest="secrets",
        action="append",
        default=[],
        metavar="KEY",
        help="environment variable with a secret, asked for without echo or given with --secret-file, repeatable "
        f"{_NOT_FROM_CATALOG}",
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
        help="whether it runs as whoever starts it, or as mcp-server for everybody, which is for the system's servers "
        f"{_NOT_FROM_CATALOG}",
    )
    install.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        type=pair,
        metavar="KEY=VALUE",
        help="set a property, as 'mcpctl config set' does; JSON is taken as such where the type is not known",
    )
    install.add_argument(
        "--secret-file",
        dest="secret_files",
        action="append",
        default=[],
        type=pair,
        metavar="KEY=FILE",
        help="set a sensitive property to what FILE holds (- is standard input)",
    )
    install.add_argument(
        "--reinstall",
        action="store_true",
        help="install again what is installed already, or from elsewhere; what is pinned in its pinned version alone, "
        "until 'mcpctl pin --remove' ends that or --version moves it",
    )
    install.add_argument(
        "--no-check",
        action="store_true",
        help="install a remote server without trying whether it answers",
    )
    add_consent(install)
