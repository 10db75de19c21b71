# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line of mcpctl; man pages and completions are generated from it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Final, cast

from mcpd import __version__
from mcpd.cli.argument_types import add_id, pair, positive, seconds
from mcpd.cli.parser_catalog import add_catalog, add_changes
from mcpd.cli.parser_clients import add_clients
from mcpd.cli.parser_ensembles import RUN, add_ensembles
from mcpd.cli.parser_exchange import add_exchange
from mcpd.cli.parser_trust import add_trust
from mcpd.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

COMMANDS: Final = "mcpd.cli.commands."
CALL: Final = COMMANDS + "tools:call"
"""Handler of ``mcpctl call``."""

HEADINGS: Final = {
    "find and install servers": ("search", "show", "install", "list", "update", "remove"),
    "choose their versions": ("history", "rollback", "pin", "approve", "verify"),
    "configure servers": ("config", "secret"),
    "use servers": ("run", "tools", "call", "ps", "stop", "logs"),
    "connect clients": ("client", "import", "export", "open", "token"),
    "write your own": ("script", "mcps", "ensemble"),
    "registries and trust": ("source", "refresh", "key", "sign"),
    "diagnose problems": ("doctor", "paths"),
}
"""The commands under each heading of the help."""

EPILOG: Final = """\
exit status: 0 done, 1 failed, 2 usage error, 3 not authorized, 4 not found, 130 interrupted.
environment: NO_COLOR disables colors, MCPCTL_DEBUG=1 prints the traceback of an internal error.
"""


def build_parser(words: Collection[str] | None = None) -> _MainParser:
    """Return the parser of the command line; with *words*, only the parsers of commands named in them are built.

    Its namespace holds ``handler`` ("module:function"), ``parser`` (of the command), ``system`` (bool, the scope) and
    the arguments of the command.
    """
    parser = _MainParser(
        prog="mcpctl",
        description="Find, install, configure and run MCP servers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mcpctl {__version__}", help="print the version")
    _add_common(parser, suppress=False)
    _add_early_json(parser)
    common = argparse.ArgumentParser(add_help=False)
    _add_common(common, suppress=True)
    parser.commands = _add_commands(parser, "command")
    add = _Adder(parser.commands, common, words)
    add_catalog(add)
    add_changes(add)
    add_exchange(add)
    add_trust(add)
    _configuration(add)
    _scripts(add)
    add_clients(add)
    add_ensembles(add)
    _running(add)
    _diagnosis(add)
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse *argv* (default: the process's own arguments) with *parser*.

    Without a command, print the help and exit; exit with status 2 for invalid usage.
    """
    args, rest = parser.parse_known_args(argv)
    if args.command is None:
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        parser.print_help()
        parser.exit()
    if "asks_system" in args and "asks_user" in args:
        args.parser.error("--user and --system cannot be used together")
    args.system = is_system(args)
    if "early_json" in args:
        if "json" not in args:
            args.parser.error("this command has no --json")
        args.json = True
    words = [word for word in rest if not word.startswith("-")]
    if rest and (action := _open_ended(args.parser)) is not None:
        # argparse does not accept arguments of one list before and after an option.
        setattr(
            args, action.dest, [*getattr(args, action.dest), *(_converted(word, action, args.parser) for word in words)]
        )
        rest = [word for word in rest if word.startswith("-") and word != "--"]
    if args.handler == RUN and args.input is None and args.input_file is None and _is_word(rest):
        # Likewise for the input of an ensemble, which is optional.
        args.input, rest = rest[-1], []
    if rest:
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _open_ended(parser: argparse.ArgumentParser) -> argparse.Action | None:
    """Return the last positional argument of *parser* if it may be repeated, else ``None``."""
    # argparse has no public way to list them.
    arguments = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    return arguments[-1] if arguments and arguments[-1].nargs in ("*", "+") else None


def _converted(word: str, action: argparse.Action, parser: argparse.ArgumentParser) -> object:
    """Convert *word* to the type of *action*; exit with status 2 if that fails."""
    convert = action.type if callable(action.type) else str
    try:
        return convert(word)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument {action.metavar}: {error}")


def _is_word(rest: Sequence[str]) -> bool:
    """Return whether *rest* is exactly one positional argument, perhaps after ``--``."""
    return (len(rest) == 1 and (not rest[0].startswith("-") or rest[0] == "-")) or (len(rest) == 2 and rest[0] == "--")


def is_system(args: argparse.Namespace) -> bool:
    """Return whether *args* select the system scope, which is the default for root."""
    return "asks_system" in args or ("asks_user" not in args and os.geteuid() == 0)


def _add_common(parser: argparse.ArgumentParser, *, suppress: bool) -> None:
    """Add the global options, which are accepted before and after the command, to *parser*.

    The parsers of commands need *suppress*, so that their defaults do not override options before the command.
    """
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--system",
        action="store_true",
        dest="asks_system",
        default=argparse.SUPPRESS,
        help="use the system's servers (default for root)",
    )
    scope.add_argument(
        "--user",
        action="store_true",
        dest="asks_user",
        default=argparse.SUPPRESS,
        help="use your own servers (default for everyone else)",
    )
    parser.add_argument(
        "--no-ask-password",
        action="store_false",
        dest="interactive",
        default=argparse.SUPPRESS if suppress else True,
        help="fail instead of asking for authorization",
    )


def _add_early_json(parser: argparse.ArgumentParser) -> None:
    """Add a ``--json`` that is accepted before the command and sets ``early_json``.

    The parsers of commands would overwrite ``json`` with their default.
    """
    parser.add_argument(
        "--json",
        action="store_true",
        dest="early_json",
        default=argparse.SUPPRESS,
        help="print JSON; also accepted after the command",
    )


class _Parser(argparse.ArgumentParser):
    """A parser that suggests a similar command for an unknown one, instead of listing all of them."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        is_command = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - argparse has no public name for it
        if is_command and action.choices and value not in action.choices:
            hint = did_you_mean(value, action.choices) or f"; '{self.prog} --help' lists the commands"
            raise argparse.ArgumentError(None, f"unknown command {value!r}{hint}")
        super()._check_value(action, value)


class _MainParser(_Parser):
    """The parser of mcpctl itself, whose help groups the commands under :data:`HEADINGS`."""

    commands: argparse._SubParsersAction[argparse.ArgumentParser]

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        # argparse has no groups of commands.
        commands = {action.dest: action for action in self.commands._choices_actions}  # noqa: SLF001
        for heading, names in HEADINGS.items():
            formatter.start_section(heading)
            formatter.add_arguments([commands[name] for name in names])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action is not self.commands])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


