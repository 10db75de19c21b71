# SPDX-License-Identifier: LGPL-2.1-or-later
"""The servers in the configuration file of an MCP client (``mcpServers`` and its relatives), as entries to install.

What a file says of a server that mcpd cannot keep to is a problem, and the server is left out. Credentials are taken
out of the entries, and paths that arguments and variables name become permissions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.formats.client_entries import ClientEntry
from mcpd.formats.client_values import Found, Values
from mcpd.formats.launchers import package_of
from mcpd.formats.local_commands import NIX_STORE, local_command, permissions_of
from mcpd.model.base import ID_PATTERN, RESERVED_IDS, Problem, check_json, id_from_name, printable
from mcpd.model.entry import NETWORK, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mcpd.formats.client_values import FindSecrets
    from mcpd.model import JsonValue

_KEYS: Final = (("mcpServers",), ("servers",), ("mcp", "servers"), ("mcp",), ("context_servers",), ("mcp_servers",),
                ("extensions",))  # fmt: skip
"""Where clients keep their servers."""
_THEIRS: Final = frozenset({("mcpServers",), ("context_servers",), ("mcp_servers",)})
"""Those keys that mean nothing else anywhere."""
_MOST: Final = 1_000
"""Servers of one file."""
_OWN: Final = frozenset({"mcpctl", "mcpd", "mcpd-bridge", "mcpd-remote"})
_MCP_REMOTE_VALUES: Final = frozenset(
    {"--header", "--transport", "--host", "--resource", "--auth-timeout", "--ignore-tool", "--static-oauth-client-info"}
    | {"--static-oauth-client-metadata"}
)


@dataclass(frozen=True, slots=True)
class Imported:
    """One server."""

    entry: dict[str, Any]
    """Without credentials."""
    secrets: dict[str, str] = field(repr=False)
    """The credentials, by the key of the property they are for."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The servers of a file that can be installed, and what is to be said of the others and of these."""

    servers: list[Imported]
    problems: list[Problem]


def is_client_file(document: object) -> bool:
    """Whether *document* looks like a client's file, rather than a registry, whose servers say more of themselves."""
    return any(True for _ in _maps(document))


def servers_of(document: object, origin: str, find_secrets: FindSecrets) -> ImportResult:
    """The servers in *document*, a client's parsed file from *origin* (for messages).

    *find_secrets* gives the fields of a plain entry (``command``, ``args``, ``env``, ``url``, ``headers``, ``cwd``)
    that hold a secret, as ``env.NAME`` or ``args[2]``, each with a reason.

    Raises :class:`~mcpd.errors.InvalidManifest` for a document that holds no servers.
    """
    found = [item for servers in _maps(document) for item in _items(servers)]
    if not found:
        raise InvalidManifest(
            f"{origin}: not the file of a client: no servers under {', '.join('.'.join(key) for key in _KEYS)}"
        )
    if len(found) > _MOST:
        raise InvalidManifest(f"{origin}: {len(found)} servers, at most {_MOST} are read")
    inputs = _at(document, ("inputs",)) or _at(document, ("mcp", "inputs"))
    result = ImportResult([], [])
    taken: set[str] = set()
    for name, raw in found:
        where = f"{origin}: {printable(name)}"
        notes: list[str] = []
        try:
            entry = _read(name, raw, where)
            if entry.disabled:
                notes.append("is switched off in the file, and so was left out")
                continue
            server_id = _id(name, taken)
            result.servers.append(_imported(server_id, name, entry, Values(find_secrets, inputs, where), notes.append))
            taken.add(server_id)
            if server_id != name:
                notes.append(f"is called {server_id} here")
        except InvalidManifest as error:
            result.problems.append(Problem(origin, printable(name), error.message))
        finally:
            result.problems.extend(Problem(origin, printable(name), f"{where}: {note}") for note in notes)
    return result


def _read(name: str, raw: object, where: str) -> ClientEntry:
    """The entry *raw*; the rest of the file, such as what was said to a client, is nobody's business."""
    try:
        check_json({name: raw})
    except ValueError:
        # Which text it is, its message quotes: that may be a credential.
        raise InvalidManifest(
            f"{where}: holds what cannot be written (NUL, half a surrogate pair), or is nested too deeply"
        ) from None
    return ClientEntry.parse(raw, where)


def _maps(document: object) -> Iterator[dict[str, Any] | list[Any]]:
    for path in _KEYS:
        found = _at(document, path)
        if isinstance(found, (dict, list)) and (path in _THEIRS or _holds_entries(found)):
            yield found


def _at(document: object, path: Sequence[str]) -> object:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _holds_entries(found: dict[str, Any] | list[Any]) -> bool:
    return isinstance(found, dict) and any(_is_entry(value) for value in found.values())


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict) or {"transports", "manifest"} & value.keys():
        return False
    if isinstance(value.get("transport"), dict) or isinstance(value.get("source"), dict):
        return False
    return any(key in value for key in ("command", "cmd", "url", "httpUrl", "serverUrl", "uri", "wsUrl"))


