# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runtime of ``mcpctl client``: its libraries, the configurations of the scope, and output that masks secrets."""

from __future__ import annotations

import importlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.home import require_own
from mcpd.cli.libraries import provide
from mcpd.cli.output import clean, note, paint, shortened, table, warn, write, write_json
from mcpd.cli.parser_clients import DEFAULT_PROFILE
from mcpd.clients.secret_values import PLACEHOLDER, literal_secrets
from mcpd.errors import McpdError, NotAuthorized, NotFound, from_oserror
from mcpd.paths import Scope, from_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Container, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.clients.service import Orchestration
    from mcpd.model import JsonValue

HIDDEN: Final = "(hidden)"
_WIDTH: Final = 160
_PLAIN: Final = re.compile(r"type|command|cwd|url|args(\[\d+\])?", re.ASCII)
"""Paths of values in an entry that are shown unless they look like a secret; all other values are masked."""
_HARMLESS: Final = re.compile(rf"((?i:bearer|basic|token) )?({PLACEHOLDER.pattern})?", re.ASCII)
_LINES: Final = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def servers_table(payload: Mapping[str, Any]) -> None:
    """Print the servers of *payload* with their commands or URLs, and the names of their variables."""
    rows = []
    for name, entry in payload.get("mcpServers", {}).items():
        # Older drafts may contain values that are refused today.
        args, groups = entry.get("args", []), (entry.get("env"), entry.get("headers"))
        words = args if isinstance(args, list) else [args]
        variables = [each for fields in groups if isinstance(fields, dict) for each in fields]
        runs = str(entry.get("url") or " ".join([str(entry.get("command", "")), *(_word(str(word)) for word in words)]))
        rows.append((name, ", ".join(variables), runs))
    table(("SERVER", "VARIABLES", "RUNS"), rows)


def print_changes(changes: Mapping[str, Any]) -> None:
    """Print *changes*, a comparison of two published payloads: one line for each server and changed value."""
    for line, colour in _changes(changes):
        write(paint(clean(line), colour))


