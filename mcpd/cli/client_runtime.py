# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the commands of ``mcpctl client`` stand on: the libraries they take, and the configurations of their scope.

mcpctl itself gets by without the libraries of the bundled servers. A command that takes them runs in the Python
environment of the package mcpd-servers where its own has them not.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.cli.output import note, warn, write_json
from mcpd.cli.parser_clients import DEFAULT_PROFILE
from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound, NotSupported, from_oserror
from mcpd.paths import Scope, from_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from mcpd.paths import Paths
    from mcpd.servers.orchestration.service import Orchestration

_SIGNATURES: Final = ("cryptography",)
LIBRARIES: Final = {
    "nothing": (),
    "signatures": _SIGNATURES,
    "files": (*_SIGNATURES, "ruamel.yaml", "tomlkit"),
}
"""What a command takes beside mcpctl's own libraries, by what it needs."""
GUARD: Final = "MCPCTL_CLIENT_RUNTIME"
"""Set for the environment of mcpd-servers alone, so that it does not look for another one."""
STDIN: Final = "-"
_BEGINNING: Final = re.compile("[0-9a-f]{6,63}")
"""Of an id, as listings show it."""
LIMIT: Final = 8 * 1024 * 1024
"""Bytes of a file that is read."""


def run(args: argparse.Namespace) -> int:
    """Run ``args.action``, in an environment that has what it takes.

    Raises :class:`~mcpd.errors.NotSupported` if there is none, and what the command raises.
    """
    try:
        _require_own_home()
        _provide(LIBRARIES[args.needs])
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


def read_input(name: str) -> bytes:
    """What the file *name* holds, or standard input (``-``), up to 8 MiB.

    Raises :class:`~mcpd.errors.InvalidArgument` or :class:`~mcpd.errors.NotFound` for what is no such file.
    """
    from mcpd.store.files import is_missing, read_file  # noqa: PLC0415 - few commands read files

    if name == STDIN:
        data = sys.stdin.buffer.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise InvalidArgument(f"standard input is larger than {LIMIT} bytes")
        return data
    try:
        return read_file(Path(name), LIMIT)
    except OSError as error:
        if is_missing(error):
            raise NotFound(f"there is no file {name}") from error
        raise
    except McpdError as error:
        raise InvalidArgument(error.message) from error


def origin(name: str) -> str:
    """What a message calls the input *name*."""
    return "standard input" if name == STDIN else name


def tilde(path: Path | str, paths: Paths) -> str:
    """*path* as people write it, with ``~`` for the home."""
    text, home = str(path), str(paths.home)
    return "~" + text[len(home) :] if text == home or text.startswith(home + os.sep) else text


def short(artifact_id: str) -> str:
    """The beginning of an id, which is enough to tell a few apart."""
    return artifact_id[:12]


def _warn_of_descriptions(args: argparse.Namespace) -> None:
    """A client that is not known may be one whose description is broken."""
    from mcpd.servers.orchestration.families import Families  # noqa: PLC0415

    for problem in Families.of(from_environment(), scope(args)).problems:
        warn(problem)


def _require_own_home() -> None:
    """Keep root out of somebody else's home: what root leaves there its owner cannot use, and links lead anywhere."""
    home = from_environment().home
    owner = home.stat().st_uid if home.exists() else os.geteuid()
    if os.geteuid() == 0 and owner != 0:
        raise NotAuthorized(
            f"{home} belongs to uid {owner}, and root would leave files there that are not theirs: run this as that"
            " user, or with 'sudo -H' for what is root's and the system's"
        )


def _provide(libraries: Iterable[str]) -> None:
    """Have *libraries*, if need be by running anew in the environment of mcpd-servers."""
    is_again = os.environ.pop(GUARD, None) is not None
    missing = [name for name in libraries if not _is_there(name)]
    if not missing:
        return
    what = f"'mcpctl client' needs the Python package {missing[0]}, which"
    if sys.prefix != sys.base_prefix and not is_again:
        raise NotSupported(
            f"{what} is not in {sys.prefix}; install it with: {sys.executable} -m pip install 'mcpd-system[servers]'"
        )
    from mcpd.runtime import bundled  # noqa: PLC0415 - not where everything is there

    if is_again or not bundled.PYTHON.exists():
        raise NotSupported(f"{what} is not installed; install the package mcpd-servers")
    sys.stdout.flush()
    sys.stderr.flush()
    # Isolated: neither the directory it is started in nor a variable adds to what it imports.
    argv = [str(bundled.PYTHON), "-I", "-m", "mcpd.cli.main", *sys.argv[1:]]
    os.execve(argv[0], argv, os.environ | {GUARD: "1"})  # noqa: S606 - in place of this process, without a shell


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _names(error: McpdError, member: str) -> list[str]:
    members = getattr(error, "members", {})
    return [str(name) for name in members.get(member, ())]


def _other(unknown: str, available: Sequence[str]) -> str:
    """What of *available* could have been meant by *unknown*."""
    import difflib  # noqa: PLC0415

    near = difflib.get_close_matches(unknown, available, 1)
    return f"did you mean {near[0]!r}? " if near else ""
