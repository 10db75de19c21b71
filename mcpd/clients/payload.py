# SPDX-License-Identifier: LGPL-2.1-or-later
"""Payloads: the servers of one configuration, generated from the installed servers, and their canonical form."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    ValidationError,
)

from mcpd.clients.errors import InvalidInput
from mcpd.model import check_json
from mcpd.model.base import MAX_DEPTH, first_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from mcpd.clients.families import Family
    from mcpd.clients.profiles import Profile
    from mcpd.store.index import InstalledServer

ARTIFACT_ID: Final = re.compile(r"[a-f0-9]{64}", re.ASCII)
"""Pattern of the id of an artifact; for ``fullmatch``."""

_LEAVES: Final = (str, int, float, type(None))


def canonical(value: JsonValue) -> bytes:
    """Return the bytes of *value* that are hashed and signed.

    Raises :class:`~mcpd.clients.errors.InvalidInput` for values without such bytes, or that readers take for different
    values: numbers that are not finite or have thousands of digits, lone surrogates, NUL, keys that are not strings,
    and nesting deeper than :data:`mcpd.model.base.MAX_DEPTH` levels.
    """
    try:
        _check_types(value)
        check_json(value)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except ValueError as error:
        raise InvalidInput(f"This cannot be signed: {error}.") from error
    return text.encode("ascii")


def id_of(payload: JsonValue) -> str:
    """Return the id of *payload*: the SHA-256 of its :func:`canonical` bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(payload)).hexdigest()


def timestamp(moment: datetime) -> str:
    """Return the aware *moment* as it is written and signed: ISO 8601 in UTC, with microseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class _Payload(BaseModel):
    """The form of every configuration; its entries are checked by ``validation``."""

    model_config = ConfigDict(extra="allow", strict=True)

    servers: dict[str, dict[str, JsonValue]] = Field(alias="mcpServers")


def _plausible(moment: datetime) -> datetime:
    if not 1970 <= moment.year < 9000:
        raise ValueError("the time is out of range")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_plausible), PlainSerializer(timestamp, when_used="json")]
"""A time in a file that can be calculated with and expressed in UTC."""


def parse_payload(value: JsonValue, what: str) -> dict[str, JsonValue]:
    """Return *value* if it is an object whose ``mcpServers`` is an object of objects; further keys stay.

    *what* names it in messages. Raises :class:`~mcpd.clients.errors.InvalidInput` for anything else, and for text,
    numbers and nesting that no artifact can contain.
    """
    if not isinstance(value, dict):
        raise InvalidInput(f"{what}: not an object with 'mcpServers'")
    try:
        check_json(value)
        _Payload.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise InvalidInput(f"{what}: {first_fault(error)}", {"field": place}) from error
    except ValueError as error:
        raise InvalidInput(f"{what}: {error}") from error
    return value


def _check_types(value: object) -> None:
    """Raise ValueError for values that are not JSON but would be written as if they were: ``{1: …}``.

    It checks as deep as :func:`~mcpd.model.check_json`, which refuses deeper nesting.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        raise ValueError(f"the key {str(key)[:40]!a} is not a string")  # noqa: TRY004 - one kind of fault
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif not isinstance(item, _LEAVES):
                raise ValueError(f"{type(item).__name__} is not JSON")  # noqa: TRY004 - likewise
        level = below


SERVERS: Final = "mcpServers"
"""The only key of a payload, whatever client it is for."""
COMMAND: Final = "mcpctl"
RUN: Final = "run"
TOKEN: Final = "MCPD_BRIDGE_TOKEN"  # noqa: S105 - the name of a variable
"""Variable with the token for the bridge; ``mcpctl token`` prints its value."""
BRIDGE: Final = "http://127.0.0.1:0"
"""Stands for the bridge of the user who deploys a configuration, as each has another port.

Nothing can listen on port 0, so a client that uses it literally sends its token nowhere.
"""
_MOST_NAMED: Final = 10
"""Maximum number of servers that one warning names."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Configuration made from the installed servers."""

    payload: dict[str, JsonValue]
    warnings: list[str] = field(default_factory=list)
    """Sentences about limits of the client and how the configuration was adapted to them."""


