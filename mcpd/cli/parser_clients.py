# SPDX-License-Identifier: LGPL-2.1-or-later
"""Command line of mcpctl: MCP clients and their configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

    from mcpd.cli.parser import _Adder

HANDLER: Final = "mcpd.cli.client_runtime:run"
COMMANDS: Final = "mcpd.cli.commands."
DEFAULT_PROFILE: Final = "default"


def add_clients(add: _Adder) -> None:
    """Add ``mcpctl client``.

    The namespace of its commands has ``action`` ("module:function"), which ``handler`` calls, and ``needs``, the
    libraries of the bundled servers that the command imports (``nothing``, ``signatures`` or ``files``).
    """
    client = add.group("client", "add the installed servers to the configuration files of MCP clients")
    _reading(client)
    _drafts(client.group("draft", "edit the next configuration of a client"))
    _publishing(client)
    _files(client)
    _keys(client.group("keys", "manage the keys that sign configurations"))


def _reading(client: _Adder) -> None:
    _command(client, "list", "client:list_clients", "list the known MCP clients", needs="nothing")
    profiles = _command(client, "profiles", "client:list_profiles", "list the profiles of a client")
    _client(profiles)
    show = _command(client, "show", "client:show", "show the signed configuration of a client")
    _client(show)
    _profile(show)
    _artifact(show, "show the configuration with this id instead of the latest one")
    diff = _command(
        client, "diff", "client_files:diff", "show what a deployment would write into a client's file", needs="files"
    )
    _client(diff)
    _profile(diff)
    local = diff.add_mutually_exclusive_group()
    _artifact(local, "compare the configuration with this id instead of the client's file")
    _file(local, "compare FILE instead of the client's usual file")
    verify = _command(client, "verify", "client:verify", "check the signatures of a configuration")
    verify.add_argument(
        "file", metavar="FILE", help="output of 'mcpctl client show --json' or the tool get_config (-: standard input)"
    )
    verify.add_argument(
        "--key", metavar="FILE", help="public key to check with, PEM or 32 bytes (default: the keys of this machine)"
    )


def _drafts(draft: _Adder) -> None:
    show = _command(draft, "show", "client_drafts:show_draft", "show the draft and its changes")
    _client(show)
    _profile(show)
    new = _command(draft, "add", "client_drafts:add_server", "add a server to the draft, creating the draft if needed")
    _client(new)
    new.add_argument("id", metavar="ID", help="id of an installed server, or any name with --entry")
    new.add_argument("--name", metavar="NAME", help="name of the server in the client (default: ID)")
    new.add_argument(
        "--variable",
        dest="variables",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable that the client passes to the server, repeatable; its value is never stored",
    )
    new.add_argument(
        "--entry",
        metavar="FILE",
        help="add the server in FILE, which need not be installed: a JSON object with command and args, or type and "
        "url (-: standard input)",
    )
    _profile(new)
    remove = _command(draft, "remove", "client_drafts:remove_server", "remove servers from the draft")
    _client(remove)
    remove.add_argument("names", metavar="NAME", nargs="+", help="name of the server in the client")
    _profile(remove)
    clear = _command(draft, "clear", "client_drafts:clear_draft", "delete the draft")
    _client(clear)
    _profile(clear)


def _publishing(client: _Adder) -> None:
    validate = _command(
        client, "validate", "client_drafts:validate", "check the next configuration, including against the policy"
    )
    _client(validate)
    _profile(validate)
    _file(validate, "check FILE, a JSON object with mcpServers, instead (-: standard input)")
    publish = _command(
        client,
        "publish",
        "client_drafts:publish",
        "sign the draft, or the installed servers, as the latest configuration",
    )
    _clients(publish, "id of the client")
    publish.add_argument(
        "--all", action="store_true", help="publish for every client and profile with a configuration or a draft"
    )
    publish.add_argument(
        "--from-installed",
        action="store_true",
        help="publish the installed servers, even if that replaces a configuration made from a draft",
    )
    _profile(publish, None, "default; with --all: every profile")
    _message(publish)


def _files(client: _Adder) -> None:
    _command(client, "detect", "client_files:detect", "list the MCP clients found on this machine", needs="files")
    deploy = _command(
        client, "deploy", "client_files:deploy", "write a signed configuration to your client's file", needs="files"
    )
    _client(deploy)
    _profile(deploy)
    _artifact(deploy, "deploy the configuration with this id instead of the latest one")
    _file(deploy, "write FILE instead of the client's usual file")
    deploy.add_argument(
        "--take-over",
        action="append",
        default=[],
        metavar="NAME",
        help="replace the server NAME, even if you added it to the file yourself; repeatable",
    )
    first = deploy.add_mutually_exclusive_group()
    first.add_argument("--publish", action="store_true", help="publish first, as 'mcpctl client publish' does")
    first.add_argument("--dry-run", action="store_true", help="show what would change, without changing it")
    _message(deploy)
    deploy.add_argument("-y", "--yes", action="store_true", help="do not ask before changing the file")
    drift = _command(
        client, "drift", "client_files:drift", "check client files for changes since their deployment", needs="files"
    )
    _clients(drift, "id of the client (default: every client with a deployment)")
    _file(drift, "check only FILE (default: every file with a deployment)")
    undo = _command(client, "undo", "client_files:undo", "undo the last deployment to a client's file", needs="files")
    _client(undo)
    _file(undo, "restore FILE (default: the file of the last deployment)")
    changed = undo.add_mutually_exclusive_group()
    changed.add_argument("--force", action="store_true", help="restore the file even if it has been changed since then")
    changed.add_argument(
        "--keep-edits", action="store_true", help="undo only the changes to servers, and keep all other later changes"
    )
    history = _command(
        client, "history", "client_files:history", "list the releases and deployments for a client", needs="files"
    )
    _client(history)
    _profile(history, None, "every profile")


def _keys(keys: _Adder) -> None:
    _command(keys, "show", "client:show_keys", "list the keys, including retired ones that are still valid")
    _command(keys, "init", "client:initialize_keys", "create the first key, if there is none")
    _command(
        keys,
        "rotate",
        "client:rotate_keys",
        "create a new key, re-sign everything with it, and retire the old one in 30 days",
    )


def _command(
    add: _Adder, name: str, action: str, summary: str, *, needs: str = "signatures"
) -> argparse.ArgumentParser:
    parser = add(name, "", summary)
    parser.set_defaults(handler=HANDLER, action=COMMANDS + action, needs=needs)
    parser.add_argument("--json", action="store_true", help="print JSON with the keys that mcp-orchestration uses")
    return parser


def _client(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", metavar="CLIENT", help="id of the client, as 'mcpctl client list' shows it")


def _clients(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("clients", metavar="CLIENT", nargs="*", help=text)


def _profile(parser: argparse.ArgumentParser, default: str | None = DEFAULT_PROFILE, text: str = "default") -> None:
    parser.add_argument("--profile", default=default, metavar="PROFILE", help=f"profile of the client ({text})")


def _artifact(parser: Any, text: str) -> None:
    parser.add_argument("--artifact", metavar="ID", help=text)


def _file(parser: Any, text: str) -> None:
    parser.add_argument("--file", metavar="FILE", help=text)


def _message(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--message", default="", metavar="TEXT", help="describe the change in the history")
