# SPDX-License-Identifier: LGPL-2.1-or-later
"""Users of this machine at TCP sockets of loopback, as the kernel's tables have them."""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.bridge.http.gate import Peer

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = b"01"
_LISTEN: Final = b"0A"


def owner_of(peer: Peer) -> int | None:
    """The uid of *peer*'s end: its own on a unix socket; ``None`` on TCP if it cannot be found on this machine."""
    if peer.uid is not None:
        return peer.uid
    if peer.client is None or peer.server is None:
        return None
    for table in _TABLES:
        ends = tuple(_as_shown(*end, wide=table.name.endswith("6")) for end in (peer.client, peer.server))
        if all(ends):
            for cells in _rows(table):
                if (cells[1], cells[2]) == ends and cells[3] == _ESTABLISHED:
                    return int(cells[7])
    return None


def listening(host: str, port: int) -> frozenset[int]:
    """Return the uids of the sockets that take connections to *host*:*port* on this machine; empty if nobody listens.

    As in the kernel, a socket of this address goes before one of all addresses.
    """
    narrow, wide = ((table, table.name.endswith("6")) for table in _TABLES)
    if ipaddress.ip_address(host).version == 6:
        places = [(wide, host), (wide, "::")]
    else:
        places = [(narrow, host), (wide, host), (narrow, "0.0.0.0"), (wide, "::")]  # noqa: S104 - it is looked for
    found: dict[tuple[Path, bytes], set[int]] = {}
    for table in _TABLES:
        for cells in _rows(table):
            if cells[3] == _LISTEN:
                found.setdefault((table, cells[1]), set()).add(int(cells[7]))
    for (table, is_wide), address in places:
        if uids := found.get((table, _as_shown(address, port, wide=is_wide))):
            return frozenset(uids)
    return frozenset()


def _rows(table: Path) -> Iterator[list[bytes]]:
    """Yield the cells of *table*: sl local_address rem_address st tx:rx tr:when retrnsmt uid; see proc_net_tcp(5)."""
    try:
        rows = table.read_bytes().splitlines()
    except OSError:
        return
    for row in rows:
        cells = row.split(None, 8)
        if len(cells) > 7:
            yield cells


def _as_shown(host: str, port: int | None, *, wide: bool) -> bytes:
    """An address as the kernel's tables have it: words of four bytes in the order of the machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return b""
    if port is None or (not wide and address.version == 6):
        return b""
    family = socket.AF_INET6 if wide else socket.AF_INET
    text = f"::ffff:{address}" if wide and address.version == 4 else str(address)
    packed = socket.inet_pton(family, text)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return b"".join(b"%08X" % word for word in words) + b":%04X" % port
