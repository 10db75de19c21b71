# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl client draft``, ``validate`` and ``publish``: from installed servers to a signed configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.cli import tool_names
from mcpd.cli.client_runtime import (
    changing,
    print_changes,
    print_findings,
    profile_option,
    servers_table,
    service,
    short,
    with_advice,
)
from mcpd.cli.output import clean, counted, note, warn, write, write_json
from mcpd.cli.parser_clients import DEFAULT_PROFILE
from mcpd.cli.user_input import origin, read_input
from mcpd.clients.service import FROM_DRAFT
from mcpd.errors import EXIT_FAILED, InvalidArgument, InvalidManifest, McpdError
from mcpd.model import load_json

if TYPE_CHECKING:
    import argparse

    from mcpd.clients.service import Orchestration
    from mcpd.clients.validation import Finding
    from mcpd.model import JsonValue


def show_draft(args: argparse.Namespace) -> int:
    """``mcpctl client draft show``. JSON: the result of the tool ``view_draft_config``."""
    found: Any = service(args).view_draft(args.client, args.profile)
    if args.json:
        write_json(found)
        return 0
    if not found["exists"]:
        note(
            f"There is no draft for {args.client}/{args.profile};"
            f" 'mcpctl client draft add {args.client} ID{profile_option(args.profile)}' creates one."
        )
        return 0
    servers_table(found["draft"])
    write()
    _show_changes(args, found)
    return 0


def add_server(args: argparse.Namespace) -> int:
    """``mcpctl client draft add``. JSON: the result of the tool ``view_draft_config``."""
    configurations = changing(args)
    entry: JsonValue = _json(args.entry) if args.entry is not None else None
    if args.entry is not None and not isinstance(entry, dict):
        raise InvalidArgument(f"{origin(args.entry)}: not a JSON object with command and args, or type and url")
    found = configurations.add_server(
        args.client, args.profile, args.id, name=args.name, entry=entry, variables=tuple(args.variables)
    )
    return _changed(args, found, f"Added {clean(args.name or args.id)} to the draft")


def remove_server(args: argparse.Namespace) -> int:
    """``mcpctl client draft remove``. JSON: the result of the tool ``view_draft_config``."""
    configurations = changing(args)
    found: Any = configurations.view_draft(args.client, args.profile)
    present = found["draft"]["mcpServers"]
    # Begin with missing names, so that the command fails before anything is removed.
    for name in sorted(dict.fromkeys(args.names), key=present.__contains__):
        found = configurations.remove_server(args.client, args.profile, name)
    return _changed(args, found, f"Removed {clean(', '.join(args.names))} from the draft")


def clear_draft(args: argparse.Namespace) -> int:
    """``mcpctl client draft clear``. JSON: the result of the tool ``clear_draft_config``."""
    found: Any = changing(args).clear_draft(args.client, args.profile)
    if args.json:
        write_json(found)
    elif found["cleared"]:
        write(f"Deleted the draft for {args.client}/{args.profile}.")
    else:
        note(f"There is no draft for {args.client}/{args.profile}.")
    return 0


def validate(args: argparse.Namespace) -> int:
    """``mcpctl client validate``; 1 if there is an error. JSON: the result of the tool ``validate_config``."""
    payload = _json(args.file) if args.file is not None else None
    configurations = service(args)
    found: Any = configurations.validate(args.client, args.profile, payload)
    found["warnings"] += [each.to_json() for each in _tool_warnings(args, configurations, payload)]
    if args.json:
        write_json(found)
    else:
        print_findings(found)
        if found["valid"]:
            write(f"{args.client}/{args.profile} can be published and deployed.")
    return 0 if found["valid"] else EXIT_FAILED


def _tool_warnings(args: argparse.Namespace, configurations: Orchestration, payload: JsonValue) -> list[Finding]:
    """Return warnings about tool names in *payload* (default: the draft, else the generated configuration)."""
    if payload is None:
        draft = configurations.drafts.get(args.client, args.profile)
        made = draft if draft is not None else configurations.generated(args.client, args.profile)
        payload = made.payload
    entries = payload.get("mcpServers") if isinstance(payload, dict) else None
    family = configurations.families.get(args.client)
    return tool_names.warnings(args, configurations.servers, family, entries if isinstance(entries, dict) else {})


