# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl import``: installs the servers that another program's file names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcpd.cli import prompt
from mcpd.cli.commands.servers import tell_without_tools, title
from mcpd.cli.import_files import read_import
from mcpd.cli.jobs import Answers, run_job
from mcpd.cli.output import clean, note, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import EXIT_FAILED, AlreadyInstalled, InvalidManifest, McpdError, ServiceUnavailable
from mcpd.model import Entry

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.bus.client import Client
    from mcpd.cli.import_files import Importable, ImportFile


async def import_file(args: argparse.Namespace) -> int:
    """``mcpctl import``. One that fails stops no other; the command then fails, as it does if there is none to import.

    JSON: ``{"servers": [{id, …}], "problems": [{name, message}], "left-out": [name]}``, with ``installed`` (the keys of
    the server) or ``error`` and ``message`` for each server, or with ``--dry-run`` its ``entry`` and the keys of its
    ``secrets``, beside ``error`` and ``message`` if it cannot be installed. What is left out cannot be imported; the
    other problems are of servers that are.
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
        _tell_left_out(found)
    if failed:
        return failed[0].exit_code or EXIT_FAILED
    return 0 if chosen else EXIT_FAILED


async def _install_all(
    args: argparse.Namespace, chosen: Sequence[Importable]
) -> tuple[list[dict[str, Any]], list[McpdError]]:
    """What became of each of *chosen*, and the errors."""
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
                # What is there already is what was asked for.
                failed += [] if isinstance(error, AlreadyInstalled) else [error]
            if not args.json:
                _tell(results[-1])
                await tell_without_tools(bus, results[-1].get("installed", {}))
    return results, failed


async def _install(bus: Client, args: argparse.Namespace, server: Importable) -> dict[str, Any]:
    secrets = {key: value.encode() for key, value in server.secrets.items()}
    with prompt.memfd(json.dumps(server.entry).encode(), "manifest") as fd:
        answers = Answers(args.yes, secrets=secrets, verbose=args.verbose)
        options = {"consent": args.yes}
        installed = await run_job(bus, "InstallManifest", "ha{sv}", [0, options], fds=[fd], answers=answers)
    shown: dict[str, Any]
    shown, _ = await bus.manager.call("GetServer", "s", [installed or server.id])
    return shown


def _tell(result: dict[str, Any]) -> None:
    if "installed" in result:
        write(f"Installed {title(result['installed'])}.")
    else:
        warn(f"{result['id']} was not installed: {result['message']}")


def _parsed(server: Importable) -> Entry:
    return Entry.parse(server.entry, server.id)


def _show(found: ImportFile, chosen: Sequence[Importable], faults: Mapping[str, str], *, as_json: bool) -> None:
    """Show what of *chosen* would be installed; *faults*, by id, say why some cannot be."""
    if as_json:
        shown = [
            {"id": server.id, "entry": server.entry, "secrets": sorted(server.secrets)}
            | ({"error": InvalidManifest.__name__, "message": faults[server.id]} if server.id in faults else {})
            for server in chosen
        ]
        write_json({"servers": shown, **_problems(found)})
        return
    from mcpd.cli.plan_output import plan_lines  # noqa: PLC0415 - for this alone

    for server in chosen:
        if server.id in faults:
            warn(f"{server.id} cannot be installed: {faults[server.id]}")
            continue
        write(f"{clean(server.id)}:")
        for line in plan_lines(list(_plan(_parsed(server)))):
            write(line)
        if server.secrets:
            write(f"  with the secrets of the file: {clean(', '.join(sorted(server.secrets)))}")
    if chosen == found.servers:
        _tell_left_out(found)
    note("Nothing was installed. Which packages come along is known when it is.")


def _tell_left_out(found: ImportFile) -> None:
    if found.left_out:
        note(f"Left out: {clean(', '.join(found.left_out))}.")
    if not found.servers:
        note("There is nothing to install in the file.")


def _problems(found: ImportFile) -> dict[str, Any]:
    problems = [{"name": name, "message": message} for name, message in found.problems]
    return {"problems": problems, "left-out": found.left_out}


def _plan(entry: Entry) -> Iterator[dict[str, str]]:
    """What is known of an installation of *entry* before it is begun, as the items of a job's plan."""
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