class _Unused:
    """Placeholder for the parser of a command that was not given, because building all parsers takes 10 ms."""

    def __getattr__(self, _name: str) -> Callable[..., _Unused]:
        return lambda *_args, **_options: self


def _parser_or_stub(*, is_used: bool, **options: Any) -> _Parser | _Unused:
    return _Parser(**options) if is_used else _Unused()


def _add_commands(
    parser: argparse.ArgumentParser, dest: str, **options: Any
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return parser.add_subparsers(
        title="commands",
        dest=dest,
        metavar="COMMAND",
        prog=parser.prog,
        parser_class=cast("type[argparse.ArgumentParser]", _parser_or_stub),
        **options,
    )


class _Adder:
    """Adds commands, each with its handler and the common options."""

    def __init__(
        self,
        commands: argparse._SubParsersAction[argparse.ArgumentParser],
        common: argparse.ArgumentParser,
        words: Collection[str] | None,
    ):
        """Build parsers only for the commands named in *words*, if given."""
        self._commands = commands
        self._common = common
        self._words = words

    def __call__(
        self, name: str, handler: str, summary: str, *, json: bool = False, aliases: Sequence[str] = ()
    ) -> argparse.ArgumentParser:
        parser = self._add(name, summary, aliases)
        parser.set_defaults(handler=COMMANDS + handler, parser=parser)
        if json:
            parser.add_argument("--json", action="store_true", help="print JSON with the keys used on D-Bus")
        return parser

    def group(self, name: str, summary: str) -> _Adder:
        """Add a command with subcommands, e.g. ``mcpctl source``, and return the adder for these."""
        parser = self._add(name, summary)
        _add_early_json(parser)
        return _Adder(_add_commands(parser, "subcommand", required=True), self._common, self._words)

    def _add(self, name: str, summary: str, aliases: Sequence[str] = ()) -> argparse.ArgumentParser:
        return self._commands.add_parser(
            name,
            is_used=self._words is None or not {name, *aliases}.isdisjoint(self._words),
            aliases=list(aliases),
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            parents=[self._common],
            allow_abbrev=False,
        )


def _configuration(add: _Adder) -> None:
    config = add.group("config", "read and change the configuration of a server")
    get = config(
        "get",
        "config:get",
        "show the properties with their types, defaults and values, except sensitive values",
        json=True,
    )
    add_id(get)
    get.add_argument("key", metavar="KEY", nargs="?", help="only this property")
    setter = config("set", "config:set_values", "set properties")
    add_id(setter)
    setter.add_argument(
        "pairs",
        metavar="KEY=VALUE",
        nargs="+",
        type=pair,
        help="a property and its value: yes or no for a boolean; for a list, items separated by commas, a repeated "
        "KEY, or JSON",
    )
    unset = config("unset", "config:unset_values", "reset properties to their defaults")
    add_id(unset)
    unset.add_argument("keys", metavar="KEY", nargs="+", help="the property")
    secret = add.group("secret", "set and remove the secrets of a server")
    for name, handler, summary in (
        ("set", "set_secret", "set a sensitive property to a value read from the terminal or standard input"),
        ("unset", "unset_secret", "remove the value of a sensitive property"),
    ):
        command = secret(name, f"config:{handler}", summary)
        add_id(command)
        command.add_argument("key", metavar="KEY", help="the property")


def _scripts(add: _Adder) -> None:
    script = add.group("script", "manage script servers")
    new = script("add", "script:add", "turn a Python file or a shell script into a server")
    new.add_argument("file", metavar="FILE", help="the script; it is copied")
    new.add_argument("--name", metavar="NAME", help="id of the server (default: the name of FILE without its suffix)")
    new.add_argument("--watch", action="store_true", help="keep running, and copy FILE again after each valid edit")
    new.add_argument("--force", action="store_true", help="replace an existing script of the same name")
    script("list", "script:list_scripts", "list all scripts, including those of the system and of packages", json=True)
    remove = script("remove", "script:remove", "remove a script, its configuration, secrets and state")
    remove.add_argument("id", metavar="NAME", help="id of the script server")
    remove.add_argument("--keep-config", action="store_true", help="keep the configuration, the secrets and the state")
    mcps = add.group("mcps", "build and check the mcps map, which configures what servers offer")
    build = mcps("build", "mcps:build_map", "build a map from a source file, storing the files that it names")
    build.add_argument("source", metavar="SOURCE", help="an mcps.source.json; paths in it are relative to it")
    build.add_argument("-o", "--output", metavar="OUT", required=True, help="the map to write (-: standard output)")
    build.add_argument("--contents", metavar="DIR", help="content store to write to (default: the one that mcpd reads)")
    check = mcps("check", "mcps:check", "check maps and scripts, and show what each server would offer", json=True)
    check.add_argument(
        "files", metavar="FILE", nargs="*", help="maps, or source files *.source.json (default: all that mcpd reads)"
    )


def _running(add: _Adder) -> None:
    add_id(add("run", "run:run", "run a server on standard input and output", aliases=["spawn"]))
    add("ps", "sessions:ps", "list the running servers", json=True)
    stop = add("stop", "sessions:stop", "stop a running server")
    stop.add_argument(
        "session", metavar="SESSION|ID", help="number of a session, or id of a server for all its sessions"
    )
    logs = add("logs", "logs:logs", "show the journal of a server: its standard error, and messages of mcpd about it")
    add_id(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="keep running, and print new lines")
    logs.add_argument("-n", "--lines", type=positive, metavar="N", help="show only the last N lines")
    logs.add_argument(
        "--since", metavar="TIME", help="show only lines since TIME, in the format of journalctl: today, '1h ago'"
    )
    tools = add("tools", "tools:tools", "list the tools of a server, with optional arguments in brackets", json=True)
    add_id(tools)
    call = add("call", "tools:call", "call a tool of a server", json=True)
    add_id(call)
    call.add_argument("tool", metavar="TOOL", help="name of the tool, as 'mcpctl tools' lists it")
    call.add_argument(
        "arguments",
        metavar="JSON|KEY=VALUE",
        nargs="*",
        default=[],
        help="the arguments of the tool, one by one or as one JSON object",
    )
    for command in (tools, call):
        command.add_argument(
            "--timeout", type=seconds, default=300.0, metavar="SECONDS", help="give up after SECONDS (300)"
        )
    pages = add("open", "open:open_pages", "open the web pages of your bridge in a browser")
    add_id(pages, nargs="?")
    pages.add_argument(
        "--print", action="store_true", help="print the sign-in link, which works once, instead of opening it"
    )
    token = add("token", "token:token", "print the token that HTTP clients need to use the bridge over TCP")
    token.add_argument("--renew", action="store_true", help="replace the token; the old one stops working")


def _diagnosis(add: _Adder) -> None:
    add("doctor", "doctor:doctor", "check this machine for problems", json=True)
    add("paths", "paths:paths", "show the files and directories of mcpd", json=True)
