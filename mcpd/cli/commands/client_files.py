# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl client detect``, ``deploy``, ``diff``, ``drift``, ``undo`` and ``history``: client files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli import bridge, tool_names, user_input
from mcpd.cli.client_machine import Machine, file_option
from mcpd.cli.client_runtime import (
    artifact_of,
    draft_note,
    masked_changes,
    print_changes,
    print_diff,
    profile_option,
    scope,
    short,
    short_time,
    stale_note,
)
from mcpd.cli.commands.client_drafts import may_publish, print_published
from mcpd.cli.home import tilde
from mcpd.cli.output import clean, note, table, warn, write, write_json
from mcpd.clients.addresses import read_address
from mcpd.clients.deployments import About
from mcpd.clients.detect import detect as find_clients
from mcpd.clients.dialects import from_client, to_client
from mcpd.clients.diff import report
from mcpd.clients.errors import PolicyViolation, ValidationFailed
from mcpd.clients.payload import BRIDGE, TOKEN, id_of, rebased, uses_bridge
from mcpd.errors import EXIT_FAILED, Cancelled, InvalidArgument, McpdError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping

    from mcpd.clients.deployments import Drift
    from mcpd.clients.detect import DetectedClient
    from mcpd.clients.families import Family
    from mcpd.clients.history import Deployment
    from mcpd.clients.plans import Plan
    from mcpd.clients.releases import Release
    from mcpd.clients.service import Orchestration
    from mcpd.model import JsonValue

_LISTS: Final = ("added", "changed", "removed", "kept", "restored", "left")
"""Lists of servers in a plan, and their JSON keys."""


def deploy(args: argparse.Namespace) -> int:
    """``mcpctl client deploy``.

    JSON: ``{client_id, profile_id, artifact_id, file, deployed, added, changed, removed, kept, restored, left, diff}``.
    """
    if args.publish and args.artifact is not None:
        raise InvalidArgument("--publish and --artifact cannot be used together")
    machine = Machine.of(args, publishes=args.publish)
    family = machine.configurations.families.get(args.client)
    if args.publish:
        _publish_first(args, machine.configurations)
    release, plan = planned(args, machine, args.take_over, is_recorded=not args.dry_run)
    entries = _entries(release.payload)
    for warning in tool_names.warnings(args, machine.configurations.servers, family, entries):
        warn(warning.message)
    if not args.json:
        show_plan(args, machine, plan)
    done = None
    if not args.dry_run and _is_confirmed(args, machine, plan, release):
        release = machine.configurations.keep(release)
        done = _apply(machine, plan, release)
    if args.json:
        write_json(
            {
                "client_id": family.id, "profile_id": args.profile, "artifact_id": release.artifact_id,
                "file": str(plan.file), "deployed": done is not None,
                **{name: getattr(plan, name) for name in _LISTS}, "diff": plan.diff,
            }
        )  # fmt: skip
    if done is not None:
        _print_deployed(args, machine, plan, release)
    return 0


def _written(machine: Machine, family: Family, entries: dict[str, Any]) -> dict[str, JsonValue]:
    """Return *entries* in the client's dialect, with the address of this machine's bridge.

    Raises :class:`~mcpd.errors.McpdError` if the client would send the bridge's token to another user.
    """
    if uses_bridge(entries):
        entries = rebased(entries, BRIDGE, bridge.base_url(machine.paths))
    for name, entry in entries.items():
        if "url" in entry and TOKEN in _variables(family, {name: entry}):
            address = read_address(entry["url"])
            if address.is_local:
                bridge.check_url(address.normal)
    return to_client(family, entries)


def _publish_first(args: argparse.Namespace, configurations: Orchestration) -> None:
    if not may_publish(configurations, args.client, args.profile):
        note(
            f"{args.client}/{args.profile} was made from a draft, and there is no newer draft;"
            f" 'mcpctl client publish {args.client}{profile_option(args.profile)} --from-installed' publishes the"
            " installed servers instead."
        )
        return
    published: Any = configurations.publish(args.client, args.profile, args.message)
    for warning in published["warnings"]:
        warn(warning)
    if not args.json:
        print_published(published)


