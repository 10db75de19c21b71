# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl install``, ``remove`` and ``refresh``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mcpd.cli import user_input
from mcpd.cli.commands.servers import tell_without_tools, title
from mcpd.cli.commands.sources import read_registries, warn_of_origin
from mcpd.cli.jobs import Answers, foresee_job, run_job
from mcpd.cli.output import clean, note, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.cli.targets import Target, Wishes, sending, target_of
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

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.bus.client import Client


class _Call(NamedTuple):
    """What starts an installation."""

    member: str
    signature: str
    args: list[object]
    fds: list[int]


async def install(args: argparse.Namespace) -> int:
    """``mcpctl install``. JSON: the keys of the server; with ``--dry-run`` ``{"id", "plan": [{kind, key, …}]}``."""
    target = target_of(args.target, _wishes(args))
    if args.source and (target.manifest is not None or target.bundle is not None):
        raise InvalidArgument(f"{args.target!r} is not from a registry; leave out --source")
    if args.at_version and (target.manifest is not None or target.bundle is not None):
        raise InvalidArgument(
            f"{args.target!r} is not from a registry; leave out --version. A package is named with its version:"
            " pypi:NAME==VERSION, npm:NAME@VERSION"
        )
    secrets = {key: user_input.read_secret(name) for key, name in args.secret_files}
    options: dict[str, object] = {"consent": args.yes and not args.dry_run, "reinstall": args.reinstall}
    said = {"source": args.source, "version": args.at_version, "signature": target.signature}
    options |= {key: value for key, value in said.items() if value}
    options |= {"dry-run": True} if args.dry_run else {}
    options |= {"no-check": True} if args.no_check else {}
    async with open_bus(args, changing=True) as bus:
        described: Mapping[str, Any] = target.manifest or {}
        if target.manifest is None and target.bundle is None:
            described = await _offered(bus, target.id, args.source)
        options |= {"config": _config(args.settings, described)}
        answers = Answers(args.yes, frozenset(args.permissions), secrets, takes_values=True, verbose=args.verbose)
        try:
            server_id = await _carry_out(bus, args, target, options, answers)
        except SignatureInvalid:
            if target.bundle is None:
                raise
            warn(f"{target.bundle.name}: the registry that vouches for this file has it under another id")
            server_id = await _carry_out(bus, args, target, options | {"unverified": True}, answers)
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
                # What it is was not known before.
                write(f"{clean(server['name'])}: {clean(server['summary'])}")
            await tell_without_tools(bus, server)
    return 0


def _is_package(target: Target) -> bool:
    source = (target.manifest or {}).get("source")
    return isinstance(source, dict) and source.get("type") in {"pypi", "npm"}


def _wishes(args: argparse.Namespace) -> Wishes:
    return Wishes(
        id=args.id or "",
        program=args.program or "",
        arguments=tuple(args.arguments),
        permissions=tuple(args.permissions),
        secrets=tuple(args.secrets),
        env=tuple(args.env),
        run_as=args.run_as or "",
        sha256=args.sha256 or "",
    )


async def _carry_out(
    bus: Client, args: argparse.Namespace, target: Target, options: Mapping[str, object], answers: Answers
) -> str:
    """Install *target*, or show what that would come to; the id of the server."""
    with _call(target, options, args.sha256 or "") as call:
        if args.dry_run:
            return await _foresee(bus, args, call, target)
        with _ways_out():
            return await run_job(bus, *call[:3], fds=call.fds, answers=answers, file=_sent(target)) or target.id


@contextmanager
def _call(target: Target, options: Mapping[str, object], sha256: str) -> Iterator[_Call]:
    """The call that installs *target*, while its files are open."""
    if target.bundle is not None:
        with sending(target.bundle, sha256) as (fd, digest):
            yield _Call("InstallBundle", "ha{sv}", [0, {**options, "sha256": digest}], [fd])
    elif target.manifest is not None:
        with user_input.memfd(target.data, "manifest") as fd:
            yield _Call("InstallManifest", "ha{sv}", [0, options], [fd])
    else:
        yield _Call("Install", "sa{sv}", [target.id, options], [])


def _sent(target: Target) -> str:
    """The name of the file that is sent for *target*; empty if none is."""
    return target.bundle.name if target.bundle is not None else ""


async def _offered(bus: Client, server_id: str, source: str | None) -> dict[str, Any]:
    """Return the entry that *server_id* is installed from, empty if no registry has it.

    Warns if that registry, or any if none has it, could not be refreshed.
    """
    try:
        options = {"source": source} if source else {}
        offered: dict[str, Any] = await bus.manager.call("GetAvailable", "sa{sv}", [server_id, options])
    except ServiceUnavailable:
        raise
    except McpdError:  # the installation says what is wrong
        await warn_of_origin(bus, source or "")
        return {}
    await warn_of_origin(bus, offered.get("origin", ""))
    return offered


@contextmanager
def _ways_out() -> Iterator[None]:
    """Errors of an installation, with what to do about them here."""
    try:
        yield
    except NotFound as error:
        raise NotFound(f"{error.message}. From elsewhere: pypi:NAME, npm:NAME, git+URL or a path") from error


async def _foresee(bus: Client, args: argparse.Namespace, call: _Call, target: Target) -> str:
    from mcpd.cli.plan_output import plan_lines  # noqa: PLC0415 - for this alone

    with _ways_out():
        foreseen = await foresee_job(bus, *call[:3], fds=call.fds, file=_sent(target))
    server_id = foreseen.server_id or target.id
    if args.json:
        write_json({"id": server_id, "plan": foreseen.plan})
    else:
        write(f"{clean(server_id)}:")
        for line in plan_lines(foreseen.plan, verbose=args.verbose):
            write(line)
        if target.manifest is not None and all(item["kind"] != "command" for item in foreseen.plan):
            note("What is started is known when it is installed; where that fails, --command names the program.")
        note("Nothing was installed.")
    return server_id


def _config(settings: Sequence[tuple[str, str]], described: Mapping[str, Any]) -> dict[str, object]:
    """The values of ``--set``, typed by the properties of the server as *described* by a manifest or a registry."""
    found = described.get("configurableProperties", described.get("configurable-properties"))
    properties = [known for known in found if isinstance(known, dict)] if isinstance(found, list) else []
    keys = {known.get("key") for known in properties}
    guessed = {key: guess_value(text) for key, text in settings if key not in keys}
    return guessed | parse_pairs([pair for pair in settings if pair[0] in keys], properties)


async def remove(args: argparse.Namespace) -> int:
    """``mcpctl remove``; nothing if one of the ids is unknown, and no more after one that cannot be removed."""
    async with open_bus(args, changing=True) as bus:
        for server_id in args.id:
            await bus.manager.call("GetServer", "s", [server_id])
        for server_id in dict.fromkeys(args.id):
            await run_job(bus, "Uninstall", "sa{sv}", [server_id, {"keep-config": args.keep_config}])
            write(f"Removed {clean(server_id)}.")
    return 0


async def refresh(args: argparse.Namespace) -> int:
    """``mcpctl refresh``; fails if a registry could not be read. JSON: ``{"sources": […]}`` as ListSources has it."""
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