def _items(servers: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(servers, dict):
        yield from servers.items()
        return
    for number, server in enumerate(servers):
        name = server.get("name") if isinstance(server, dict) else None
        yield (name if isinstance(name, str) and name else f"server {number}"), server


def _id(name: str, taken: set[str]) -> str:
    base = id_from_name(name)
    server_id, number = base, 1
    while server_id in taken or server_id in RESERVED_IDS or not ID_PATTERN.fullmatch(server_id):
        number += 1
        server_id = f"{base[:120]}-{number}"
    return server_id


def _imported(server_id: str, name: str, entry: ClientEntry, values: Values, note: Callable[[str], None]) -> Imported:
    document: dict[str, Any] = {"id": server_id, "name": name, "summary": entry.description, "version": ""}
    if entry.env_file:
        note("its envFile is not read; give its variables with mcpctl secret set and mcpctl config set")
    for field_name in entry.not_kept:
        note(f"what it says of {field_name} is not kept")
    command = entry.command
    packaged = package_of(command, values.where) if command is not None else None
    if command is not None and command.name in _OWN:
        raise InvalidManifest(f"{values.where}: is a way to mcpd itself")
    if packaged is not None and packaged.source.get("package") == "mcp-remote" and packaged.command is not None:
        entry = _behind(packaged.command.arguments[1:], entry, values.where, note)
        command = packaged = None
    found = values.fill(entry, packaged.command if packaged else command)
    if command is None:
        document["transports"] = [_remote(entry, found)]
    else:
        document |= _program(entry, found, packaged.source if packaged else None, values.where, note)
    if found.properties:
        document["configurableProperties"] = found.properties
    parsed = Entry.parse(document, values.where)
    if parsed.remote is not None:
        try:
            parsed.remote.check_remote()
        except InvalidManifest as error:
            raise InvalidManifest(f"{values.where}: {error.message}") from error
    return Imported(parsed.to_json(), found.secrets)


def _remote(entry: ClientEntry, found: Found) -> dict[str, Any]:
    kind = entry.kind or ("sse" if entry.url.split("?")[0].rstrip("/").endswith("/sse") else "streamable-http")
    if entry.url.lower().startswith(("ws://", "wss://")):
        kind = "websocket"
    address = {"wsUrl" if kind == "websocket" else "url": found.url}
    return {"type": kind, **address} | ({"headers": found.headers} if found.headers else {})


def _program(
    entry: ClientEntry, found: Found, source: dict[str, Any] | None, where: str, note: Callable[[str], None]
) -> dict[str, Any]:
    """The source, transport, variables and permissions of a server that runs here."""
    command = found.command
    if source is None and command is not None:
        local = local_command(command, entry.cwd, where)
        source, command = local.source, local.command
    if entry.cwd and (source is None or source["type"] != "local"):
        note("its working directory is not kept: mcpd starts it in the directory it is installed in")
    named = [*(command.arguments if command else ()), *found.env.values()]
    if command is not None and command.program.startswith(NIX_STORE):
        named.append(command.program)
    paths = list(dict.fromkeys([*found.paths, *permissions_of(named)]))
    document: dict[str, Any] = {"permissions": [NETWORK, *paths]}
    if source is not None:
        document["source"] = source
        document["version"] = source.get("version", "")
    if command is not None:
        document["transports"] = [{"type": "stdio", "command": command.program, "args": list(command.arguments)}]
    dropped = sorted(found.env.keys() & {"PATH", "HOME"})
    if dropped:
        note(f"{' and '.join(dropped)} are left out: mcpd sets them itself")
    if env := {key: text for key, text in found.env.items() if key not in dropped}:
        document["env"] = env
    return document


def _behind(arguments: Sequence[str], entry: ClientEntry, where: str, note: Callable[[str], None]) -> ClientEntry:
    """The server that the program ``mcp-remote`` with *arguments* reaches, which mcpd does itself."""
    words, url, kind = list(arguments), "", ""
    headers: dict[str, str] = {}
    while words:
        word = words.pop(0)
        value = words.pop(0) if word in _MCP_REMOTE_VALUES and words else ""
        if word == "--header":
            name, _, text = value.partition(":")
            headers[name.strip()] = _from_env(text.strip(), entry.env)
        elif word == "--transport":
            kind = {"sse-only": "sse", "http-only": "streamable-http"}.get(value, "")
        elif word in _MCP_REMOTE_VALUES:
            note(f"what the option {word} of mcp-remote says is not kept")
        elif not word.startswith("-") and not url:
            url = word
    if not url:
        raise InvalidManifest(f"{where}: mcp-remote is given no URL")
    return entry.elsewhere(url, kind, headers)


def _from_env(text: str, env: Mapping[str, JsonValue]) -> str:
    for name, value in env.items():
        if isinstance(value, str):
            text = text.replace(f"${{{name}}}", value)
    return text
