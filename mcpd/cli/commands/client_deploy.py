# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl client deploy``: a signed configuration, checked, shown, and put into the client's own file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.cli import bridge_tcp, prompt, tool_names
from mcpd.cli.client_machine import Machine
from mcpd.cli.client_output import print_diff
from mcpd.cli.client_runtime import artifact_of, draft_note, profile_option, scope, stale_note
from mcpd.cli.clients.deployments import About
from mcpd.cli.commands.client_drafts import has_news, say_published
from mcpd.cli.home import tilde
from mcpd.cli.output import clean, note, warn, write, write_json
from mcpd.errors import Cancelled, InvalidArgument, McpdError
from mcpd.servers.orchestration.addresses import read_address
from mcpd.servers.orchestration.dialects import to_client
from mcpd.servers.orchestration.faults import PolicyViolation, ValidationFailed
from mcpd.servers.orchestration.payload import BRIDGE, TOKEN, rebased, uses_bridge

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping

    from mcpd.cli.clients.history import Deployment
    from mcpd.cli.clients.plans import Plan
    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family
    from mcpd.servers.orchestration.releases import Release
    from mcpd.servers.orchestration.service import Orchestration

_LISTS: Final = ("added", "changed", "removed", "kept", "restored", "left")
"""What a plan says of servers."""


def deploy(args: argparse.Namespace) -> int:
    """``mcpctl client deploy``.

    JSON: ``{client_id, profile_id, artifact_id, file, deployed, added, changed, removed, kept, restored, left, diff}``.
    """
    if args.publish and args.artifact is not None:
        raise InvalidArgument("--publish makes a configuration and --artifact names one; leave one of them out")
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
    if not args.dry_run and _is_wanted(args, machine, plan, release):
        release = machine.configurations.keep(release)
        done = _applied(machine, plan, release)
    if args.json:
        write_json(
            {
                "client_id": family.id, "profile_id": args.profile, "artifact_id": release.artifact_id,
                "file": str(plan.file), "deployed": done is not None,
                **{name: getattr(plan, name) for name in _LISTS}, "diff": plan.diff,
            }
        )  # fmt: skip
    if done is not None:
        _say_deployed(args, machine, plan, release)
    return 0


def _written(machine: Machine, family: Family, entries: dict[str, Any]) -> dict[str, JsonValue]:
    """Return *entries* as they are written on this machine.

    Raises :class:`~mcpd.errors.McpdError` if the client would send the bridge's token to another user of it.
    """
    if uses_bridge(entries):
        entries = rebased(entries, BRIDGE, bridge_tcp.base_url(machine.paths))
    for name, entry in entries.items():
        if "url" in entry and TOKEN in _variables(family, {name: entry}):
            address = read_address(entry["url"])
            if address.is_local:
                bridge_tcp.check_url(address.normal)
    return to_client(family, entries)


def _publish_first(args: argparse.Namespace, configurations: Orchestration) -> None:
    if not has_news(configurations, args.client, args.profile):
        note(
            f"{args.client}/{args.profile} was made of a draft and there is no newer one;"
            f" 'mcpctl client publish {args.client}{profile_option(args.profile)} --from-installed' publishes what is"
            " installed instead."
        )
        return
    published: Any = configurations.publish(args.client, args.profile, args.message)
    for warning in published["warnings"]:
        warn(warning)
    if not args.json:
        say_published(published)


def planned(
    args: argparse.Namespace, machine: Machine, take_over: Collection[str] = (), *, is_recorded: bool = False
) -> tuple[Release, Plan]:
    """Return the configuration that *args* are to deploy, and what that does to the client's file.

    Nothing is signed or written, except that a refusal is recorded if *is_recorded*. Raises
    :class:`~mcpd.errors.McpdError` for what keeps it from being deployed.
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
    """Print what *plan* does, for people."""
    place = clean(tilde(plan.file, machine.paths))
    if plan.diff:
        print_diff(plan.diff)
    elif not plan.entries:
        write(f"Nothing to write to {place}: the configuration {plan.family.id}/{args.profile} has no servers.")
    elif not plan.kept:
        write(f"Unchanged {place}: it holds what is published.")
    elif plan.owned:
        write(f"Unchanged {place}: it holds what is published, but for servers that you wrote yourself.")
    else:
        write(f"Unchanged {place}: it has servers of your own under all names that are published.")
    if plan.kept:
        names = clean(", ".join(plan.kept))
        note(f"Kept as you wrote them: {names}; '--take-over {clean(plan.kept[0])}' replaces one by what is published.")
    if plan.restored:
        note(f"Were changed by hand: {clean(', '.join(plan.restored))}")
    if plan.left:
        note(f"Left, as they were changed by hand, and yours from now on: {clean(', '.join(plan.left))}")


def _is_wanted(args: argparse.Namespace, machine: Machine, plan: Plan, release: Release) -> bool:
    """Whether to go on; asks, if it is about the file and not only about what is known of it."""
    if plan.is_empty:
        last = machine.last(plan.family, plan.file)
        place = scope(args), release.profile_id, release.artifact_id
        return last is not None and (last.scope, last.profile_id, last.artifact_id) != place
    if args.yes or plan.new == plan.snapshot.data:
        return True
    if args.json or not prompt.terminal():
        raise InvalidArgument(f"{plan.file} was not changed: nobody can be asked here, so consent with --yes")
    if not prompt.confirm(f"Write this to {clean(tilde(plan.file, machine.paths))}?"):
        raise Cancelled(f"{plan.file}: nothing was changed")
    return True


def _applied(machine: Machine, plan: Plan, release: Release) -> Deployment:
    about = About(machine.configurations.scope, release.profile_id, release.artifact_id)
    details: dict[str, JsonValue] = {
        "file": str(plan.file), **{name: [*getattr(plan, name)] for name in _LISTS},
    }  # fmt: skip
    # Told first: what cannot be told is not done.
    machine.record("deploy_config", release.profile_id, release.artifact_id, plan.family, details)
    try:
        done = machine.deployments.apply(plan, about, tree=machine.told)
    except McpdError as error:
        details = {"message": error.message}
        machine.record("deploy_config", release.profile_id, release.artifact_id, plan.family, details, "failed")
        raise
    if done.warning:
        warn(done.warning)
    return done


def _say_deployed(args: argparse.Namespace, machine: Machine, plan: Plan, release: Release) -> None:
    client_id = plan.family.id
    if not args.json and plan.new != plan.snapshot.data:
        words = [
            f"{len(getattr(plan, name))} {name}" for name in ("added", "changed", "removed") if getattr(plan, name)
        ]
        place = clean(tilde(plan.file, machine.paths))
        write(f"Deployed {client_id}/{release.profile_id} to {place}: {', '.join(words)}.")
        write(f"'mcpctl client undo {client_id}' takes it back. {plan.family.name} may have to be started again.")
    if variables := _variables(plan.family, _entries(release.payload)):
        hint = "; 'mcpctl token' prints the bridge's" if TOKEN in variables else ""
        note(f"{plan.family.name} needs these in its environment: {', '.join(variables)}{hint}.")


def _variables(family: Family, entries: Mapping[str, Any]) -> list[str]:
    """The variables that the client fills in when it reads *entries*."""
    found: list[str] = []
    for entry in entries.values():
        for field in ("env", "headers"):
            for value in entry.get(field, {}).values():
                found += family.variables_in(value, field)
    return list(dict.fromkeys(found))


def _entries(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a configuration, which was checked."""
    return dict(payload["mcpServers"])