def planned(
    args: argparse.Namespace, machine: Machine, take_over: Collection[str] = (), *, is_recorded: bool = False
) -> tuple[Release, Plan]:
    """Return the configuration that *args* select, and the plan to deploy it into the client's file.

    Does not sign or write anything, except for an audit record of a refusal if *is_recorded*. Raises
    :class:`~mcpd.errors.McpdError` if the configuration cannot be deployed.
    """
    configurations = machine.configurations
    family = configurations.families.get(args.client)
    if args.artifact is None:
        release = configurations.current(args.client, args.profile)
    else:
        release = configurations.release(args.client, args.profile, artifact_of(args, configurations))
    try:
        configurations.check_deploy(release)
    except (PolicyViolation, ValidationFailed) as fault:
        if is_recorded:
            details: dict[str, JsonValue] = {"message": fault.message}
            machine.record("deploy_config", release.profile_id, release.artifact_id, family, details, "refused")
        raise
    if args.artifact is None:
        stale_note(configurations, release.client_id, release.profile_id)
        draft_note(configurations, release.client_id, release.profile_id)
    entries = _written(machine, family, _entries(release.payload))
    return release, machine.deployments.plan(family, machine.file(family, args.file), entries, take_over=take_over)


def show_plan(args: argparse.Namespace, machine: Machine, plan: Plan) -> None:
    """Print the changes of *plan*."""
    place = clean(tilde(plan.file, machine.paths))
    if plan.diff:
        print_diff(plan.diff)
    elif not plan.entries:
        write(f"Nothing to write to {place}: the configuration {plan.family.id}/{args.profile} has no servers.")
    elif not plan.kept:
        write(f"Unchanged {place}: it matches the published configuration.")
    elif plan.owned:
        write(f"Unchanged {place}: it matches the published configuration, except for servers that you added yourself.")
    else:
        write(f"Unchanged {place}: it has your own servers under all the published names.")
    if plan.kept:
        names = clean(", ".join(plan.kept))
        note(f"Kept your own servers: {names}; '--take-over {clean(plan.kept[0])}' replaces one.")
    if plan.restored:
        note(f"Changed by hand since the deployment: {clean(', '.join(plan.restored))}")
    if plan.left:
        note(f"Kept but no longer managed, because they were changed by hand: {clean(', '.join(plan.left))}")


def _is_confirmed(args: argparse.Namespace, machine: Machine, plan: Plan, release: Release) -> bool:
    """Return whether to deploy *plan*; ask if it changes the file rather than only the record of deployments."""
    if plan.is_empty:
        last = machine.last(plan.family, plan.file)
        place = scope(args), release.profile_id, release.artifact_id
        return last is not None and (last.scope, last.profile_id, last.artifact_id) != place
    if args.yes or plan.new == plan.snapshot.data:
        return True
    if args.json or not user_input.terminal():
        raise InvalidArgument(f"{plan.file} was not changed: no terminal to ask for confirmation; use --yes")
    if not user_input.confirm(f"Write this to {clean(tilde(plan.file, machine.paths))}?"):
        raise Cancelled(f"{plan.file}: nothing was changed")
    return True


def _apply(machine: Machine, plan: Plan, release: Release) -> Deployment:
    about = About(machine.configurations.scope, release.profile_id, release.artifact_id)
    details: dict[str, JsonValue] = {
        "file": str(plan.file), **{name: [*getattr(plan, name)] for name in _LISTS},
    }  # fmt: skip
    # Audit first: a change that cannot be audited is not made.
    machine.record("deploy_config", release.profile_id, release.artifact_id, plan.family, details)
    try:
        done = machine.deployments.apply(plan, about, tree=machine.recording_tree)
    except McpdError as error:
        details = {"message": error.message}
        machine.record("deploy_config", release.profile_id, release.artifact_id, plan.family, details, "failed")
        raise
    if done.warning:
        warn(done.warning)
    return done