def publish(args: argparse.Namespace) -> int:
    """``mcpctl client publish``; continues with the other clients if one fails.

    JSON: the result of the tool ``publish_config`` for one named client, else ``{"published": [one each]}``.
    """
    if bool(args.clients) == args.all:
        raise InvalidArgument("specify the clients to publish for, or use --all; 'mcpctl client list' lists them")
    configurations = changing(args)
    wanted = _published_before(configurations, args) if args.all else _named(args)
    done: list[Any] = []
    failed: list[McpdError] = []
    for client_id, profile_id in wanted:
        try:
            found: Any = configurations.publish(client_id, profile_id, args.message, from_installed=args.from_installed)
        except McpdError as error:
            if len(wanted) == 1:
                raise
            failed.append(error)
            warn(with_advice(error, args).message)
            continue
        done.append(found)
        for warning in found["warnings"]:
            warn(warning)
        if not args.json:
            print_published(found)
    if args.json:
        write_json(done[0] if len(args.clients) == 1 else {"published": done})
    elif not wanted:
        note("There is nothing new to publish; 'mcpctl client publish CLIENT' publishes the installed servers.")
    elif len(done) == 1 and len(wanted) == 1:
        client_id, profile_id = wanted[0]
        write(f"'mcpctl client deploy {client_id}{profile_option(profile_id)}' writes it to your client's file.")
    return failed[0].exit_code if failed else 0


def print_published(found: Any) -> None:
    """Print the result *found* of ``publish_config``."""
    servers = counted(len(found["payload"]["mcpServers"]), "server")
    done = "Published" if found["published"] else "Unchanged"
    write(f"{done} {found['client_id']}/{found['profile_id']}: {servers}, {short(found['artifact_id'])}")


def may_publish(configurations: Orchestration, client_id: str, profile_id: str) -> bool:
    """Return whether to publish without ``--from-installed``.

    True if there is a draft, or the newest release was not made from one: publishing the installed servers would
    replace such a release.
    """
    if configurations.tree.draft(client_id, profile_id).exists():
        return True
    newest = configurations.releases.latest(client_id, profile_id)
    return newest is None or newest.metadata.get("source") != FROM_DRAFT


def _named(args: argparse.Namespace) -> list[tuple[str, str]]:
    return [(client_id, args.profile or DEFAULT_PROFILE) for client_id in dict.fromkeys(args.clients)]


def _published_before(configurations: Orchestration, args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the clients and profiles that have a release or a draft; print a note about those that are left out."""
    places = _places(configurations, args.profile)
    if args.from_installed:
        return places
    found = [place for place in places if may_publish(configurations, *place)]
    if left := ["/".join(place) for place in places if place not in found]:
        note(
            f"Unchanged, as they were made from drafts: {', '.join(left)};"
            " --from-installed replaces them with the installed servers."
        )
    return found


def _places(configurations: Orchestration, profile: str | None) -> list[tuple[str, str]]:
    having = set(configurations.releases.published())
    places = [
        (family.id, profile_id)
        for family in configurations.families.all()
        for profile_id in configurations.profiles.available(family)
        if profile in {None, profile_id}
    ]
    return [place for place in places if place in having or configurations.tree.draft(*place).exists()]


def _json(name: str) -> JsonValue:
    try:
        value: JsonValue = load_json(read_input(name), origin(name))
    except InvalidManifest as error:
        raise InvalidArgument(error.message) from error
    return value


def _changed(args: argparse.Namespace, found: Any, done: str) -> int:
    for warning in found.get("warnings", ()):
        warn(warning)
    if args.json:
        write_json(found)
        return 0
    write(f"{done} for {args.client}/{args.profile}.")
    _show_changes(args, found)
    return 0


def _show_changes(args: argparse.Namespace, found: Any) -> None:
    changes = found["changes"]
    if not any(changes[key] for key in ("servers_added", "servers_removed", "servers_modified")):
        write("The draft is identical to the latest published configuration.")
        return
    print_changes(changes)
    write(f"'mcpctl client publish {args.client}{profile_option(args.profile)}' signs and publishes it.")
