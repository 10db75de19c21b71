# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the commands of ``mcpctl client`` stand on: the libraries they take, and the configurations of their scope."""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING, Final

from mcpd.cli.home import require_own
from mcpd.cli.libraries import provide
from mcpd.cli.output import note, warn, write_json
from mcpd.cli.parser_clients import DEFAULT_PROFILE
from mcpd.errors import McpdError, NotAuthorized, NotFound, from_oserror
from mcpd.paths import Scope, from_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from mcpd.paths import Paths
    from mcpd.servers.orchestration.service import Orchestration

_SIGNATURES: Final = ("cryptography",)
LIBRARIES: Final = {
    "nothing": (),
    "signatures": _SIGNATURES,
    "files": (*_SIGNATURES, "ruamel.yaml", "tomlkit"),
}
"""What a command takes beside mcpctl's own libraries, by what it needs."""
_BEGINNING: Final = re.compile("[0-9a-f]{6,63}")
"""Of an id, as listings show it."""


def run(args: argparse.Namespace) -> int:
    """Run ``args.action``, in an environment that has what it takes.

    Raises :class:`~mcpd.errors.NotSupported` if there is none, and what the command raises.
    """
    try:
        require_own()
        provide(LIBRARIES[args.needs], "'mcpctl client'")
        module, _, function = args.action.partition(":")
        return int(getattr(importlib.import_module(module), function)(args))
    except BrokenPipeError:
        raise
    except (McpdError, OSError) as error:
        fault = error
        if isinstance(fault, OSError):
            fault = from_oserror(fault, str(fault.filename or f"mcpctl client {args.subcommand}"))
        if args.json:
            from mcpd.servers.orchestration.faults import error_object  # noqa: PLC0415

            write_json(error_object(fault))
        raise explained(fault, args) from error


def scope(args: argparse.Namespace) -> Scope:
    """Whose configurations are meant; the client's files are the caller's own in either scope."""
    return Scope.SYSTEM if args.system else Scope.USER


def service(args: argparse.Namespace, paths: Paths | None = None) -> Orchestration:
    """The configurations of the scope; those of the system are read only for who may not write them."""
    from mcpd.servers.orchestration.service import Orchestration  # noqa: PLC0415 - not before run() provided for it

    paths, whose = paths or from_environment(), scope(args)
    root = paths.layout(whose).orchestration
    return Orchestration(paths, whose, writable=whose is Scope.USER or is_writable(root))


def changing(args: argparse.Namespace) -> Orchestration:
    """The configurations of the scope, to change them.

    Raises :class:`~mcpd.errors.NotAuthorized` if they are not the caller's to change.
    """
    found = service(args)
    if args.system and not is_writable(found.tree.root):
        raise NotAuthorized(
            f"the system's configurations in {found.tree.root} are root's to change: run it with sudo, or without"
            " --system for yourself"
        )
    return found


def is_writable(root: Path) -> bool:
    """Whether the caller may write the directory *root*, or make it."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    return os.access(existing, os.W_OK | os.X_OK)


def stale_note(configurations: Orchestration, client_id: str, profile_id: str) -> None:
    """Say so if what is installed has changed since the newest configuration was made of it."""
    if configurations.is_stale(client_id, profile_id):
        note(
            f"What is installed has changed since; 'mcpctl client publish {client_id}{profile_option(profile_id)}'"
            " publishes it."
        )


def draft_note(configurations: Orchestration, client_id: str, profile_id: str) -> None:
    """Say so if there is a draft, which is in nothing that is published."""
    if configurations.tree.draft(client_id, profile_id).exists():
        note(
            f"There is a draft that is not published; 'mcpctl client publish {client_id}{profile_option(profile_id)}'"
            " publishes it."
        )


def artifact_of(args: argparse.Namespace, configurations: Orchestration) -> str | None:
    """The id that was asked for, also if only its beginning was given and that is the beginning of one."""
    given: str | None = args.artifact
    if given is None or not _BEGINNING.fullmatch(given):
        return given
    known = {each.artifact_id for each in configurations.releases.history(args.client, args.profile)}
    found = [each for each in known if each.startswith(given)]
    return found[0] if len(found) == 1 else given


def profile_option(profile_id: str) -> str:
    """The option that names *profile_id* in a command that is shown; none for the usual one."""
    return "" if profile_id == DEFAULT_PROFILE else f" --profile {profile_id}"


def explained(error: McpdError, args: argparse.Namespace) -> McpdError:
    """*error* with the way out, where what raised it cannot know mcpctl's commands."""
    from mcpd.servers.orchestration import faults  # noqa: PLC0415

    asked = [args.client] if "client" in args else getattr(args, "clients", None) or [""]
    match error:
        case faults.ClientNotFound():
            _warn_of_descriptions(args)
            meant = _other(error.client_id, _names(error, "available_clients"))
            return NotFound(f"{error.message}; {meant}'mcpctl client list' shows those that are known")
        case faults.ProfileNotFound():
            known = ", ".join(_names(error, "available_profiles"))
            return NotFound(f"{error.message}; it has {known or 'none'}")
        case faults.ArtifactNotFound():
            return NotFound(f"{error.message}; 'mcpctl client history {asked[0]}' shows those that were published")
        case faults.ServerNotFound():
            what, _, _ = error.message.partition(";")
            command = f"client draft show {asked[0]}{profile_option(args.profile)}" if "names" in args else "list"
            return NotFound(f"{what}; 'mcpctl {command}' shows those that are there")
        case _:
            return error


def short(artifact_id: str) -> str:
    """The beginning of an id, which is enough to tell a few apart."""
    return artifact_id[:12]


def _warn_of_descriptions(args: argparse.Namespace) -> None:
    """A client that is not known may be one whose description is broken."""
    from mcpd.servers.orchestration.families import Families  # noqa: PLC0415

    for problem in Families.of(from_environment(), scope(args)).problems:
        warn(problem)


def _names(error: McpdError, member: str) -> list[str]:
    members = getattr(error, "members", {})
    return [str(name) for name in members.get(member, ())]


def _other(unknown: str, available: Sequence[str]) -> str:
    """What of *available* could have been meant by *unknown*."""
    import difflib  # noqa: PLC0415

    near = difflib.get_close_matches(unknown, available, 1)
    return f"did you mean {near[0]!r}? " if near else ""
