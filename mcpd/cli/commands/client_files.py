# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl client detect``, ``diff``, ``drift``, ``undo`` and ``history``: the clients' own files.

The files are the caller's, also where the configurations are the system's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.client_machine import Machine, file_option
from mcpd.cli.client_output import masked_changes, moment, print_changes
from mcpd.cli.client_runtime import artifact_of, profile_option, short, stale_note
from mcpd.cli.clients.detect import detect as find_clients
from mcpd.cli.commands.client_deploy import planned, show_plan
from mcpd.cli.home import tilde
from mcpd.cli.output import clean, note, table, warn, write, write_json
from mcpd.errors import EXIT_FAILED, InvalidArgument, McpdError
from mcpd.servers.orchestration.canonical import artifact_id as id_of
from mcpd.servers.orchestration.dialects import from_client
from mcpd.servers.orchestration.diff import report

if TYPE_CHECKING:
    import argparse

    from mcpd.cli.clients.detect import Found
    from mcpd.cli.clients.drift import Drift
    from mcpd.cli.clients.plans import Plan
    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family
    from mcpd.servers.orchestration.releases import Release

_WRONG: Final = frozenset({"drifted", "file-missing", "unreadable"})


def detect(args: argparse.Namespace) -> int:
    """``mcpctl client detect``: the clients whose file, directory or program is there."""
    machine = Machine.of(args)
    found = find_clients(machine.configurations.families.all(), machine.paths.home, os.environ)
    profiles = {each.family.id: _deployed_profile(machine, each) for each in found}
    if args.json:
        clients = [each.to_json() | {"deployed_profile": profiles[each.family.id]} for each in found]
        write_json({"clients": clients, "count": len(clients)})
    elif found:
        rows = [
            (each.family.id, _servers(each),
             profiles[each.family.id] or "-", tilde(each.file, machine.paths))
            for each in found
        ]  # fmt: skip
        table(("CLIENT", "SERVERS", "DEPLOYED", "FILE"), rows)
    else:
        note("You have none of the clients that are known; 'mcpctl client list' shows where their files would be.")
    for each in found:
        if each.problem:
            warn(each.problem)
    return 0


def diff(args: argparse.Namespace) -> int:
    """``mcpctl client diff``: what ``mcpctl client deploy`` writes into the client's file.

    JSON: what the tool ``diff_config`` gives, without what the file may keep secret, and ``kept``, ``restored`` and
    ``left`` of the deployment. Servers are as the client writes them.
    """
    machine = Machine.of(args)
    configurations = machine.configurations
    if (artifact_id := artifact_of(args, configurations)) is not None:
        found: Any = configurations.diff_config(args.client, args.profile, local_artifact_id=artifact_id)
        if args.json:
            write_json(found)
        else:
            write(f"{args.client}/{args.profile}, {short(artifact_id)}: {found['status']}")
            print_changes(found["diff"])
            write(found["recommendation"].partition(" Run 'get_config'")[0])
        stale_note(configurations, args.client, args.profile)
        return 0
    release, plan = planned(args, machine)
    found = _compared(release, plan)
    if args.json:
        write_json(found | {"kept": plan.kept, "restored": plan.restored, "left": plan.left})
        return 0
    write(f"{args.client}/{args.profile}, {clean(tilde(plan.file, machine.paths))}: {found['status']}")
    show_plan(args, machine, plan)
    if found["status"] != "up-to-date":
        options = profile_option(args.profile) + (file_option(plan.file) if args.file else "")
        write(f"'mcpctl{' --system' if args.system else ''} client deploy {args.client}{options}' writes it.")
    return 0


def drift(args: argparse.Namespace) -> int:
    """``mcpctl client drift``; 1 if a file is not as it was deployed.

    JSON: ``{"clients": [{client_id, file, deployed, status, missing, modified, extended, unexpected, problem}],
    "count"}``, one item for each file.
    """
    machine = Machine.of(args)
    known = machine.configurations.families
    if args.file and len(args.clients) != 1:
        raise InvalidArgument("--file FILE is one client's file: name that client")
    file = Path(args.file).absolute() if args.file else None
    families = [known.get(client_id) for client_id in dict.fromkeys(args.clients)] or known.all()
    every = [(family, each) for family in families for each in machine.deployments.drift(family, file)]
    found = [(family, each) for family, each in every if args.clients or each.deployed]
    if args.json:
        clients = [{"client_id": family.id, **each.to_json()} for family, each in found]
        write_json({"clients": clients, "count": len(clients)})
    elif found:
        rows = [
            (family.id, each.status, tilde(each.file, machine.paths) if each.file else "-", _details(each))
            for family, each in found
        ]
        table(("CLIENT", "STATE", "FILE", "DETAILS"), rows)
        for family, each in found:
            _say_way_out(machine, family, each)
    else:
        note("Nothing was deployed yet; 'mcpctl client deploy CLIENT' does it.")
    return EXIT_FAILED if any(each.status in _WRONG for _, each in found) else 0