def generate(servers: Iterable[InstalledServer], family: Family, profile: Profile) -> Generated:
    """Return the configuration of *profile* for *family*: those of *servers* that are usable and belong to it.

    The same servers make the same payload, in any order. Missing values are not checked: they can be set later.
    """
    maker = _Maker(family, profile)
    chosen = {server.id: server for server in servers if _belongs(server, profile)}
    entries = {server_id: maker.entry(server_id) for server_id in maker.kept(sorted(chosen))}
    return Generated({SERVERS: entries}, maker.warnings())


def run_entry(server_id: str) -> dict[str, JsonValue]:
    """Return the entry of the installed server *server_id*, by which a client starts it through mcpd."""
    return {"command": COMMAND, "args": [RUN, server_id]}


def uses_bridge(entries: Mapping[str, JsonValue]) -> bool:
    """Return True if a URL in *entries* stands for the bridge of the user who deploys them."""
    return rebased(entries, BRIDGE, "") != entries


def rebased(entries: Mapping[str, JsonValue], old: str, new: str) -> dict[str, JsonValue]:
    """Return *entries* with URLs of the bridge at *old* replaced by those of the bridge at *new*."""
    found = dict(entries)
    for name, entry in entries.items():
        url = entry.get("url") if isinstance(entry, dict) else None
        if isinstance(entry, dict) and isinstance(url, str) and url.startswith(f"{old}/"):
            found[name] = {**entry, "url": new + url.removeprefix(old)}
    return found


def _belongs(server: InstalledServer, profile: Profile) -> bool:
    is_usable = server.manifest is not None and not (server.problem or server.entry.disabled or server.entry.problem)
    return (
        is_usable
        and server.layer in profile.layers
        and (profile.scripts or server.script is None)
        and profile.takes(server.id)
    )


class _Maker:
    """Generator of entries, which collects each warning once."""

    def __init__(self, family: Family, profile: Profile) -> None:
        self._family = family
        self._profile = profile
        self._warned: dict[str, list[str]] = {}

    def kept(self, server_ids: list[str]) -> list[str]:
        """Return those of *server_ids* that fit the client's limit."""
        most = self._family.limitations.max_servers
        if most is None or len(server_ids) <= most:
            return server_ids
        text = f"{self._family.name} supports at most {most} servers; omitted"
        self._warned[text] = server_ids[most:]
        return server_ids[:most]

    def entry(self, server_id: str) -> JsonValue:
        """Return the entry of one server."""
        if self._profile.transport != "stdio" and (entry := self._url(server_id)) is not None:
            return entry
        entry = run_entry(server_id)
        if env := self._environment(server_id):
            entry["env"] = env
        return entry

    def warnings(self) -> list[str]:
        """Return one sentence per warning, with the servers that it is about."""
        return [f"{text}: {_listed(server_ids)}" for text, server_ids in self._warned.items()]

    def _url(self, server_id: str) -> dict[str, JsonValue] | None:
        """Return the entry of the server at the bridge; None if the client does not support that."""
        name, instead = self._family.name, f"started with '{COMMAND} {RUN}' instead"
        if "http" not in self._family.transports():
            self._warn(f"{name} does not connect to URLs; {instead}", server_id)
            return None
        placeholder = self._family.placeholder(TOKEN, "headers")
        if placeholder is None:
            self._warn(f"{name} cannot substitute a token where it connects to a URL; {instead}", server_id)
            return None
        for variable in self._profile.variables_of(server_id):
            self._warn(f"the variable {variable} cannot be passed on to servers at a URL", server_id)
        return {
            "type": "http",
            "url": f"{self._profile.url.rstrip('/')}/mcp/{quote(server_id, safe='')}",
            "headers": {"Authorization": f"Bearer {placeholder}"},
        }

    def _environment(self, server_id: str) -> dict[str, JsonValue]:
        """Return the variables that the client passes from its own environment."""
        env: dict[str, JsonValue] = {}
        most = self._family.limitations.max_env_vars_per_server
        for variable in self._profile.variables_of(server_id):
            placeholder = self._family.placeholder(variable, "env")
            if placeholder is None:
                self._warn(
                    f"{self._family.name} does not substitute variables, so {variable} is not passed on", server_id
                )
            elif most is not None and len(env) >= most:
                self._warn(
                    f"{self._family.name} supports at most {most} variables, so {variable} is omitted", server_id
                )
            else:
                env[variable] = placeholder
        return env

    def _warn(self, text: str, server_id: str) -> None:
        self._warned.setdefault(text, []).append(server_id)


def _listed(server_ids: list[str]) -> str:
    shown = ", ".join(server_ids[:_MOST_NAMED])
    more = len(server_ids) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
