# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl client``: the clients that are known, their signed configurations, and the keys (``docs/clients.md``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.cli.client_output import moment, servers_table
from mcpd.cli.client_runtime import artifact_of, changing, profile_option, scope, service, short, stale_note
from mcpd.cli.given import origin, read_input
from mcpd.cli.home import tilde
from mcpd.cli.output import clean, counted, details, note, table, warn, write, write_json
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import argparse

    from mcpd.servers.orchestration.keys import KeyRecord


def list_clients(args: argparse.Namespace) -> int:
    """``mcpctl client list``. JSON: what the tool ``list_clients`` gives."""
    # Without what signs, which takes long to import.
    from mcpd.servers.orchestration.families import Families  # noqa: PLC0415
    from mcpd.servers.orchestration.profiles import Profiles  # noqa: PLC0415

    paths = from_environment()
    families, profiles = Families.of(paths, scope(args)), Profiles.of(paths, scope(args))
    known = families.all()
    if args.json:
        clients = [family.summary(profiles.available(family)) for family in known]
        write_json({"clients": clients, "count": len(clients)})
    else:
        rows = []
        for family in known:
            places = family.linux_locations(paths.home, os.environ)
            file = next((path for path in places if path.exists()), places[0] if places else None)
            place = tilde(file, paths) if file else f"(none on Linux; {family.platform})"
            rows.append((family.id, family.name, " ".join(profiles.available(family)), place))
        table(("CLIENT", "NAME", "PROFILES", "FILE"), rows)
    for problem in (*families.problems, *profiles.problems):
        warn(problem)
    return 0


def list_profiles(args: argparse.Namespace) -> int:
    """``mcpctl client profiles``. JSON: what the tool ``list_profiles`` gives."""
    found: Any = service(args).list_profiles(args.client)
    if args.json:
        write_json(found)
    elif found["profiles"]:
        rows = [
            (each["profile_id"], each["display_name"], short(each["latest_artifact_id"]), moment(each["updated_at"]),
             each["description"])
            for each in found["profiles"]
        ]  # fmt: skip
        table(("PROFILE", "NAME", "ARTIFACT", "UPDATED", "DESCRIPTION"), rows)
    else:
        note(f"Nothing is published for {args.client}; 'mcpctl client publish {args.client}' does it.")
    return 0


def show(args: argparse.Namespace) -> int:
    """``mcpctl client show``. JSON: what the tool ``get_config`` gives."""
    from mcpd.servers.orchestration.publishing import FROM_NOBODY  # noqa: PLC0415 - not before run() provided for it

    configurations = service(args)
    found: Any = configurations.get_config(args.client, args.profile, artifact_of(args, configurations))
    if args.json:
        write_json(found)
    else:
        about = found["metadata"]
        maker = f"{about.get('generator', '')} {about.get('generator_version', '')}".strip()
        details(
            [
                ("client", f"{found['client_id']}/{found['profile_id']}"),
                ("artifact", found["artifact_id"]),
                ("made" if about.get("source") == FROM_NOBODY else "published", moment(found["created_at"])),
                ("message", about.get("changelog")),
                ("made by", maker),
                ("signed with", found["signing_key_id"]),
                ("servers", str(len(found["payload"]["mcpServers"]))),
            ]
        )
        if found["payload"]["mcpServers"]:
            write()
            servers_table(found["payload"])
    if args.artifact is None:
        stale_note(configurations, args.client, args.profile)
        if not args.json and found["metadata"].get("source") == FROM_NOBODY:
            note(
                "Nobody has published it, so it follows what is installed;"
                f" 'mcpctl client publish {args.client}{profile_option(args.profile)}' keeps it."
            )
    return 0


def verify(args: argparse.Namespace) -> int:
    """``mcpctl client verify``; fails if a signature or the id is wrong. JSON: what was verified."""
    from mcpd.servers.orchestration.verify import load_public_key, verify_document  # noqa: PLC0415

    data = read_input(args.file)
    keys: Any = load_public_key(Path(args.key)) if args.key else service(args).keys
    found = verify_document(data, origin(args.file), keys)
    if args.json:
        write_json({"verified": True} | vars(found))
    else:
        write(f"Good signature of {found.client_id}/{found.profile_id}, {found.artifact_id}")
        write(f"published {moment(found.created_at)}, signed with {clean(found.signing_key_id)}")
    return 0


def show_keys(args: argparse.Namespace) -> int:
    """``mcpctl client keys show``. None is made.

    JSON: ``{"keys": [{key_id, created_at, retired_at, expires_at, path}], "count"}``.
    """
    keys = [_key(record) for record in service(args).keys.listing()]
    if args.json:
        write_json({"keys": keys, "count": len(keys)})
    elif keys:
        rows = [
            (each["key_id"], f"valid until {moment(each['expires_at'])}" if each["expires_at"] else "current",
             moment(each["created_at"] or ""), each["path"])
            for each in keys
        ]  # fmt: skip
        table(("KEY", "STATE", "CREATED", "FILE"), rows)
    else:
        note("There is no key yet; the first configuration that is published makes one, as does 'keys init'.")
    return 0


def initialize_keys(args: argparse.Namespace) -> int:
    """``mcpctl client keys init``. JSON: what the tool ``initialize_keys`` gives."""
    return _renew(args, regenerate=False)


def rotate_keys(args: argparse.Namespace) -> int:
    """``mcpctl client keys rotate``. JSON: what the tool ``initialize_keys`` gives."""
    return _renew(args, regenerate=True)


def _renew(args: argparse.Namespace, *, regenerate: bool) -> int:
    change: Any = changing(args).initialize_keys(regenerate=regenerate)
    if args.json:
        write_json(change)
        return 0
    write(f"{'New' if change['created'] else 'Unchanged'} key {change['signing_key_id']}: {change['verification_key']}")
    if change["previous_key_id"]:
        again = counted(change["releases_signed_again"], "configuration")
        until = moment(change["previous_key_expires_at"])
        write(f"Signed {again} again. {change['previous_key_id']} is valid until {until}.")
    return 0


def _key(record: KeyRecord) -> dict[str, str | None]:
    return {
        "key_id": record.key_id, "created_at": record.created_at, "retired_at": record.retired_at,
        "expires_at": record.expires_at, "path": str(record.path),
    }  # fmt: skip
