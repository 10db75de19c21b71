# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl import``: install the servers in another program's file."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli import user_input
from mcpd.cli.commands.servers import note_missing_tools, title
from mcpd.cli.jobs import Answers, run_job
from mcpd.cli.output import clean, note, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.cli.user_input import origin, read_input
from mcpd.errors import (
    EXIT_FAILED,
    AlreadyInstalled,
    InvalidArgument,
    InvalidManifest,
    McpdError,
    NotFound,
    ServiceUnavailable,
)
from mcpd.formats.mcp_servers import is_client_file, servers_of
from mcpd.formats.mcpb import file_wanted
from mcpd.formats.registry import parse_registry
from mcpd.formats.server_json import entry_of, is_server_json
from mcpd.model import Entry, load_json
from mcpd.model.base import printable
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.bus.client import Client

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a JSON file; large, because some clients keep their whole history in it."""
MAX_SLOW: Final = 512 * 1024
"""Maximum bytes of a TOML or YAML file; smaller, because their parsers are much slower."""
_GRANT: Final = "filesystem:rw:"
_HOME_MANAGER: Final = "import the file that home-manager generates instead: ~/.config/mcp/mcp.json"
MOST_UNNAMED: Final = 50
"""Maximum number of servers that are imported from one file without naming them."""


@dataclass(frozen=True, slots=True)
class Importable:
    """One importable server of a file."""

    entry: dict[str, Any]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Credentials in the file, by the key of their property."""

    @property
    def id(self) -> str:
        """The id of the server's entry."""
        return str(self.entry["id"])

    @property
    def names(self) -> tuple[object, object, object]:
        """The server's names, least ambiguous first: its id, its name in the original registry, its display name."""
        origin = self.entry.get("origin")
        return self.id, origin.get("name") if isinstance(origin, dict) else None, self.entry.get("name")


@dataclass(frozen=True, slots=True)
class ImportFile:
    """The servers of a file, and its problems."""

    servers: list[Importable]
    problems: list[tuple[str, str]]
    """Pairs of server and message: reasons why servers are left out, and warnings about imported servers."""

    @property
    def left_out(self) -> list[str]:
        """The servers that cannot be imported."""
        imported = {name for server in self.servers for name in (server.id, printable(str(server.entry.get("name"))))}
        return [name for name in dict(self.problems) if name not in imported]

    def chosen(self, names: Sequence[str], file: str) -> list[Importable]:
        """Return the servers in *names*, in the order of the file; all if *names* is empty. *file* is for messages.

        Raises :class:`~mcpd.errors.NotFound` for an unknown name, and :class:`~mcpd.errors.InvalidArgument` for an
        ambiguous name, or for more than :data:`MOST_UNNAMED` servers without names.
        """
        if not names:
            if len(self.servers) > MOST_UNNAMED:
                raise InvalidArgument(
                    f"{file} has {len(self.servers)} servers; specify which to install, or add it as a registry:"
                    f" mcpctl source add file://{file if file.startswith('/') else '…'}"
                )
            return self.servers
        ids = {self._called(name, file).id for name in names}
        return [server for server in self.servers if server.id in ids]

    def _called(self, name: str, file: str) -> Importable:
        """Return the server *name*; an id takes precedence over other names."""
        for kind in range(3):
            found = [server for server in self.servers if server.names[kind] == name]
            if len(found) > 1:
                ids = ", ".join(server.id for server in found[:20])
                raise InvalidArgument(f"{file} has {len(found)} servers named {name!r}: {ids}; specify the id")
            if found:
                return found[0]
        ids = ", ".join(server.id for server in self.servers[:20]) or "nothing that can be installed"
        raise NotFound(dict(self.problems).get(name) or f"{file} has no server {name!r}; it has {ids}")


