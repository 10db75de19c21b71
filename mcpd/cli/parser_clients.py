# SPDX-License-Identifier: LGPL-2.1-or-later
"""The part of mcpctl's command line that is about MCP clients and their configurations."""

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

    The namespace of its commands has ``action`` ("module:function"), which ``handler`` calls, and ``needs``: what of
    the libraries of the bundled servers it takes (``nothing``, ``signatures`` or ``files``).
    """
    client = add.group("client", "put the installed servers into the configuration files of MCP clients")
    _reading(client)
    _drafts(client.group("draft", "change what the next configuration of a client holds"))
    _publishing(client)
    _files(client)
    _keys(client.group("keys", "manage the keys that configurations are signed with"))


def _reading(client: _Adder) -> None:
    _command(client, "list", "client:list_clients", "list the MCP clients that are known", needs="nothing")
    profiles = _command(client, "profiles", "client:list_profiles", "list the profiles of a client")
    _client(profiles)
    show = _command(client, "show", "client:show", "show the signed configuration of a client")
    _client(show)
    _profile(show)
    _artifact(show, "the configuration of that id instead of the latest one")
    diff = _command(
        client, "diff", "client_files:diff", "show what a deployment would write into a client's file", needs="files"
    )
    _client(diff)
    _profile(diff)
    local = diff.add_mutually_exclusive_group()
    _artifact(local, "compare the configuration of that id, not the client's file")
    _file(local, "compare FILE, not the client's usual file")
    verify = _command(client, "verify", "client:verify", "check the signatures of a configuration")
    verify.add_argument(
        "file", metavar="FILE", help="what 'mcpctl client show --json' or the tool get_config gave (-: standard input)"
    )
    verify.add_argument(
        "--key", metavar="FILE", help="the public key to check with, PEM or 32 bytes (default: the keys known here)"
    )


def _drafts(draft: _Adder) -> None:
    show = _command(draft, "show", "client:show_draft", "show the draft and what it changes")
    _client(show)
    _profile(show)
    new = _command(draft, "add", "client:add_server", "add a server to the draft, begun if there is none")
    _client(new)
    new.add_argument("id", metavar="ID", help="id of an installed server; with --entry any name")
    new.add_argument("--name", metavar="NAME", help="what the client calls the server (default: ID)")
    new.add_argument(
        "--variable",
        dest="variables",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable that the client hands on to the server, repeatable; its value is never stored",
    )
    new.add_argument(
        "--entry",
        metavar="FILE",
        help="a JSON object with command and args, or type and url, for a server that is not installed here "
        "(-: standard input)",
    )
    _profile(new)
    remove = _command(draft, "remove", "client:remove_server", "remove servers from the draft")
    _client(remove)
    remove.add_argument("names", metavar="NAME", nargs="+", help="what the client calls the server")
    _profile(remove)
    clear = _command(draft, "clear", "client:clear_draft", "drop the draft")
    _client(clear)
    _profile(clear)


def _publishing(client: _Adder) -> None:
    validate = _command(client, "validate", "client:validate", "check what would be published, and against the policy")
    _client(validate)
    _profile(validate)
    _file(validate, "check FILE, a JSON object with mcpServers, instead (-: standard input)")
    publish = _command(
        client, "publish", "client:publish", "sign the draft, or what is installed, as the latest configuration"
    )
    _clients(publish, "id of the client")
    publish.add_argument(
        "--all", action="store_true", help="every client and profile that was published before or has a draft"
    )
    publish.add_argument(
        "--from-installed",
        action="store_true",
        help="publish what is installed, although that discards a configuration made of a draft",
    )
    _profile(publish, None, "default, with --all every one")
    _message(publish)


def _files(client: _Adder) -> None:
    _command(client, "detect", "client_files:detect", "look which MCP clients you have", needs="files")
    deploy = _command(
        client, "deploy", "client_files:deploy", "write a signed configuration into your client's file", needs="files"
    )
    _client(deploy)
    _profile(deploy)
    _artifact(deploy, "the configuration of that id instead of the latest one")
    _file(deploy, "write FILE, not the client's usual file")
    deploy.add_argument(
        "--take-over",
        action="append",
        default=[],
        metavar="NAME",
        help="replace the server NAME, though you put it into the file yourself, repeatable",
    )
    first = deploy.add_mutually_exclusive_group()
    first.add_argument("--publish", action="store_true", help="publish first, as 'mcpctl client publish' does")
    first.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    _message(deploy)
    deploy.add_argument("-y", "--yes", action="store_true", help="do not ask before the file is changed")
    drift = _command(
        client, "drift", "client_files:drift", "look whether client files are as they were deployed", needs="files"
    )
    _clients(drift, "id of the client (default: every client that was deployed to)")
    _file(drift, "look at FILE alone, not at every file that was deployed to")
    undo = _command(client, "undo", "client_files:undo", "make a client's file what it was before", needs="files")
    _client(undo)
    _file(undo, "restore FILE, not the file that was deployed to last")
    changed = undo.add_mutually_exclusive_group()
    changed.add_argument("--force", action="store_true", help="restore it, though it was changed since it was deployed")
    changed.add_argument(
        "--keep-edits", action="store_true", help="take back the servers alone, and leave what else was changed since"
    )
    history = _command(
        client, "history", "client_files:history", "show what was published for a client and deployed", needs="files"
    )
    _client(history)
    _profile(history, None, "every one")


def _keys(keys: _Adder) -> None:
    _command(keys, "show", "client:show_keys", "list the keys, those retired but still valid among them")
    _command(keys, "init", "client:initialize_keys", "make the first key, if there is none")
    _command(
        keys, "rotate", "client:rotate_keys", "make a new key, sign again with it, and retire the old one in 30 days"
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
    parser.add_argument("--message", default="", metavar="TEXT", help="what is said of the change in the history")
