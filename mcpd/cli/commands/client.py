# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl client``: known clients, their signed configurations, and the keys (``docs/clients.md``)."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.cli.client_runtime import (
    artifact_of,
    changing,
    profile_option,
    scope,
    servers_table,
    service,
    short,
    short_time,
    stale_note,
)
from mcpd.cli.home import tilde
from mcpd.cli.output import clean, counted, details, note, table, warn, write, write_json
from mcpd.cli.user_input import origin, read_input
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import argparse


def list_clients(args: argparse.Namespace) -> int:
    """``mcpctl client list``. JSON: the result of the tool ``list_clients``."""
    # Do not open the whole service: the libraries for signatures are slow to import.
    from mcpd.clients.families import Families
    from mcpd.clients.profiles import Profiles

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
    """``mcpctl client profiles``. JSON: the result of the tool ``list_profiles``."""
    found: Any = service(args).list_profiles(args.client)
    if args.json:
        write_json(found)
    elif found["profiles"]:
        rows = [
            (each["profile_id"], each["display_name"], short(each["latest_artifact_id"]),
             short_time(each["updated_at"]), each["description"])
            for each in found["profiles"]
        ]  # fmt: skip
        table(("PROFILE", "NAME", "ARTIFACT", "UPDATED", "DESCRIPTION"), rows)
    else:
        note(f"Nothing is published for {args.client}; to publish, run 'mcpctl client publish {args.client}'.")
    return 0


def show(args: argparse.Namespace) -> int:
    """``mcpctl client show``. JSON: the result of the tool ``get_config``."""
    from mcpd.clients.service import FROM_NOBODY  # needs the libraries from run()

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
                ("made" if about.get("source") == FROM_NOBODY else "published", short_time(found["created_at"])),
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
                "It is not published, so it follows the installed servers;"
                f" 'mcpctl client publish {args.client}{profile_option(args.profile)}' publishes it."
            )
    return 0


def verify(args: argparse.Namespace) -> int:
    """``mcpctl client verify``; fails if a signature or the id is wrong.

    JSON: ``{"verified": true, …}`` with the fields of the verified configuration.
    """
    from mcpd.clients.releases import load_public_key, verify_document

    data = read_input(args.file)
    keys: Any = load_public_key(Path(args.key)) if args.key else service(args).keys
    found = verify_document(data, origin(args.file), keys)
    if args.json:
        write_json({"verified": True} | vars(found))
    else:
        write(f"Good signature on {found.client_id}/{found.profile_id}, {found.artifact_id}")
        write(f"published {short_time(found.created_at)}, signed with {clean(found.signing_key_id)}")
    return 0


def show_keys(args: argparse.Namespace) -> int:
    """``mcpctl client keys show``. Creates no key.

    JSON: ``{"keys": [{key_id, created_at, retired_at, expires_at, path}], "count"}``.
    """
    keys = [{**asdict(record), "path": str(record.path)} for record in service(args).keys.listing()]
    if args.json:
        write_json({"keys": keys, "count": len(keys)})
    elif keys:
        rows = [
            (each["key_id"], f"valid until {short_time(each['expires_at'])}" if each["expires_at"] else "current",
             short_time(each["created_at"]), each["path"])
            for each in keys
        ]  # fmt: skip
        table(("KEY", "STATE", "CREATED", "FILE"), rows)
    else:
        note("There is no key yet; publishing the first configuration creates one, as does 'mcpctl client keys init'.")
    return 0


def initialize_keys(args: argparse.Namespace) -> int:
    """``mcpctl client keys init``. JSON: the result of the tool ``initialize_keys``."""
    return _renew(args, regenerate=False)


def rotate_keys(args: argparse.Namespace) -> int:
    """``mcpctl client keys rotate``. JSON: the result of the tool ``initialize_keys``."""
    return _renew(args, regenerate=True)


def _renew(args: argparse.Namespace, *, regenerate: bool) -> int:
    change: Any = changing(args).initialize_keys(regenerate=regenerate)
    if args.json:
        write_json(change)
        return 0
    write(f"{'New' if change['created'] else 'Unchanged'} key {change['signing_key_id']}: {change['verification_key']}")
    if change["previous_key_id"]:
        again = counted(change["releases_signed_again"], "configuration")
        until = short_time(change["previous_key_expires_at"])
        write(f"Re-signed {again}. {change['previous_key_id']} is valid until {until}.")
    return 0