def read_import(name: str) -> ImportFile:
    """Return the servers in the file *name* (``-``: standard input).

    Raises :class:`~mcpd.errors.InvalidManifest` or :class:`~mcpd.errors.InvalidConfig` for an unknown file format, and
    :class:`~mcpd.errors.McpdError` for a file that cannot be read.
    """
    where = origin(name)
    document = _document(name, where)
    if is_client_file(document):
        from mcpd.clients.secret_values import literal_secrets

        found = servers_of(document, where, literal_secrets)
        problems = [(problem.server_id, problem.message) for problem in found.problems]
        for server in found.servers:
            called = printable(server.entry["name"])
            problems += [(called, f"{where}: {note}") for note in _without_missing(server.entry)]
        return ImportFile([Importable(server.entry, server.secrets) for server in found.servers], problems)
    entries: list[Entry]
    if isinstance(document, dict) and is_server_json(document):
        entries, problems = [entry_of(document, where)], []
    elif isinstance(document, dict) and isinstance(document.get("servers"), (list, dict)):
        # The command reports the problems itself.
        logging.getLogger("mcpd.formats").addHandler(logging.NullHandler())
        registry = parse_registry(document, where)
        entries, problems = registry.servers, [(fault.server_id, fault.message) for fault in registry.problems]
    elif _at(document, "programs", "mcp", "servers") is not None:
        raise InvalidManifest(f"{where}: these are home-manager options; {_HOME_MANAGER}")
    else:
        raise InvalidManifest(
            f"{where}: not the configuration of an MCP client (mcpServers or similar), a registry or a server.json;"
            " to install a manifest, a directory or a bundle: mcpctl install PATH"
        )
    wanted = {entry.id: problem for entry in entries if (problem := file_wanted(entry.source))}
    problems += [(server_id, f"{where}: {server_id}: {problem}") for server_id, problem in wanted.items()]
    return ImportFile([Importable(entry.to_json()) for entry in entries if entry.id not in wanted], problems)


def _at(document: object, *keys: str) -> object:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _without_missing(entry: dict[str, Any]) -> Iterator[str]:
    """Remove permissions for missing paths from *entry*, and yield a message for each.

    An argument that begins with a slash is not always a path, and a missing path would keep the server from starting.
    """
    permissions = entry.get("permissions", [])
    for permission in list(permissions):
        path = permission.removeprefix(_GRANT)
        if permission.startswith(_GRANT + "/") and not os.path.lexists(path):
            permissions.remove(permission)
            yield f"{entry['id']}: {path} does not exist, so the server gets no access to it"


def _document(name: str, where: str) -> object:
    suffix = PurePath(name).suffix.lower()
    if suffix in {".mcpb", ".dxt"}:
        raise InvalidArgument(f"{where} is a bundle; install it with: mcpctl install {name}")
    if suffix == ".nix":
        raise InvalidArgument(f"{where} is a Nix expression; {_HOME_MANAGER}")
    if suffix == ".toml":
        return _toml(read_input(name, MAX_SLOW), where)
    if suffix in {".yaml", ".yml"}:
        return _yaml(read_input(name, MAX_SLOW), where)
    data = read_input(name, MAX_BYTES).removeprefix(b"\xef\xbb\xbf")
    try:
        return load_json(data, where)
    except InvalidManifest:
        # Clients allow comments and trailing commas.
        from mcpd.clients.editing import JsonDocument, Text  # rarely needed

        return JsonDocument.parse(Text.decode(data, where), (), "map").model


def _toml(data: bytes, where: str) -> object:
    try:
        return parse_toml(data)
    except ValueError as error:
        raise InvalidManifest(f"{where}: not TOML: {error}") from error


def _yaml(data: bytes, where: str) -> object:
    from mcpd.cli.libraries import provide  # rarely needed

    provide(("ruamel.yaml",), "reading YAML")
    from mcpd.clients.editing import Text
    from mcpd.clients.yaml import load

    return load(Text.decode(data, where))


async def import_file(args: argparse.Namespace) -> int:
    """``mcpctl import``. Continues after a server fails, and fails at the end; fails if there is nothing to import.

    JSON: ``{"servers": [{id, …}], "problems": [{name, message}], "left-out": [name]}``. Each server has ``installed``
    (its keys), or ``error`` and ``message``; with ``--dry-run`` its ``entry`` and the keys of its ``secrets``, and
    ``error`` and ``message`` if it cannot be installed. ``left-out`` names the servers that cannot be imported;
    ``problems`` also has warnings about the others.
    """
    found = read_import(args.file)
    chosen = found.chosen(args.names, args.file)
    if not args.json:
        for name, message in found.problems:
            if not args.names or name in args.names:
                warn(message)
    if args.dry_run:
        faults = {server.id: fault for server in chosen if (fault := _parsed(server).unsupported)}
        _show(found, chosen, faults, as_json=args.json)
        return 0 if chosen and not faults else EXIT_FAILED
    results, failed = await _install_all(args, chosen) if chosen else ([], [])
    if args.json:
        write_json({"servers": results, **_problems(found)})
    elif not args.names:
        _note_left_out(found)
    if failed:
        return failed[0].exit_code or EXIT_FAILED
    return 0 if chosen else EXIT_FAILED