def undo(args: argparse.Namespace) -> int:
    """``mcpctl client undo``. JSON: the deployment that was taken back, as ``mcpctl client history`` has it."""
    machine = Machine.of(args)
    family = machine.configurations.families.get(args.client)
    file = Path(args.file).absolute() if args.file else None
    last = machine.last(family, file)
    if last is not None:
        # Told first: what cannot be told is not done.
        machine.record("undo_config", last.profile_id, last.artifact_id, family, {"file": str(last.file)})
    try:
        done = machine.deployments.undo(family, file, force=args.force, keep_edits=args.keep_edits, tree=machine.told)
    except McpdError as error:
        if last is not None:
            why: dict[str, JsonValue] = {"file": str(last.file), "message": error.message}
            machine.record("undo_config", last.profile_id, last.artifact_id, family, why, "failed")
        raise
    if args.json:
        write_json(done.to_json())
    else:
        place = tilde(done.file, machine.paths)
        whole = "Took the servers out of" if args.keep_edits else "Removed" if done.created else "Restored"
        write(f"{whole} {clean(place)}, as it was before {family.id}/{done.profile_id} {short(done.artifact_id)}")
        if done.saved is not None:
            note(f"What it held is kept as {clean(done.saved)} for as long as 'mcpctl client history' shows it.")
    if done.warning:
        warn(done.warning)
    return 0


def history(args: argparse.Namespace) -> int:
    """``mcpctl client history``, newest first.

    JSON: ``{"client_id", "releases": [{profile_id, artifact_id, created_at, signing_key_id, changelog}], "deployments":
    […]}``.
    """
    machine = Machine.of(args)
    configurations = machine.configurations
    family = configurations.families.get(args.client)
    if args.profile is not None:
        configurations.profiles.get(family, args.profile)
    releases = [
        release
        for client_id, profile_id in configurations.releases.published()
        if client_id == family.id and args.profile in {None, profile_id}
        for release in configurations.releases.history(client_id, profile_id)
    ]
    releases.sort(key=lambda release: release.created_at, reverse=True)
    deployments = [each for each in machine.deployments.history(family.id) if args.profile in {None, each.profile_id}]
    if args.json:
        published = [
            {
                "profile_id": each.profile_id, "artifact_id": each.artifact_id, "created_at": each.created_at,
                "signing_key_id": each.signing_key_id, "changelog": each.metadata.get("changelog", ""),
            }
            for each in releases
        ]  # fmt: skip
        write_json(
            {
                "client_id": family.id, "releases": published,
                "deployments": [each.to_json() for each in deployments],
            }
        )  # fmt: skip
        return 0
    rows = [
        (each.created_at, "published", each.profile_id, short(each.artifact_id), each.metadata.get("changelog", ""))
        for each in releases
    ]
    for each in deployments:
        place = tilde(each.file, machine.paths)
        rows.append((each.deployed_at, "deployed", each.profile_id, short(each.artifact_id), place))
        if each.undone_at is not None:
            rows.append((each.undone_at, "undone", each.profile_id, short(each.artifact_id), place))
    if rows:
        rows.sort(reverse=True)
        table(("TIME", "WHAT", "PROFILE", "ARTIFACT", "DETAILS"), [(moment(row[0]), *row[1:]) for row in rows])
    else:
        note(f"Nothing was published for {family.id} or deployed; 'mcpctl client deploy {family.id}' does both.")
    return 0


def _deployed_profile(machine: Machine, found: Found) -> str | None:
    """The profile that is deployed to the file of a client."""
    try:
        last = machine.last(found.family, found.file)
    except McpdError as error:
        warn(error.message)
        return None
    return last.profile_id if last is not None else None


def _compared(release: Release, plan: Plan) -> Any:
    """Return the report of ``diff_config`` for what *plan* does to the servers in its file that are mcpctl's."""
    wanted: Any = release.payload["mcpServers"]
    canonical = from_client(plan.family, plan.replaced)
    before: dict[str, JsonValue] = {}
    local: dict[str, JsonValue] = {}
    for name in (*plan.owned, *plan.removed):
        if name not in plan.changes:
            before[name], local[name] = plan.owned[name], wanted[name]
        elif name in plan.replaced:
            before[name], local[name] = plan.replaced[name], canonical.get(name, {})
    after: dict[str, JsonValue] = {
        name: entry for name, entry in {**before, **plan.changes}.items() if entry is not None
    }
    local_id = id_of({"mcpServers": local})
    found: Any = report({"mcpServers": before}, {"mcpServers": after}, local_id, release.artifact_id, published=True)
    found["diff"] = masked_changes(found["diff"], before)
    return found


def _servers(found: Found) -> int | str | None:
    """How many servers are in the file of a client, or why that is not known."""
    if not found.problem:
        return found.servers if found.exists else "no file"
    return "symlink" if os.path.islink(found.file) else "broken"  # noqa: PTH114 - Path's may raise


def _details(found: Drift) -> str:
    parts = [("missing", found.missing), ("changed", found.modified)]
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in parts if names)


def _say_way_out(machine: Machine, family: Family, found: Drift) -> None:
    """What is to be done about a file that is not as it was deployed."""
    if found.problem:
        warn(found.problem)
    elif found.status in _WRONG and found.file is not None:
        way = f"'{machine.deploying(family, found.file)}' repairs it, after it has shown what would change"
        if found.status == "file-missing":
            undo = f"mcpctl client undo {family.id} --keep-edits{file_option(found.file)}"
            way += f"; '{undo}' gives it up, one deployment at a time"
        note(clean(f"{way}."))
