# SPDX-License-Identifier: LGPL-2.1-or-later
"""Access to the bridge: Host, Origin, the peer's uid or the bearer token, CORS."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, NotAuthorized, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bridge.callers import Admission, Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.http.sign_in import SignIn
    from mcpd.bridge.upstream.hops import Passes

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/@?#\s]+)(?::\d{1,5})?", re.IGNORECASE)
_ORIGIN: Final = re.compile(r"https?://(.+)", re.IGNORECASE)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CHALLENGE: Final = ((b"www-authenticate", b'Bearer realm="mcp"'),)
_EXPOSED: Final = (
    (b"access-control-expose-headers", b"Mcp-Session-Id, MCP-Protocol-Version, Retry-After, X-Request-Id"),
    (b"vary", b"Origin"),
)
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-max-age", b"600"),
)
_ALLOWED: Final = (
    "Authorization, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Last-Event-ID, Mcp-Method, Mcp-Name, "
    "traceparent, tracestate, baggage, X-Request-Id"
)
_OF_ARGUMENT: Final = re.compile(r"mcp-param-[a-z0-9_-]{1,100}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Peer:
    """The socket's information about a client: its uid on a Unix socket, ``None`` on TCP."""

    uid: int | None
    client: tuple[str, int | None] | None = None
    """On TCP the address and port of its end."""
    server: tuple[str, int | None] | None = None
    """The same of our end."""
    is_server: bool = False
    """It is one of the servers that may call others, whatever its uid."""


@dataclass(slots=True)
class Gate:
    """The rules of one bridge."""

    admission: Admission
    allowed_origins: frozenset[str] = frozenset()
    """Web origins beside those of loopback; may be replaced at any time."""
    allowed_hosts: frozenset[str] = frozenset()
    """Names beside those of loopback."""
    any_address: bool = False
    """Accept every literal address as Host: no name was resolved, so none was rebound."""
    sign_in: SignIn | None = None
    """The browsers that come in by a cookie, where there can be such."""
    passes: Passes | None = None
    """Those of servers that may call others, where there can be such."""
    edition: int = 0
    """Raised whenever somebody who was let in may have to stay outside from now on, or the other way round."""
    _known_hosts: set[bytes] = field(init=False, default_factory=set)

    def check_host(self, headers: Mapping[bytes, bytes], peer: Peer) -> bool:
        """Return True if the Host header is one of ours; a unix socket has no name to be rebound."""
        if peer.uid is not None:
            return True
        host = headers.get(b"host", b"")
        if host in self._known_hosts:
            return True
        if not self._host_allowed(host.decode("latin-1")):
            return False
        if len(self._known_hosts) < 64:
            self._known_hosts.add(host)
        return True

    def _host_allowed(self, host: str) -> bool:
        found = _AUTHORITY.fullmatch(host)
        if found is None:
            return False
        name = found.group(1).lower()
        if name in _LOOPBACK or name in self.allowed_hosts:
            return True
        return self.any_address and _is_address(name.strip("[]"))

    def check_origin(self, origin: bytes, host: bytes = b"") -> Headers:
        """The CORS headers for a page of *origin*; raises :class:`~mcpd.errors.NotAuthorized` for a foreign one.

        A page that came from *host*, as the checked header Host has it, is one of this bridge.
        """
        if host and origin.lower() in {b"http://" + host.lower(), b"https://" + host.lower()}:
            return ((b"access-control-allow-origin", origin), *_EXPOSED)
        text = origin.decode("latin-1")
        site = _ORIGIN.fullmatch(text)
        authority = _AUTHORITY.fullmatch(site.group(1)) if site is not None else None
        if text in self.allowed_origins or (authority is not None and authority.group(1).lower() in _LOOPBACK):
            return ((b"access-control-allow-origin", origin), *_EXPOSED)
        raise NotAuthorized(
            f"pages of the origin {text[:200]!r} may not use this bridge; see bridge.allowed_origins (--allow-origin)"
        )

    def identify(self, headers: Mapping[bytes, bytes], peer: Peer, *, safe: bool = False) -> Caller:
        """The caller, to whom sessions are bound; *safe* tells that the request changes nothing.

        Raises :class:`~mcpd.errors.NotAuthorized` for a uid that may not come in and
        :class:`~mcpd.errors.Unauthenticated` for a missing or wrong token.
        """
        if peer.is_server:
            if self.passes is None:
                raise Unauthenticated("servers cannot call each other through this bridge")
            return self.passes.caller(headers)
        if peer.uid is not None:
            return self.admission.by_uid(peer.uid)
        given = headers.get(b"authorization", b"")
        if not given and self.sign_in is not None and b"cookie" in headers:
            caller = self.sign_in.caller(headers, peer, safe=safe)
            if caller is not None:
                return caller
        return self.admission.by_token(given[7:].strip() if given[:7].lower() == b"bearer " else b"")


def challenge(fault: McpdError) -> Headers:
    """The headers that belong to the refusal *fault*."""
    return _CHALLENGE if isinstance(fault, Unauthenticated) else ()


def preflight(headers: Mapping[bytes, bytes]) -> Headers:
    """The headers of the answer to a CORS preflight, beside those for the origin."""
    wanted = headers.get(b"access-control-request-headers", b"").decode("latin-1")
    # The headers of a tool's arguments are named by its server (2026-07-28).
    names = [name.strip() for name in wanted.split(",") if _OF_ARGUMENT.fullmatch(name.strip())]
    extra: Headers = ((b"access-control-allow-headers", ", ".join((_ALLOWED, *names[:50])).encode("latin-1")),)
    if headers.get(b"access-control-request-private-network") == b"true":
        extra += ((b"access-control-allow-private-network", b"true"),)
    return (*_PREFLIGHT, *extra)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
