# SPDX-License-Identifier: LGPL-2.1-or-later
"""How ``mcpctl client`` shows configurations and differences to people.

What client files hold may be secret, so values of variables and headers are shown only where they are placeholders, and
others only where they do not look like a secret.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, paint, table, write
from mcpd.servers.orchestration.secret_values import PLACEHOLDER, literal_secrets

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from mcpd.model import JsonValue

HIDDEN: Final = "(hidden)"
_WIDTH: Final = 160
_PLAIN: Final = re.compile(r"type|command|cwd|url|args(\[\d+\])?", re.ASCII)
"""The paths of values that are no secret unless they look like one; in an entry that cannot be read are others, too."""
_HARMLESS: Final = re.compile(rf"((?i:bearer|basic|token) )?({PLACEHOLDER.pattern})?", re.ASCII)
_LINES: Final = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def servers_table(payload: Mapping[str, Any]) -> None:
    """Print the servers of *payload*, what each runs and which variables it gets."""
    rows = []
    for name, entry in payload.get("mcpServers", {}).items():
        # A draft may have been made when less was refused.
        args, held = entry.get("args", []), (entry.get("env"), entry.get("headers"))
        words = args if isinstance(args, list) else [args]
        variables = [each for fields in held if isinstance(fields, dict) for each in fields]
        runs = str(entry.get("url") or " ".join([str(entry.get("command", "")), *(_word(str(word)) for word in words)]))
        rows.append((name, ", ".join(variables), runs))
    table(("SERVER", "VARIABLES", "RUNS"), rows)


def print_changes(changes: Mapping[str, Any], local: Mapping[str, Any] | None = None) -> None:
    """Print what *changes*, a comparison of two payloads, holds: one line for each server and changed value.

    *local* are the entries of the first one, if they come from a file that anybody may have written.
    """
    for line, colour in _changes(changes, local or {}):
        write(paint(clean(line), colour))


def masked_changes(changes: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, JsonValue]:
    """*changes* for programs, without what the *local* entries, from a file that anybody may have written, keep secret.

    What replaces it was published, and so holds no secret.
    """
    modified: list[JsonValue] = []
    for server in changes["servers_modified"]:
        secret = _secrets(local.get(server["server_id"]))
        masked: list[JsonValue] = [
            change | {"old_value": _veiled(change["path"], change["old_value"], secret)} for change in server["changes"]
        ]
        modified.append({**server, "changes": masked})
    return {**changes, "servers_modified": modified}


def print_findings(report: Mapping[str, Any]) -> None:
    """Print the errors, warnings and violations of *report*, one line each."""
    for member, said, colour in (
        ("errors", "error", "red"),
        ("violations", "policy", "red"),
        ("warnings", "warning", "yellow"),
    ):
        for found in report[member]:
            code = found.get("code") or found["rule"]
            write(f"{paint(said + ':', colour)} {clean(found['message'])} ({clean(code)})")


def print_diff(text: str) -> None:
    """Print *text*, a unified diff, in the colours of diffs; tabs stay, as they are what differs in some files."""
    for line in text.splitlines():
        colour = next((colour for start, colour in _LINES if line.startswith(start)), "")
        write(paint(clean(line, lines=True), colour))


def moment(time: str) -> str:
    """*time*, ISO 8601, as it is shown: to the second."""
    return re.sub(r"\.\d+", "", time)


def _changes(changes: Mapping[str, Any], local: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in changes["servers_added"]:
        yield f"+ {name}", "green"
    for name in changes["servers_removed"]:
        yield f"- {name}", "red"
    for server in changes["servers_modified"]:
        yield f"~ {server['server_id']}", "yellow"
        secret = _secrets(local.get(server["server_id"]))
        for change in server["changes"]:
            path = change["path"]
            old, new = (_shown(path, change[key], secret) for key in ("old_value", "new_value"))
            yield f"    {path}: {old} → {new}", ""


def _secrets(entry: JsonValue) -> set[str]:
    """The paths in *entry* that hold secrets."""
    return {path for path, _ in literal_secrets(entry)} if isinstance(entry, dict) else set()


def _shown(path: str, value: JsonValue, secret: Container[str]) -> str:
    if value is None:
        return "(none)"
    text = json.dumps(_veiled(path, value, secret), ensure_ascii=False)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _veiled(path: str, value: JsonValue, secret: Container[str]) -> JsonValue:
    """*value*, which is at *path* of an entry, without what may be secret; *secret* are the paths of what surely is."""
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
    import shlex  # noqa: PLC0415

    return shlex.quote(str(value))
