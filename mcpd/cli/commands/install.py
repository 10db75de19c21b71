# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl install``, ``remove`` and ``refresh``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mcpd.cli import user_input
from mcpd.cli.commands.servers import note_missing_tools, title
from mcpd.cli.commands.sources import read_registries, warn_of_registry
from mcpd.cli.jobs import Answers, dry_run_job, run_job
from mcpd.cli.output import clean, note, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.cli.targets import ManifestOptions, Target, piped, target_of
from mcpd.cli.values import guess_value, parse_pairs
from mcpd.errors import (
    EXIT_FAILED,
    IntegrityMismatch,
    InvalidArgument,
    McpdError,
    NotFound,
    ServiceUnavailable,
    SignatureInvalid,
    SourceUnavailable,
)
from mcpd.package_sources import INDEXES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.bus.client import Client


class _Call(NamedTuple):
    """A D-Bus call that starts an installation."""

    member: str
    signature: str
    args: list[object]
    fds: list[int]


async def install(args: argparse.Namespace) -> int:
    """``mcpctl install``. JSON: the keys of the server; with ``--dry-run`` ``{"id", "plan": [{kind, key, …}]}``."""
    target = target_of(args.target, _manifest_options(args))
    if args.source and (target.manifest is not None or target.bundle is not None):
        raise InvalidArgument(f"{args.target!r} is not from a registry; omit --source")
    if args.at_version and (target.manifest is not None or target.bundle is not None):
        raise InvalidArgument(
            f"{args.target!r} is not from a registry; omit --version. To choose the version of a package, write"
            f" {' or '.join(index.form('') for index in INDEXES.values())}"
        )
    secrets = {key: user_input.read_secret(name) for key, name in args.secret_files}
    options: dict[str, object] = {"consent": args.yes and not args.dry_run, "reinstall": args.reinstall}
    optional = {"source": args.source, "version": args.at_version, "signature": target.signature}
    options |= {key: value for key, value in optional.items() if value}
    options |= {"dry-run": True} if args.dry_run else {}
    options |= {"no-check": True} if args.no_check else {}
    async with open_bus(args, changing=True) as bus:
        described: Mapping[str, Any] = target.manifest or {}
        if target.manifest is None and target.bundle is None:
            described = await _offered(bus, target.id, args.source)
        options |= {"config": _config(args.settings, described)}
        answers = Answers(args.yes, frozenset(args.permissions), secrets, takes_values=True, verbose=args.verbose)
        try:
            server_id = await _install_target(bus, args, target, options, answers)
        except SignatureInvalid:
            if target.bundle is None:
                raise
            warn(f"{target.bundle.name}: installing as unverified: the registry lists this file under another id")
            server_id = await _install_target(bus, args, target, options | {"unverified": True}, answers)
        if args.dry_run:
            return 0
        for key, secret in answers.secrets.items():
            with user_input.memfd(secret, "secret") as fd:
                await bus.manager.call("SetSecret", "ssha{sv}", [server_id, key, 0, {}], fds=[fd])
        server, _ = await bus.manager.call("GetServer", "s", [server_id])
        if args.json:
            write_json(server)
        else:
            write(f"Installed {title(server)}.")
            if _is_package(target) and server.get("summary"):
                # The summary comes from the package and was not known before.
                write(f"{clean(server['name'])}: {clean(server['summary'])}")
            await note_missing_tools(bus, server)
    return 0


def _is_package(target: Target) -> bool:
    source = (target.manifest or {}).get("source")
    return isinstance(source, dict) and source.get("type") in INDEXES


def _manifest_options(args: argparse.Namespace) -> ManifestOptions:
    return ManifestOptions(
        id=args.id or "",
        program=args.program or "",
        arguments=tuple(args.arguments),
        permissions=tuple(args.permissions),
        secrets=tuple(args.secrets),
        env=tuple(args.env),
        run_as=args.run_as or "",
        sha256=args.sha256 or "",
    )


async def _install_target(
    bus: Client, args: argparse.Namespace, target: Target, options: Mapping[str, object], answers: Answers
) -> str:
    """Install *target*, or show the plan of a dry run; return the id of the server."""
    with _call(target, options, args.sha256 or "") as call:
        if args.dry_run:
            return await _dry_run(bus, args, call, target)
        with _with_hint():
            return await run_job(bus, *call[:3], fds=call.fds, answers=answers, file=_file_name(target)) or target.id