def _print_deployed(args: argparse.Namespace, machine: Machine, plan: Plan, release: Release) -> None:
    client_id = plan.family.id
    if not args.json and plan.new != plan.snapshot.data:
        words = [
            f"{len(getattr(plan, name))} {name}" for name in ("added", "changed", "removed") if getattr(plan, name)
        ]
        place = clean(tilde(plan.file, machine.paths))
        write(f"Deployed {client_id}/{release.profile_id} to {place}: {', '.join(words)}.")
        write(f"'mcpctl client undo {client_id}' undoes it. You may have to restart {plan.family.name}.")
    if variables := _variables(plan.family, _entries(release.payload)):
        hint = "; 'mcpctl token' prints the token of the bridge" if TOKEN in variables else ""
        note(f"{plan.family.name} needs these environment variables: {', '.join(variables)}{hint}.")


def _variables(family: Family, entries: Mapping[str, Any]) -> list[str]:
    """Return the environment variables that the client substitutes in *entries*."""
    found: list[str] = []
    for entry in entries.values():
        for field in ("env", "headers"):
            for value in entry.get(field, {}).values():
                found += family.variables_in(value, field)
    return list(dict.fromkeys(found))


def _entries(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a validated configuration."""
    return dict(payload["mcpServers"])


_WRONG: Final = frozenset({"drifted", "file-missing", "unreadable"})


def detect(args: argparse.Namespace) -> int:
    """``mcpctl client detect``: list the clients whose file, directory or program exists."""
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
        note("None of the known clients was found; 'mcpctl client list' shows where their files would be.")
    for each in found:
        if each.problem:
            warn(each.problem)
    return 0


def diff(args: argparse.Namespace) -> int:
    """``mcpctl client diff``: show what ``mcpctl client deploy`` would write into the client's file.

    JSON: the result of the tool ``diff_config`` with secrets of the file masked, and the lists ``kept``, ``restored``
    and ``left`` of the plan. Servers are in the client's dialect.
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
    """``mcpctl client drift``; 1 if a file differs from its deployment.

    JSON: ``{"clients": [{client_id, file, deployed, status, missing, modified, extended, unexpected, problem}],
    "count"}``, with one item for each file.
    """
    machine = Machine.of(args)
    known = machine.configurations.families
    if args.file and len(args.clients) != 1:
        raise InvalidArgument("--file requires exactly one client")
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
            _note_repair(machine, family, each)
    else:
        note("Nothing has been deployed yet; to deploy, run 'mcpctl client deploy CLIENT'.")
    return EXIT_FAILED if any(each.status in _WRONG for _, each in found) else 0


def undo(args: argparse.Namespace) -> int:
    """``mcpctl client undo``. JSON: the undone deployment, as in ``mcpctl client history``."""
    machine = Machine.of(args)
    family = machine.configurations.families.get(args.client)
    file = Path(args.file).absolute() if args.file else None
    last = machine.last(family, file)
    if last is not None:
        # Audit first: a change that cannot be audited is not made.
        machine.record("undo_config", last.profile_id, last.artifact_id, family, {"file": str(last.file)})
    try:
        done = machine.deployments.undo(
            family, file, force=args.force, keep_edits=args.keep_edits, tree=machine.recording_tree
        )
    except McpdError as error:
        if last is not None:
            why: dict[str, JsonValue] = {"file": str(last.file), "message": error.message}
            machine.record("undo_config", last.profile_id, last.artifact_id, family, why, "failed")
        raise
    if args.json:
        write_json(done.to_json())
    else:
        place = tilde(done.file, machine.paths)
        action = "Removed the servers from" if args.keep_edits else "Removed" if done.created else "Restored"
        write(f"{action} {clean(place)}, as it was before {family.id}/{done.profile_id} {short(done.artifact_id)}")
        if done.saved is not None:
            note(f"Its content is kept as {clean(done.saved)} as long as 'mcpctl client history' lists it.")
    if done.warning:
        warn(done.warning)
    return 0


def history(args: argparse.Namespace) -> int:
    """``mcpctl client history``: releases and deployments, newest first.

    JSON: ``{"client_id", "releases": [{profile_id, artifact_id, created_at, signing_key_id, changelog}], "deployments":
    […]}``.
    """
    machine = Machine.of(args)
    configurations = machine.configurations
    family = configurations.families.get(args.client)
    if args.profile is not None:
        configurations.profiles.get(family, args.profile)
    releases = [
        (profile_id, release)
        for client_id, profile_id in configurations.releases.published()
        if client_id == family.id and args.profile in {None, profile_id}
        for release in configurations.releases.history(client_id, profile_id)
    ]
    releases.sort(key=lambda each: each[1].created_at, reverse=True)
    deployments = [each for each in machine.deployments.history(family.id) if args.profile in {None, each.profile_id}]
    if args.json:
        published = [
            {
                "profile_id": profile_id, "artifact_id": each.artifact_id, "created_at": each.created_at,
                "signing_key_id": each.signing_key_id, "changelog": each.changelog,
            }
            for profile_id, each in releases
        ]  # fmt: skip
        write_json(
            {
                "client_id": family.id, "releases": published,
                "deployments": [each.to_json() for each in deployments],
            }
        )  # fmt: skip
        return 0
    rows = [
        (each.created_at, "published", profile_id, short(each.artifact_id), each.changelog)
        for profile_id, each in releases
    ]
    for each in deployments:
        place = tilde(each.file, machine.paths)
        rows.append((each.deployed_at, "deployed", each.profile_id, short(each.artifact_id), place))
        if each.undone_at is not None:
            rows.append((each.undone_at, "undone", each.profile_id, short(each.artifact_id), place))
    if rows:
        rows.sort(reverse=True)
        table(("TIME", "WHAT", "PROFILE", "ARTIFACT", "DETAILS"), [(short_time(row[0]), *row[1:]) for row in rows])
    else:
        note(f"Nothing was published or deployed for {family.id}; 'mcpctl client deploy {family.id}' does both.")
    return 0


def _deployed_profile(machine: Machine, found: DetectedClient) -> str | None:
    """Return the profile that is deployed into the file of a detected client."""
    try:
        last = machine.last(found.family, found.file)
    except McpdError as error:
        warn(error.message)
        return None
    return last.profile_id if last is not None else None


def _compared(release: Release, plan: Plan) -> Any:
    """Return the report of ``diff_config`` for the changes of *plan* to the servers that mcpctl manages in the file."""
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


def _servers(found: DetectedClient) -> int | str | None:
    """Return the number of servers in the file of a client, or a word for the reason why it is unknown."""
    if not found.problem:
        return found.servers if found.exists else "no file"
    return "symlink" if os.path.islink(found.file) else "broken"  # noqa: PTH114 - Path's may raise


def _details(found: Drift) -> str:
    parts = [("missing", found.missing), ("changed", found.modified)]
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in parts if names)


def _note_repair(machine: Machine, family: Family, found: Drift) -> None:
    """Print how to repair a file that differs from its deployment."""
    if found.problem:
        warn(found.problem)
    elif found.status in _WRONG and found.file is not None:
        advice = f"'{machine.deploying(family, found.file)}' shows the changes and repairs it"
        if found.status == "file-missing":
            undo = f"mcpctl client undo {family.id} --keep-edits{file_option(found.file)}"
            advice += f"; '{undo}' forgets its last deployment"
        note(clean(f"{advice}."))
