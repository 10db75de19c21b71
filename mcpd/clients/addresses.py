# SPDX-License-Identifier: LGPL-2.1-or-later
"""URLs as clients read them, normalized according to the URL standard of the WHATWG.

A URL that parsers read differently is doubtful: it could evade a policy that trusts one parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

from pydantic_core import Url

_WRITTEN: Final = re.compile(r"https?://([^/?#\\]*)([^?#]*)", re.IGNORECASE)
_PORT: Final = re.compile(r":[0-9]*\Z")
_PORTS: Final = {"http": 80, "https": 443}
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_DOMAIN: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.ASCII)
_LOCAL: Final = re.compile(r"(?:.*\.)?localhost|localhost\.localdomain|(?:ip6-)?(?:localhost|loopback)")
_DOUBTS: Final = (
    (re.compile(r"\A[\x00-\x20]|[\x00-\x20]\Z|[\t\r\n]"), "its url contains spaces or control characters"),
    (re.compile(r"\A(?![\x00-\x20]*https?:)", re.IGNORECASE), "its url does not begin with http:// or https://"),
    (re.compile(r"\A[^?#]*(?:[${}<>]|%(?![0-9A-Fa-f]{2}))"), "its url contains a placeholder"),
    (re.compile(r"\A[^?#]*\\"), "its url contains a backslash"),
    (re.compile(r"\A[^:]*:(?!//[^/])"), "its url does not have exactly two slashes before the host"),
    (re.compile(r"\A[^:]*://[^/?#]*@[^/?#]*@"), "programs interpret the user name in its url differently"),
    (re.compile(r"\A[^?#]*%(?:2f|5c)", re.IGNORECASE), "the path of its url contains an encoded slash"),
    (re.compile(r"\A[^?#]*%25[0-9A-Fa-f]{2}"), "the path of its url is encoded twice"),
)
_NO_HOST: Final = "its url has no valid host: write non-ASCII names in Punycode, xn--…"


@dataclass(frozen=True, slots=True)
class Address:
    """The location that a URL names."""

    normal: str
    """The URL in the standard's normal spelling, without user and fragment."""
    is_usual: bool
    """True if it was written like that, except for case of the host's name and optional parts."""
    is_local: bool
    """True if the host is this machine."""
    segments: tuple[str, ...]
    """The parts of the path, decoded, without ``.``, ``..`` and empty ones."""
    doubt: str
    """Why it is uncertain which location the URL names; empty if it is certain."""


def read_address(url: str, placeholder: str = "") -> Address:
    """Return the location that *url* names; *placeholder* is how the client's placeholders begin. Never raises."""
    doubt = next((why for pattern, why in _DOUBTS if pattern.search(url)), "")
    if placeholder and placeholder in re.split(r"[?#]", url, maxsplit=1)[0]:
        doubt = doubt or "its url contains a placeholder"
    try:
        parsed = Url(url)
    except ValueError:
        return Address(url, is_usual=True, is_local=False, segments=(), doubt=doubt or _NO_HOST)
    if parsed.scheme not in _PORTS or not parsed.host:
        return Address(url, is_usual=True, is_local=False, segments=(), doubt=doubt or _NO_HOST)
    host, path = parsed.host.removesuffix("."), _ENCODED.sub(_plain, parsed.path or "/")
    match = _WRITTEN.match(url)
    authority, written_path = (match[1], match[2]) if match else ("", "")
    written = _PORT.sub("", authority.rpartition("@")[2])
    address = _ip(host)
    if address is None and not (_DOMAIN.fullmatch(host) and written.isascii()):
        doubt = doubt or _NO_HOST
    if isinstance(address, IPv4Address) and re.search(r"(?:\A|\.)0[0-9]", written):
        doubt = doubt or "its url contains a number with leading zeros, which programs interpret differently"
    port = "" if parsed.port in (None, _PORTS[parsed.scheme]) else f":{parsed.port}"
    query = "" if parsed.query is None else f"?{parsed.query}"
    return Address(
        normal=f"{parsed.scheme}://{host}{port}{path}{query}",
        is_usual="@" not in authority and written.lower() == host and written_path in ("", path),
        is_local=_is_local(address) if address is not None else bool(_LOCAL.fullmatch(host)),
        segments=tuple(part for part in re.split(r"[/\\]", unquote(path)) if part),
        doubt=doubt,
    )


def _plain(encoded: re.Match[str]) -> str:
    """Return the character if the path needs no encoding for it."""
    character = unquote(encoded[0])
    return character if re.fullmatch(r"[A-Za-z0-9._~-]", character, re.ASCII) else encoded[0]


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_local(address: IPv4Address | IPv6Address) -> bool:
    """Return True if a connection to *address* ends on this machine, as one to the unspecified address does."""
    if isinstance(address, IPv6Address):
        if address.is_loopback or address.is_unspecified:
            return True
        four = address.ipv4_mapped or (IPv4Address(int(address)) if int(address) < 1 << 32 else None)
        return four is not None and _is_local(four)
    return address.is_loopback or int(address) < 1 << 24
