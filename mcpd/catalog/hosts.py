# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which hosts are this machine or beside it, in all the ways to write that which need no name server."""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from contextlib import suppress
from typing import Final

_STOPS: Final = re.compile("[\u3002\uff0e\uff61]")
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\"#%/<>?@\\^`{|}\[\]]")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC: Final = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("::/96"))
"""Addresses of a network's own translators (RFC 8215), which lead to private ones as well; an old way to write IPv4."""
_NAMES: Final = re.compile(r"(?:.+\.)?localhost|localhost\.localdomain|ip6-(?:localhost|loopback)")


def normal_host(host: str) -> str:
    """*host*, of a URL, in one spelling: letters, digits and full stops of other scripts count as those of ASCII.

    Raises ValueError for what no host can be called.
    """
    if ":" in host:
        return host  # an IPv6 address, which was in brackets
    found = unicodedata.normalize("NFKC", _STOPS.sub(".", host)).lower().rstrip(".")
    if _FORBIDDEN.search(found):
        raise ValueError("the host holds a character that none can have")
    return found


def is_loopback(host: str) -> bool:
    """Whether whoever is told the normal *host* stays on this machine, and needs no proxy or name server for that."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def is_here(host: str) -> bool:
    """Whether *host* may lead to this machine."""
    name = _asked(host)
    if _NAMES.fullmatch(name):
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or address.is_unspecified)


def is_beside(host: str) -> bool:
    """Whether *host* is a link-local address: of machines beside this one, and of what a cloud tells it alone."""
    address = _address(_asked(host))
    return address is not None and address.is_link_local


def is_public(address: str) -> bool:
    """Return whether the IP *address* is public: not one of this machine, its networks or a private network."""
    found = _address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.is_site_local or any(found in each for each in _NEVER_PUBLIC):
            return False
        found = (ipaddress.IPv4Address(found.packed[-4:]) if found in _NAT64 else found.sixtofour) or found
    return found is not None and found.is_global and not found.is_multicast


def _asked(host: str) -> str:
    """*host* as a name server would be asked for it, without what that leaves out."""
    with suppress(UnicodeError):
        host = host.encode("idna").decode("ascii")
    return host.lower().rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(OSError, UnicodeEncodeError):
        name = socket.inet_ntoa(socket.inet_aton(name))  # 127.1 and 0x7f000001 are addresses, too
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
