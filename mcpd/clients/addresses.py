# SPDX-License-Identifier: LGPL-2.1-or-later
"""URLs as clients read them, however they are spelled: in the way of the URL standard of the WHATWG.

What other parsers read differently is told as a doubt, for who takes one parser's word is deceived with another's.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS: Final = {"http": "80", "https": "443"}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_SLASHES: Final = re.compile(r"[/\\]*")
_FILLED_IN: Final = re.compile(r"[${}<>]|%(?![0-9A-Fa-f]{2})")
_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_SEPARATOR: Final = re.compile(r"%(?:2f|5c)", re.IGNORECASE)
_DOMAIN: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.ASCII)
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)
_LOCAL: Final = re.compile(r"(?:.*\.)?localhost|localhost\.localdomain|(?:ip6-)?(?:localhost|loopback)")
_MOST_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL names."""

    normal: str
    """The URL without user and fragment, as the standard spells it."""
    is_usual: bool
    """Whether it was written so, but for upper case in the name of the host and what may be left out."""
    is_local: bool
    """Whether the host is this machine."""
    segments: tuple[str, ...]
    """The parts of the path, decoded, without ``.``, ``..`` and empty ones."""
    doubt: str
    """Why it cannot be told what the URL names; empty if it can."""


def read_address(url: str, placeholder: str = "") -> Address:
    """Read *url*, in which the client also fills in what begins with *placeholder*. Nothing is raised."""
    return _Reader(url, placeholder).read()


class _Reader:
    def __init__(self, url: str, placeholder: str) -> None:
        self._url = url
        self._placeholder = placeholder
        self._doubt = ""

    def read(self) -> Address:
        text = re.sub(r"[\t\r\n]", "", self._url.strip("".join(map(chr, range(0x21)))))
        if text != self._url:
            self._doubts("its url holds spaces or control characters")
        scheme = _SCHEME.match(text)
        if scheme is None or scheme[1].lower() not in _PORTS:
            self._doubts("its url does not begin with http:// or https://")
            return Address(self._url, is_usual=True, is_local=False, segments=(), doubt=self._doubt)
        end = re.search(r"[?#]", text)
        head, tail = (text[: end.start()], text[end.start() :]) if end else (text, "")
        if _FILLED_IN.search(head) or (self._placeholder and self._placeholder in head):
            self._doubts("a placeholder stands in its url")
        if "\\" in head:
            self._doubts("its url holds a backslash")
        slashes = _SLASHES.match(head, scheme.end())
        start = slashes.end() if slashes else scheme.end()
        if head[scheme.end() : start] != "//":
            self._doubts("its url has not exactly two slashes before the host")
        authority, path = _cut(head[start:])
        user, _, place = authority.rpartition("@")
        if "@" in user:
            self._doubts("its url names its user in a way that programs read differently")
        written, port = self._place(place)
        host, address = self._host(written)
        kind = scheme[1].lower()
        shown = host if port in ("", _PORTS[kind]) else f"{host}:{port}"
        normal_path = self._path(path)
        return Address(
            normal=f"{kind}://{shown}{normal_path}{tail.partition('#')[0]}",
            is_usual=not user and written.lower() == host and path in ("", normal_path),
            is_local=_is_local(address) if address is not None else bool(_LOCAL.fullmatch(host)),
            segments=self._segments(path),
            doubt=self._doubt,
        )

    def _doubts(self, why: str) -> None:
        self._doubt = self._doubt or why

    def _place(self, place: str) -> tuple[str, str]:
        """The host and the port that *place* writes."""
        if place.startswith("["):
            host, _, rest = place.partition("]")
            host, colon, port = host + "]", rest[:1], rest[1:]
        else:
            host, colon, port = place.partition(":")
        if (colon and colon != ":") or not re.fullmatch(r"[0-9]{0,5}", port, re.ASCII):
            self._doubts("its url has no port that can be read")
        return host, port.lstrip("0") if port.strip("0") else port

    def _host(self, written: str) -> tuple[str, _Address | None]:
        """*written* as the standard spells it, and the address that it is, if it is one."""
        if written.startswith("["):
            try:
                six = ipaddress.IPv6Address(written[1:-1])
            except ValueError:
                self._doubts("its url has no host that can be read")
                return written.lower(), None
            if six.scope_id is not None:
                self._doubts("its url has no host that can be read")
            return f"[{six.compressed}]", six
        # Full stops of other scripts count, and so do digits.
        host = re.sub(r"[\u3002\uff0e\uff61]", ".", unquote(written))
        host = unicodedata.normalize("NFKC", host).lower().removesuffix(".")
        if not _DOMAIN.fullmatch(host):
            self._doubts("its url has no host that can be read: names beyond ASCII are written in Punycode, xn--…")
            return host, None
        parts = host.split(".")
        if not _NUMBER.fullmatch(parts[-1]):
            return host, None
        four = self._four(parts)
        if four is None:
            self._doubts("its url has no host that can be read")
            return host, None
        return str(four), four

    def _four(self, parts: list[str]) -> ipaddress.IPv4Address | None:
        """The address that *parts* spell by the rules of inet_aton(3)."""
        if len(parts) > _MOST_PARTS or not all(_NUMBER.fullmatch(part) for part in parts):
            return None
        numbers: list[int] = []
        for part in parts:
            base = 16 if part.startswith("0x") else 8 if len(part) > 1 and part.startswith("0") else 10
            if base == 8:
                self._doubts("its url holds a number with zeros before it, which programs read differently")
            try:
                numbers.append(int(part.removeprefix("0x") or "0", base))
            except ValueError:
                return None
        *first, last = numbers
        if any(number > 255 for number in first) or last >= 256 ** (5 - len(numbers)):
            return None
        return ipaddress.IPv4Address(last + sum(number << (24 - 8 * at) for at, number in enumerate(first)))

    def _segments(self, path: str) -> tuple[str, ...]:
        if _SEPARATOR.search(path):
            self._doubts("the path of its url holds an encoded slash")
        decoded = unquote(path)
        if _ENCODED.search(decoded):
            self._doubts("the path of its url is encoded twice")
        return tuple(part for part in _resolved(re.split(r"[/\\]", decoded)) if part)

    def _path(self, path: str) -> str:
        """*path* as the standard spells it, and without needless encoding."""
        spelled = _ENCODED.sub(lambda found: _plain(found[0]), path)
        return "/" + "/".join(_resolved(re.split(r"[/\\]", spelled)[1:]))


def _cut(text: str) -> tuple[str, str]:
    """*text* before and from the first slash."""
    slash = re.search(r"[/\\]", text)
    return (text[: slash.start()], text[slash.start() :]) if slash else (text, "")


def _plain(encoded: str) -> str:
    character = unquote(encoded)
    return character if re.fullmatch(r"[A-Za-z0-9._~-]", character, re.ASCII) else encoded


def _resolved(parts: list[str]) -> list[str]:
    """*parts* of a path without ``.`` and ``..``."""
    found: list[str] = []
    for at, part in enumerate(parts):
        if part not in (".", ".."):
            found.append(part)
            continue
        if part == ".." and found:
            found.pop()
        if at == len(parts) - 1:
            found.append("")
    return found


def _is_local(address: _Address) -> bool:
    """Whether a connection to *address* ends on this machine; so does one to no address in particular."""
    if isinstance(address, ipaddress.IPv6Address):
        if address == ipaddress.IPv6Address("::1") or not int(address):
            return True
        four = address.ipv4_mapped or (ipaddress.IPv4Address(int(address)) if int(address) < 1 << 32 else None)
        return four is not None and _is_local(four)
    return address.is_loopback or int(address) < 1 << 24