def masked_changes(changes: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return *changes* with the secrets of the *local* entries, which come from a client's file, masked.

    New values come from a published configuration, which contains no secrets.
    """
    modified: list[JsonValue] = []
    for server in changes["servers_modified"]:
        secret = _secrets(local.get(server["server_id"]))
        masked: list[JsonValue] = [
            change | {"old_value": _redacted(change["path"], change["old_value"], secret)}
            for change in server["changes"]
        ]
        modified.append({**server, "changes": masked})
    return {**changes, "servers_modified": modified}


def print_findings(report: Mapping[str, Any]) -> None:
    """Print the errors, warnings and violations of *report*, one line each."""
    for member, label, colour in (
        ("errors", "error", "red"),
        ("violations", "policy", "red"),
        ("warnings", "warning", "yellow"),
    ):
        for found in report[member]:
            code = found.get("code") or found["rule"]
            write(f"{paint(label + ':', colour)} {clean(found['message'])} ({clean(code)})")


def print_diff(text: str) -> None:
    """Print *text*, a unified diff, in colour. Tabs are kept, because they may be part of a difference."""
    for line in text.splitlines():
        colour = next((colour for start, colour in _LINES if line.startswith(start)), "")
        write(paint(clean(line, lines=True), colour))


def short_time(time: str) -> str:
    """Return *time*, in ISO 8601, without fractions of a second."""
    return re.sub(r"\.\d+", "", time)


def _changes(changes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in changes["servers_added"]:
        yield f"+ {name}", "green"
    for name in changes["servers_removed"]:
        yield f"- {name}", "red"
    for server in changes["servers_modified"]:
        yield f"~ {server['server_id']}", "yellow"
        for change in server["changes"]:
            path = change["path"]
            old, new = (_shown(path, change[key]) for key in ("old_value", "new_value"))
            yield f"    {path}: {old} → {new}", ""


def _secrets(entry: JsonValue) -> set[str]:
    """Return the paths of secrets in *entry*."""
    return {path for path, _ in literal_secrets(entry)} if isinstance(entry, dict) else set()


def _shown(path: str, value: JsonValue) -> str:
    if value is None:
        return "(none)"
    return shortened(json.dumps(_redacted(path, value, ()), ensure_ascii=False), _WIDTH)


def _redacted(path: str, value: JsonValue, secret: Container[str]) -> JsonValue:
    """Return *value*, which is at *path* in an entry, with possible secrets masked; *secret* has the known paths."""
    if path in secret or not _PLAIN.fullmatch(path):
        return _masked(value)
    match value:
        case str():
            return value
        case list() if path == "args":
            return [
                each if isinstance(each, str) and f"{path}[{at}]" not in secret else _masked(each)
                for at, each in enumerate(value)
            ]
        case _:
            return _masked(value)


def _masked(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {key: _masked(each) for key, each in value.items()}
        case list():
            return [_masked(each) for each in value]
        case str() if _HARMLESS.fullmatch(value):
            return value
        case bool() | None:
            return value
        case _:
            return HIDDEN


def _word(value: object) -> str:
    import shlex

    return shlex.quote(str(value))


_SIGNATURES: Final = ("cryptography",)
LIBRARIES: Final = {
    "nothing": (),
    "signatures": _SIGNATURES,
    "files": (*_SIGNATURES, "ruamel.yaml", "tomlkit"),
}
"""Libraries of the bundled servers, by the value of ``needs`` of a command."""
_ID_PREFIX: Final = re.compile("[0-9a-f]{6,63}")
"""An abbreviated id of a configuration, as listings show it."""


def run(args: argparse.Namespace) -> int:
    """Run ``args.action`` in an environment with the libraries that it needs.

    Raises :class:`~mcpd.errors.NotSupported` if there is none, and the errors of the command.
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
            from mcpd.clients.errors import error_object

            write_json(error_object(fault))
        raise with_advice(fault, args) from error


def scope(args: argparse.Namespace) -> Scope:
    """Return the scope of the configurations; the clients' files are the caller's own in either scope."""
    return Scope.SYSTEM if args.system else Scope.USER


def service(args: argparse.Namespace) -> Orchestration:
    """Open the configurations of the scope, read-only if the caller may not write them."""
    from mcpd.clients.service import Orchestration  # needs the libraries from run()

    paths, whose = from_environment(), scope(args)
    root = paths.layout(whose).orchestration
    return Orchestration(paths, whose, writable=whose is Scope.USER or is_writable(root))


def changing(args: argparse.Namespace) -> Orchestration:
    """Open the configurations of the scope for changes.

    Raises :class:`~mcpd.errors.NotAuthorized` if the caller may not change them.
    """
    found = service(args)
    if args.system and not is_writable(found.tree.root):
        raise NotAuthorized(
            f"only root may change the system's configurations in {found.tree.root}: use sudo, or leave out --system"
            " for your own"
        )
    return found


def is_writable(root: Path) -> bool:
    """Return whether the caller may write to the directory *root*, or create it."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    return os.access(existing, os.W_OK | os.X_OK)


def stale_note(configurations: Orchestration, client_id: str, profile_id: str) -> None:
    """Print a note if the installed servers changed since the newest configuration was made from them."""
    if configurations.is_stale(client_id, profile_id):
        note(
            f"The installed servers have changed since; 'mcpctl client publish {client_id}{profile_option(profile_id)}'"
            " publishes them."
        )


def draft_note(configurations: Orchestration, client_id: str, profile_id: str) -> None:
    """Print a note if there is an unpublished draft."""
    if configurations.tree.draft(client_id, profile_id).exists():
        note(
            f"There is an unpublished draft; 'mcpctl client publish {client_id}{profile_option(profile_id)}'"
            " publishes it."
        )


def artifact_of(args: argparse.Namespace, configurations: Orchestration) -> str | None:
    """Return the id from ``--artifact``, completed if it is an unambiguous prefix; ``None`` without the option."""
    given: str | None = args.artifact
    if given is None or not _ID_PREFIX.fullmatch(given):
        return given
    known = {each.artifact_id for each in configurations.releases.history(args.client, args.profile)}
    found = [each for each in known if each.startswith(given)]
    return found[0] if len(found) == 1 else given


def profile_option(profile_id: str) -> str:
    """Return the option for *profile_id* in a suggested command; empty for the default profile."""
    return "" if profile_id == DEFAULT_PROFILE else f" --profile {profile_id}"


def with_advice(error: McpdError, args: argparse.Namespace) -> McpdError:
    """Return *error*; if it comes from the orchestration service, add the mcpctl command that helps."""
    from mcpd.clients import errors

    asked = [args.client] if "client" in args else getattr(args, "clients", None) or [""]
    match error:
        case errors.ClientNotFound():
            _warn_of_descriptions(args)
            meant = _other(error.client_id, _names(error, "available_clients"))
            return NotFound(f"{error.message}; {meant}'mcpctl client list' lists the known clients")
        case errors.ProfileNotFound():
            known = ", ".join(_names(error, "available_profiles"))
            return NotFound(f"{error.message}; it has {known or 'none'}")
        case errors.ArtifactNotFound():
            return NotFound(f"{error.message}; 'mcpctl client history {asked[0]}' lists the published ones")
        case errors.ServerNotFound():
            what, _, _ = error.message.partition(";")
            command = f"client draft show {asked[0]}{profile_option(args.profile)}" if "names" in args else "list"
            return NotFound(f"{what}; 'mcpctl {command}' lists the servers")
        case _:
            return error


def short(artifact_id: str) -> str:
    """Return an abbreviated id of a configuration."""
    return artifact_id[:12]


def _warn_of_descriptions(args: argparse.Namespace) -> None:
    """Warn about broken descriptions of clients, since these may be the reason why a client is unknown."""
    from mcpd.clients.families import Families

    for problem in Families.of(from_environment(), scope(args)).problems:
        warn(problem)


def _names(error: McpdError, member: str) -> list[str]:
    members = getattr(error, "members", {})
    return [str(name) for name in members.get(member, ())]


def _other(unknown: str, available: Sequence[str]) -> str:
    """Return ``did you mean …?`` with the name in *available* closest to *unknown*; empty if none is similar."""
    import difflib

    near = difflib.get_close_matches(unknown, available, 1)
    return f"did you mean {near[0]!r}? " if near else ""
