# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl export``: write the entries of installed servers as a registry or as server.json."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, counted, warn, write, write_document
from mcpd.cli.session import open_bus
from mcpd.errors import InvalidArgument, McpdError, NotFound, from_oserror
from mcpd.formats.mcpb import file_wanted
from mcpd.formats.server_json import registry_of, server_json_of
from mcpd.model import Entry, SourceType, dump_json, load_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from mcpd.bus.client import Client
    from mcpd.model import Source

_STDOUT: Final = "-"


async def export(args: argparse.Namespace) -> int:
    """``mcpctl export``. Without ids, servers without an entry are left out with a warning.

    Entries contain no configuration, but the environment variables that an imported entry sets.
    """
    async with open_bus(args) as bus:
        entries = await _entries(bus, args)
    if not entries:
        raise NotFound("nothing to export: no servers are installed in this scope")
    if args.format == "registry":
        updated = datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
        _write_output(dump_json(registry_of(entries, updated)), args.output, counted(len(entries), "server"))
    else:
        _server_json(entries, args.output)
    return 0


def _server_json(entries: Sequence[Entry], output: str | None) -> None:
    documents = {entry.id: dump_json(server_json_of(entry)) for entry in entries}
    directory = Path(output) if output not in (None, _STDOUT) and Path(output or "").is_dir() else None
    if directory is None and len(documents) > 1:
        raise InvalidArgument(
            f"a server.json describes one server, not {len(documents)}; specify one server, or an existing directory"
            " with -o DIR"
        )
    for server_id, data in documents.items():
        _write_output(data, output if directory is None else str(directory / f"{server_id}.server.json"), server_id)


async def _entries(bus: Client, args: argparse.Namespace) -> list[Entry]:
    if args.id:
        return [await _entry(bus, server_id) for server_id in dict.fromkeys(args.id)]
    scope = "system" if args.system else "user"
    servers: Sequence[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{"scope": scope}])
    entries: list[Entry] = []
    for server in servers:
        try:
            entries.append(await _entry(bus, str(server["id"])))
        except McpdError as error:
            warn(f"skipped {server['id']}: {error.message}")
    return entries


async def _entry(bus: Client, server_id: str) -> Entry:
    text = await bus.manager.call("GetEntry", "s", [server_id])
    entry = Entry.parse(load_json(text, server_id), server_id)
    if problem := file_wanted(entry.source) or _local_origin(entry.source):
        warn(f"{server_id}: others cannot install it from its entry alone: {problem}")
    return entry


def _local_origin(source: Source | None) -> str:
    """Return a phrase that says where on this machine the files of *source* are; empty if they are not local."""
    if source is None:
        return ""
    if source.type is SourceType.LOCAL:
        return f"its files are in {source.path} on this machine"
    return f"its files are at {source.url} on this machine" if source.url.startswith("file:") else ""


def _write_output(data: bytes, output: str | None, what: str) -> None:
    """Write *data* to the file *output*, or to standard output; *what* names its content in the message."""
    if output is None or output == _STDOUT:
        write_document(data)
        return
    from mcpd.files import write_atomic  # slow to import

    path = Path(output)
    if path.is_dir():
        raise InvalidArgument(f"{output} is a directory; specify a file in it")
    try:
        write_atomic(path, data)
    except OSError as error:
        raise from_oserror(error, f"writing {path}") from error
    write(f"Wrote {clean(path)} ({clean(what)}).")