@contextmanager
def _call(target: Target, options: Mapping[str, object], sha256: str) -> Iterator[_Call]:
    """Open the files of *target* and yield the call that installs it."""
    if target.bundle is not None:
        with piped(target.bundle, sha256) as (fd, digest):
            yield _Call("InstallBundle", "ha{sv}", [0, {**options, "sha256": digest}], [fd])
    elif target.manifest is not None:
        with user_input.memfd(target.data, "manifest") as fd:
            yield _Call("InstallManifest", "ha{sv}", [0, options], [fd])
    else:
        yield _Call("Install", "sa{sv}", [target.id, options], [])


def _file_name(target: Target) -> str:
    """Return the name of the file that is sent for *target*; empty if there is none."""
    return target.bundle.name if target.bundle is not None else ""


async def _offered(bus: Client, server_id: str, source: str | None) -> dict[str, Any]:
    """Return the entry that *server_id* would be installed from; empty if it is in no registry.

    Warn about registries that could not be refreshed: the entry's or, without an entry, *source* (default: all).
    """
    try:
        options = {"source": source} if source else {}
        offered: dict[str, Any] = await bus.manager.call("GetAvailable", "sa{sv}", [server_id, options])
    except ServiceUnavailable:
        raise
    except McpdError:  # the installation will report it
        await warn_of_registry(bus, source or "")
        return {}
    await warn_of_registry(bus, offered.get("origin", ""))
    return offered


@contextmanager
def _with_hint() -> Iterator[None]:
    """Add a hint at the other kinds of targets to a ``NotFound`` error."""
    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"{error.message}. Other targets: {', '.join(f'{kind}:NAME' for kind in INDEXES)}, git+URL or a path"
        ) from error


async def _dry_run(bus: Client, args: argparse.Namespace, call: _Call, target: Target) -> str:
    from mcpd.cli.plan_output import plan_lines  # only for --dry-run

    with _with_hint():
        found = await dry_run_job(bus, *call[:3], fds=call.fds, file=_file_name(target))
    server_id = found.server_id or target.id
    if args.json:
        write_json({"id": server_id, "plan": found.plan})
    else:
        write(f"{clean(server_id)}:")
        for line in plan_lines(found.plan, verbose=args.verbose):
            write(line)
        if target.manifest is not None and all(item["kind"] != "command" for item in found.plan):
            note("The command is determined during the installation; use --command if that fails.")
        note("Nothing was installed.")
    return server_id


def _config(settings: Sequence[tuple[str, str]], described: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of ``--set``, typed by the properties in *described*, a manifest or an entry."""
    found = described.get("configurableProperties", described.get("configurable-properties"))
    properties = [known for known in found if isinstance(known, dict)] if isinstance(found, list) else []
    keys = {known.get("key") for known in properties}
    guessed = {key: guess_value(text) for key, text in settings if key not in keys}
    return guessed | parse_pairs([pair for pair in settings if pair[0] in keys], properties)


async def remove(args: argparse.Namespace) -> int:
    """``mcpctl remove``. Removes nothing if one of the ids is unknown, and stops at the first failure."""
    async with open_bus(args, changing=True) as bus:
        for server_id in args.id:
            await bus.manager.call("GetServer", "s", [server_id])
        for server_id in dict.fromkeys(args.id):
            await run_job(bus, "Uninstall", "sa{sv}", [server_id, {"keep-config": args.keep_config}])
            write(f"Removed {clean(server_id)}.")
    return 0


async def refresh(args: argparse.Namespace) -> int:
    """``mcpctl refresh``; fails if a registry could not be read. JSON: ``{"sources": […]}`` from ``ListSources``."""
    async with open_bus(args, changing=True) as bus:
        failure: McpdError | None = None
        is_read = False
        try:
            is_read = await read_registries(bus, "Refresh")
        except (IntegrityMismatch, SourceUnavailable) as error:
            failure = error
        if args.json:
            write_json({"sources": await bus.manager.call("ListSources")})
    if failure is not None:
        raise failure
    return 0 if is_read else EXIT_FAILED
