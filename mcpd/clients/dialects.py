# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of entries between the form of a payload and the dialect of a client.

The payload has one form for all clients; the names of fields, lists with program and arguments, and whatever else a
client needs in an entry come from its family.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from mcpd.clients.errors import InvalidInput
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.clients.families import Family, Remote, Stdio, Transport
    from mcpd.model import JsonValue

_AUTHORIZATION: Final = "Authorization"
_BEARER: Final = "Bearer "


def to_client(family: Family, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, JsonValue]:
    """Return the *entries* of a payload in the dialect of *family*, in the same order.

    They were validated before. Raises :class:`~mcpd.clients.errors.InvalidInput`, naming the server, for one that the
    client cannot express.
    """
    return {name: _write(family, name, entry) for name, entry in entries.items()}


def from_client(family: Family, entries: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the *entries* of a client's file in the form of a payload.

    Fields that a payload does not have are omitted, and so are entries that cannot be read.
    """
    found: dict[str, JsonValue] = {}
    for name, entry in entries.items():
        if isinstance(entry, dict):
            read = _read(family, entry)
            if read is not None:
                found[name] = read
    return found


def _write(family: Family, name: str, entry: Mapping[str, Any]) -> JsonValue:
    if "command" in entry:
        return _write_local(family, name, entry)
    is_http = entry["type"] == "http"
    form = family.http if is_http else family.sse
    if form is None:
        way = "Streamable HTTP" if is_http else "HTTP with server-sent events"
        raise InvalidInput(
            f"{_server(name)}: {family.name} does not support servers over {way} in its file; give the server a command"
        )
    return _write_remote(family, form, name, entry)


def _write_local(family: Family, name: str, entry: Mapping[str, Any]) -> JsonValue:
    form = family.stdio
    written = _head(form, name)
    args = entry.get("args", [])
    if form.args is None:
        written[form.command] = [entry["command"], *args]
    else:
        written[form.command] = entry["command"]
        written[form.args] = list(args)
    env, passed = _split_env(family, form, name, entry.get("env", {}))
    if env:
        if form.env is None:
            raise InvalidInput(f"{_server(name)}: env: {family.name} cannot set variables for servers")
        written[form.env] = dict(env)
    if passed and form.env_names is not None:
        written[form.env_names] = list(passed)
    if "cwd" in entry:
        if form.cwd is None:
            raise InvalidInput(f"{_server(name)}: cwd: {family.name} cannot start servers in a specific directory")
        written[form.cwd] = entry["cwd"]
    return {**written, **deepcopy(form.constants)}


def _split_env(family: Family, form: Stdio, name: str, env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables with literal values, and the names of those that are passed on."""
    if not _by_name(family):
        return dict(env), []
    kept: dict[str, str] = {}
    passed: list[str] = []
    for variable, value in env.items():
        if not family.variables_in(value, "env"):
            kept[variable] = value
        elif form.env_names is not None and value == family.placeholder(variable, "env"):
            passed.append(variable)
        else:
            raise InvalidInput(
                f"{_server(name)}: env: {family.name} can only pass on variables unchanged under their own"
                f" names; fix {printable(variable)}"
            )
    return kept, passed


def _write_remote(family: Family, form: Remote, name: str, entry: Mapping[str, Any]) -> JsonValue:
    written = _head(form, name)
    written[form.url] = entry["url"]
    kept: dict[str, JsonValue] = {}
    named: dict[str, JsonValue] = {}
    for header, value in entry.get("headers", {}).items():
        if not (_by_name(family) and family.variables_in(value, "headers")):
            kept[header] = value
        elif form.bearer and header == _AUTHORIZATION and (token := _token(family, value)):
            written[form.bearer] = token
        elif form.header_names and (variable := _whole(family, value)):
            named[header] = variable
        else:
            raise InvalidInput(
                f"{_server(name)}: headers: {family.name} takes variables only for {' and '.join(_ways(form))};"
                f" fix {printable(header)}"
            )
    if kept:
        if form.headers is None:
            raise InvalidInput(f"{_server(name)}: headers: {family.name} cannot send headers")
        written |= {form.headers_in: {form.headers: kept}} if form.headers_in else {form.headers: kept}
    if named and form.header_names:
        written[form.header_names] = named
    return {**written, **deepcopy(form.constants)}


def _by_name(family: Family) -> bool:
    return family.expansion is not None and family.expansion.names_only


def _ways(form: Remote) -> list[str]:
    """Return the ways in which an entry of this kind names variables."""
    ways = ["a bearer token"] if form.bearer else []
    if form.header_names:
        ways.append("a whole header")
    return ways or ["other servers"]


def _token(family: Family, value: str) -> str | None:
    """Return the variable if *value* is a bearer token from exactly one variable; else None."""
    return _whole(family, value.removeprefix(_BEARER)) if value.startswith(_BEARER) else None


def _head(form: Stdio | Remote, name: str) -> dict[str, JsonValue]:
    head: dict[str, JsonValue] = {} if form.name is None else {form.name: name}
    return {**head, **{field: values[0] for field, values in form.marks.items()}}


def _whole(family: Family, value: str) -> str | None:
    """Return the variable if the header *value* consists of exactly one variable; else None."""
    found = family.variables_in(value, "headers")
    return found[0] if len(found) == 1 and value == family.placeholder(found[0], "headers") else None


def _server(name: str) -> str:
    return f"server '{printable(name)}'"


def _is_list(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_map(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _read(family: Family, entry: Mapping[str, JsonValue]) -> JsonValue:
    """Return *entry* in the form of a payload; None if it cannot be read."""
    kinds: list[tuple[Transport, Remote]] = []
    if family.http is not None:
        kinds.append(("http", family.http))
    if family.sse is not None:
        kinds.append(("sse", family.sse))
    there = [(kind, form) for kind, form in kinds if _url_field(form, entry)]
    if family.stdio.command in entry:
        return None if there else _read_local(family, entry)
    marked = [(kind, form) for kind, form in there if _is_marked(form, entry)]
    unmarked = [(kind, form) for kind, form in there if _marks(form, entry) is None and form.unmarked]
    for kind, form in marked + unmarked:
        return _read_remote(family, kind, form, entry)
    return None


def _url_field(form: Remote, entry: Mapping[str, JsonValue]) -> str | None:
    return next((field for field in (form.url, *form.aliases) if field in entry), None)


def _is_marked(form: Remote, entry: Mapping[str, JsonValue]) -> bool:
    """Return True if *entry* is of this kind and no other: a field that only this kind has is a mark as well."""
    marks = _marks(form, entry)
    return marks is True or (marks is None and _url_field(form, entry) in form.aliases)


def _marks(form: Stdio | Remote, entry: Mapping[str, JsonValue]) -> bool | None:
    """Return True if *entry* has the marks of *form*; None if it lacks some and contradicts none."""
    if any(entry[field] not in values for field, values in form.marks.items() if field in entry):
        return False
    return True if form.marks.keys() <= entry.keys() else None


def _read_local(family: Family, entry: Mapping[str, JsonValue]) -> JsonValue:
    form = family.stdio
    if _marks(form, entry) is False:
        return None
    command = entry[form.command]
    args: object
    if form.args is None:
        if not _is_list(command) or not command:
            return None
        command, args = command[0], command[1:]
    else:
        args = entry.get(form.args, [])
    env = entry.get(form.env, {}) if form.env else {}
    names = entry.get(form.env_names, []) if form.env_names else []
    cwd = entry.get(form.cwd) if form.cwd else None
    if not isinstance(command, str) or not command or not _is_list(args) or not _is_map(env) or not _is_list(names):
        return None
    if _by_name(family) and any(family.variables_in(value, "env") for value in env.values()):
        return None  # literal for the client; in a payload it would be a placeholder
    found: dict[str, JsonValue] = {"command": command, "args": _json(args)}
    variables = {**env, **_passed(family, names)}
    if variables:
        found["env"] = {**variables}
    if isinstance(cwd, str) and cwd:
        found["cwd"] = cwd
    return found


def _passed(family: Family, names: Sequence[str]) -> dict[str, str]:
    """Return the variables *names* with their placeholders, without those that no placeholder can name."""
    found: dict[str, str] = {}
    for name in names:
        try:
            placeholder = family.placeholder(name, "env")
        except InvalidInput:
            continue
        if placeholder is not None:
            found[name] = placeholder
    return found


def _read_remote(family: Family, kind: Transport, form: Remote, entry: Mapping[str, JsonValue]) -> JsonValue:
    url = entry[_url_field(form, entry) or form.url]
    holder = entry.get(form.headers_in, {}) if form.headers_in else entry
    headers = holder.get(form.headers, {}) if form.headers and isinstance(holder, Mapping) else {}
    named = entry.get(form.header_names, {}) if form.header_names else {}
    bearer = entry.get(form.bearer) if form.bearer else None
    if not isinstance(url, str) or not url or not _is_map(headers) or not _is_map(named):
        return None
    if _by_name(family) and any(family.variables_in(value, "headers") for value in headers.values()):
        return None
    found = dict(headers)
    try:
        for header, variable in named.items():
            found[header] = family.placeholder(variable, "headers") or ""
        if isinstance(bearer, str):
            found[_AUTHORIZATION] = f"{_BEARER}{family.placeholder(bearer, 'headers')}"
    except InvalidInput:
        return None
    read: dict[str, JsonValue] = {"type": kind, "url": url}
    if found:
        read["headers"] = {**found}
    return read


def _json(items: Sequence[str]) -> list[JsonValue]:
    return [*items]
