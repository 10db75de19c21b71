# SPDX-License-Identifier: LGPL-2.1-or-later
"""Access to the bridge: Host, Origin, the peer's uid or the bearer token, CORS, and signing in a browser.

A browser signs in with a link that works once, and is given a cookie for it. A cookie is sent to every port of its
host, and a link can be seen on the command line that opens it. So neither is of use to others of this machine: the
kernel reports the user of a loopback connection, which must be the user who requested the link.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.bridge.http.tcp_owner import owner_of
from mcpd.errors import McpdError, NotAuthorized, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcpd.bridge.callers import Admission, Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.upstream.hops import Passes

COOKIE: Final = "mcpd-bridge"
CODE_LIFE: Final = 60
"""Seconds that a link is good for."""
IDLE_LIFE: Final = 1800.0
"""Seconds without a request after which a browser is signed out."""
LONGEST_LIFE: Final = 8 * 3600
"""Seconds after which it is signed out in any case."""
MOST_COOKIES: Final = 16
"""Of the cookies that go by its name, so many are tried."""
MOST_CODES: Final = 16
MOST_BROWSERS: Final = 32
"""When there are more, the oldest goes."""
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


class _Code(NamedTuple):
    caller: Caller
    path: str
    until: float


class _Browser:
    """A browser that is signed in."""

    __slots__ = ("caller", "since", "used")

    def __init__(self, caller: Caller, now: float) -> None:
        self.caller = caller
        self.since = self.used = now

    def expired(self, now: float) -> bool:
        return now - self.used > IDLE_LIFE or now - self.since > LONGEST_LIFE


class SignIn:
    """The links and browsers of one bridge; they end with its process."""

    def __init__(self) -> None:
        self._codes: dict[bytes, _Code] = {}
        self._browsers: dict[bytes, _Browser] = {}

    @property
    def in_use(self) -> bool:
        """True if a link waits, or a browser is signed in."""
        self._tidy()
        return bool(self._codes or self._browsers)

    def code(self, caller: Caller, path: str) -> str:
        """Return the code of a link to *path* that signs in a browser of *caller*."""
        self._tidy()
        code = secrets.token_urlsafe(32)
        self._codes[_digest(code)] = _Code(caller, path, time.monotonic() + CODE_LIFE)
        _bound(self._codes, MOST_CODES)
        return code

    def redeem(self, code: str, peer: Peer) -> tuple[str, str] | None:
        """Use up *code*; return the cookie's secret and the path to open, or ``None`` if *peer* may not use it."""
        self._tidy()
        digest = _digest(code)
        found = self._codes.get(digest)
        if found is None or owner_of(peer) != found.caller.uid:
            return None
        del self._codes[digest]
        secret = secrets.token_urlsafe(32)
        self._browsers[_digest(secret)] = _Browser(found.caller, time.monotonic())
        _bound(self._browsers, MOST_BROWSERS)
        return secret, found.path

    def caller(self, headers: Mapping[bytes, bytes], peer: Peer, *, safe: bool) -> Caller | None:
        """Return the caller whose browser sent its cookie in *headers*; *safe* if the request changes nothing.

        ``None`` unless the request comes from one of this bridge's pages or, if it is safe, from no page at all.
        """
        if not names_its_port(headers, peer) or not (_is_own_or_nobodys(headers) if safe else is_own(headers)):
            return None
        now = time.monotonic()
        for digest in _cookies(headers):
            found = self._browsers.get(digest)
            if found is None:
                continue
            if found.expired(now):
                del self._browsers[digest]
            elif owner_of(peer) == found.caller.uid:
                found.used = now
                return found.caller
        return None

    def sign_out(self, headers: Mapping[bytes, bytes]) -> None:
        """Sign out the browser that sent its cookie in *headers*."""
        for digest in _cookies(headers):
            self._browsers.pop(digest, None)

    def _tidy(self) -> None:
        now = time.monotonic()
        self._codes = {digest: code for digest, code in self._codes.items() if code.until > now}
        self._browsers = {digest: each for digest, each in self._browsers.items() if not each.expired(now)}


def cookie(secret: str, *, secure: bool) -> tuple[bytes, bytes]:
    """Return the header that sets the cookie to *secret*, or removes it if that is empty."""
    life = LONGEST_LIFE if secret else 0
    end = "; Secure" if secure else ""
    return b"set-cookie", f"{COOKIE}={secret}; Path=/; Max-Age={life}; HttpOnly; SameSite=Strict{end}".encode()


def is_own(headers: Mapping[bytes, bytes]) -> bool:
    """Return True if a page of this bridge makes the request; browsers send the origin except with GET and HEAD."""
    origin = headers.get(b"origin", b"")
    host = headers.get(b"host", b"")
    return (
        bool(host)
        and origin.lower() in {b"http://" + host.lower(), b"https://" + host.lower()}
        and headers.get(b"sec-fetch-site", b"same-origin") == b"same-origin"
    )


def _is_own_or_nobodys(headers: Mapping[bytes, bytes]) -> bool:
    """Return True unless another site's page sent the request; a URL that the user types or opens has no origin."""
    if b"origin" in headers:
        return is_own(headers)
    return headers.get(b"sec-fetch-site", b"none") in {b"none", b"same-origin"}


def names_its_port(headers: Mapping[bytes, bytes], peer: Peer) -> bool:
    """Return True if the request names the port on which it arrived: a page of another port is another site's."""
    if peer.server is None:
        return True
    _, _, port = headers.get(b"host", b"").rpartition(b":")
    return peer.server[1] in ((int(port),) if port.isdigit() else (80, 443))


def _cookies(headers: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """The digests of all that go by the cookie's name.

    Browsers also send the cookies of other ports, which may be anything and come first; http.cookies gives up at odd
    ones.
    """
    given = (each.strip().partition(b"=") for each in headers.get(b"cookie", b"").split(b";"))
    named = (value for name, _, value in given if name == COOKIE.encode())
    return (_digest(value.decode("latin-1")) for value in islice(named, MOST_COOKIES))


def _digest(secret: str) -> bytes:
    # Looked up by its digest, so that the time it takes says nothing about the secret.
    return hashlib.sha256(secret.encode()).digest()


def _bound(table: dict[bytes, _Code] | dict[bytes, _Browser], most: int) -> None:
    while len(table) > most:
        del table[next(iter(table))]


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