async def _install_all(
    args: argparse.Namespace, chosen: Sequence[Importable]
) -> tuple[list[dict[str, Any]], list[McpdError]]:
    """Install each of *chosen*; return the result of each for JSON, and the errors."""
    results: list[dict[str, Any]] = []
    failed: list[McpdError] = []
    async with open_bus(args, changing=True) as bus:
        for server in chosen:
            try:
                results.append({"id": server.id, "installed": await _install(bus, args, server)})
            except ServiceUnavailable:
                raise
            except McpdError as error:
                results.append({"id": server.id, "error": type(error).__name__, "message": error.message})
                # A server that is installed already is not an error.
                failed += [] if isinstance(error, AlreadyInstalled) else [error]
            if not args.json:
                _print_result(results[-1])
                await note_missing_tools(bus, results[-1].get("installed", {}))
    return results, failed


async def _install(bus: Client, args: argparse.Namespace, server: Importable) -> dict[str, Any]:
    secrets = {key: value.encode() for key, value in server.secrets.items()}
    with user_input.memfd(json.dumps(server.entry).encode(), "manifest") as fd:
        answers = Answers(args.yes, secrets=secrets, verbose=args.verbose)
        options = {"consent": args.yes}
        installed = await run_job(bus, "InstallManifest", "ha{sv}", [0, options], fds=[fd], answers=answers)
    shown: dict[str, Any]
    shown, _ = await bus.manager.call("GetServer", "s", [installed or server.id])
    return shown


def _print_result(result: dict[str, Any]) -> None:
    if "installed" in result:
        write(f"Installed {title(result['installed'])}.")
    else:
        warn(f"{result['id']} was not installed: {result['message']}")


def _parsed(server: Importable) -> Entry:
    return Entry.parse(server.entry, server.id)


def _show(found: ImportFile, chosen: Sequence[Importable], faults: Mapping[str, str], *, as_json: bool) -> None:
    """Show how *chosen* would be installed; *faults* maps the ids of those that cannot be installed to reasons."""
    if as_json:
        shown = [
            {"id": server.id, "entry": server.entry, "secrets": sorted(server.secrets)}
            | ({"error": InvalidManifest.__name__, "message": faults[server.id]} if server.id in faults else {})
            for server in chosen
        ]
        write_json({"servers": shown, **_problems(found)})
        return
    from mcpd.cli.plan_output import plan_lines  # only for --dry-run

    for server in chosen:
        if server.id in faults:
            warn(f"{server.id} cannot be installed: {faults[server.id]}")
            continue
        write(f"{clean(server.id)}:")
        for line in plan_lines(list(_plan(_parsed(server)))):
            write(line)
        if server.secrets:
            write(f"  with the secrets from the file: {clean(', '.join(sorted(server.secrets)))}")
    if chosen == found.servers:
        _note_left_out(found)
    note("Nothing was installed. The packages are not known before the installation.")


def _note_left_out(found: ImportFile) -> None:
    if found.left_out:
        note(f"Skipped: {clean(', '.join(found.left_out))}.")
    if not found.servers:
        note("The file contains nothing to install.")


def _problems(found: ImportFile) -> dict[str, Any]:
    problems = [{"name": name, "message": message} for name, message in found.problems]
    return {"problems": problems, "left-out": found.left_out}


def _plan(entry: Entry) -> Iterator[dict[str, str]]:
    """Yield the items of a job's plan for installing *entry*, as far as they are known from the entry."""
    if entry.source is not None:
        source = entry.source
        yield {
            "kind": "source",
            "label": f"{source.type} {source.package or source.url or source.path}",
            "version": source.version or source.rev,
            "integrity": source.sha256,
        }
    elif entry.manifest:
        yield {"kind": "source", "label": entry.manifest}
    transport = entry.stdio or entry.remote
    if transport is not None:
        command = " ".join([transport.command, *transport.args]).strip()
        yield {"kind": "command", "key": command or transport.address, "label": str(transport.type)}
    elif not entry.transports:
        yield {"kind": "command", "key": "its own program"}
    yield from ({"kind": "permission", "key": permission} for permission in entry.all_permissions)
