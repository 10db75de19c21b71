# SPDX-License-Identifier: LGPL-2.1-or-later
"""Address, headers and keys of the remote server, from the private manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mcpd.errors import ConfigMissing, InvalidConfig, InvalidManifest
from mcpd.model import Manifest, Target, TransportType, load_json
from mcpd.model.placeholders import as_text, expand, placeholders
from mcpd.model.transport import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.model import JsonValue, Transport

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_OURS: Final = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host",
        "last-event-id", "mcp-session-id", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers that the transport itself sets, or that would break its framing."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote server."""

    id: str
    type: TransportType
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    place: str
    """The URL for messages, without possible secrets."""
    keys: tuple[str, ...]
    """The configuration keys of credentials; empty if the manifest has none."""
    secret: frozenset[str] = frozenset()
    """Those of :attr:`keys` that are set as secrets."""

    def how_to_set(self) -> str:
        """Return the advice for missing or refused credentials."""
        if not self.keys:
            return (
                "give them to it as a header, by a configurable property with the target 'header' or under 'headers' of"
                " its transport"
            )
        ways = (f"mcpctl {'secret' if key in self.secret else 'config'} set {self.id} {key}" for key in self.keys)
        return f"set {' or '.join(self.keys)}, for example with: {next(ways)}"


def read(data: bytes, origin: str) -> Remote:
    """Return the remote server in the manifest *data*, read from *origin*.

    Raises :class:`~mcpd.errors.InvalidManifest`, :class:`~mcpd.errors.InvalidConfig` and
    :class:`~mcpd.errors.ConfigMissing`; the messages contain no values.
    """
    manifest = Manifest.parse(load_json(data, origin), origin)
    transport = manifest.remote
    if transport is None or not isinstance(transport.type, TransportType):
        raise InvalidManifest(f"{manifest.id}: none of its transports is of type sse, streamable-http or websocket")
    values = {p.key: p.default for p in manifest.configurable_properties if p.default is not None} | manifest.config
    text = transport.address
    url = _url(manifest, transport.type, text, values)
    parts = urlsplit(url)
    headers, keys = _headers(manifest, transport, values)
    named = [*placeholders(text), *keys]
    sensitive = {p.key for p in manifest.configurable_properties if p.sensitive}
    shown = "" if sensitive & set(placeholders(text)) else parts.path
    return Remote(
        id=manifest.id,
        type=transport.type,
        url=url,
        headers=headers,
        place=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{shown}",
        keys=tuple(sorted(dict.fromkeys(named), key=lambda key: key not in sensitive)),
        secret=frozenset(sensitive),
    )


def _url(manifest: Manifest, kind: TransportType, text: str, values: Mapping[str, JsonValue]) -> str:
    found = expand(text, values)
    if not found:
        unset = ", ".join(key for key in placeholders(text) if values.get(key) in (None, "", []))
        raise ConfigMissing(f"{manifest.id}: its URL needs a value for {unset}; set it with: mcpctl config set")
    try:
        parts = urlsplit(found[0])
        usable = found[0].lower().startswith(SCHEMES[kind]) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or len(found) != 1 or not found[0].isprintable() or " " in found[0]:
        schemes = " or ".join(SCHEMES[kind])
        raise InvalidConfig(
            f"{manifest.id}: the URL of its {kind} transport is not usable: it begins with {schemes}, names a host and"
            " holds no spaces"
        )
    return found[0]


def _headers(
    manifest: Manifest, transport: Transport, values: Mapping[str, JsonValue]
) -> tuple[dict[str, str], list[str]]:
    """Return the headers, and the configuration keys in them, whether set or not."""
    templates = transport.header_texts()
    used = [key for text in templates.values() for key in placeholders(text)]
    headers = {name: filled[0] for name, text in templates.items() if (filled := expand(text, values))}
    keys = list(used)
    for item in manifest.configurable_properties:
        if item.target is Target.HEADER and item.key not in used:
            keys.append(item.key)
            value = values.get(item.key)
            if value not in (None, ""):
                headers[item.key] = as_text(value)
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _OURS:
            raise InvalidManifest(f"{manifest.id}: {name[:200]!r} cannot be a header of its requests")
        if not _VALUE.fullmatch(value):
            raise InvalidConfig(
                f"{manifest.id}: the value of the header {name!r} holds a line's end or a character that is not ASCII"
            )
    return {name: value.strip() for name, value in headers.items()}, keys
