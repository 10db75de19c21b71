# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests to a bridge, and the TCP addresses that it listens on."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import pwd
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mcpd.bridge.http.listeners import split_address
from mcpd.bridge.http.tcp_owner import listening
from mcpd.cli.checks import Check
from mcpd.cli.units import show
from mcpd.errors import Busy, InvalidConfig, McpdError, NotAuthorized, NotFound, ServiceUnavailable
from mcpd.paths import Scope
from mcpd.settings import BridgeSettings, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mcpd.paths import Paths

TIMEOUT: Final = 30.0
"""Seconds for a bridge to start and answer."""
LARGEST_ANSWER: Final = 65536


class _Connection(http.client.HTTPConnection):
    """HTTP over the unix socket *path*."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket, which starts the bridge if needed."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, target: str, *, system: bool) -> dict[str, Any]:
    """Send a request without a body to the bridge at the unix socket *path*; return its answer.

    Raises :class:`~mcpd.errors.NotAuthorized` or :class:`~mcpd.errors.ServiceUnavailable` if it cannot be reached, and
    :class:`~mcpd.errors.NotFound` or McpdError if it refuses the request.
    """
    whose, scope = ("the system's", "") if system else ("your", " --user")
    connection = _Connection(path)
    try:
        connection.request(method, target)
        reply = connection.getresponse()
        status, body = reply.status, json.loads(reply.read(LARGEST_ANSWER))
    except PermissionError as error:
        raise NotAuthorized(
            f"only members of the group mcp may use {path}; an administrator can add you with: usermod -aG mcp USER;"
            " then log in again"
            if system
            else f"{path} belongs to another user"
        ) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ServiceUnavailable(
            f"{whose} bridge is not listening on {path}; start it with: systemctl{scope} enable --now"
            f" mcpd-bridge.socket{'' if system else ', or without systemd: mcpd-bridge --user'}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServiceUnavailable(f"{whose} bridge at {path} sent an invalid response: {error}") from error
    finally:
        connection.close()
    if status == 200 and isinstance(body, dict):
        return body
    try:
        why = str(body["error"]["message"])
    except (KeyError, TypeError):
        why = f"HTTP {status}"
    raise (NotFound if status == 404 else McpdError)(f"{whose} bridge refused: {why}")


UNIT: Final = "mcpd-bridge-tcp.socket"
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A TCP address that a bridge is configured to listen on."""

    host: str
    port: int
    owner: int
    """The uid that should listen on the address."""
    by_unit: bool
    """True if the socket unit listens, while its user is logged in; else the bridge itself listens, while it runs."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listeners(self) -> frozenset[int]:
        """Return the uids that listen on the address now."""
        return listening(self.host, self.port)

    def fault(self) -> str:
        """Return the reason why clients must not send a token to this address; empty if they may."""
        uids = self.listeners()
        if strangers := uids - {self.owner}:
            return f"{self} belongs to {_names(strangers)}"
        return f"nothing is listening on {self}, where {UNIT} should" if self.by_unit and not uids else ""


def listen_addresses(paths: Paths, scope: Scope) -> list[ListenAddress]:
    """Return the addresses that the bridge of *scope* is configured to listen on, except for ephemeral ports."""
    return [*_addresses_of_unit(_unit(scope), scope), *_addresses_of_settings(paths, scope)]


def _unit(scope: Scope) -> dict[str, str]:
    """Return the properties of the socket unit; empty if it is neither enabled nor started."""
    shown = show([UNIT], ["ActiveState", "UnitFileState", "Listen"], system=scope is Scope.SYSTEM)
    unit = shown[0] if shown else {}
    is_wanted = unit.get("UnitFileState", "").startswith("enabled") or unit.get("ActiveState") in {"active", "failed"}
    return unit if is_wanted else {}


def _addresses_of_unit(unit: Mapping[str, str], scope: Scope) -> Iterator[ListenAddress]:
    owner = _ROOT if scope is Scope.SYSTEM else os.getuid()
    for line in unit.get("Listen", "").splitlines():
        try:
            host, port = split_address(line.rpartition(" (")[0])
        except InvalidConfig:
            continue
        yield ListenAddress(host, port, owner, by_unit=True)


def _addresses_of_settings(paths: Paths, scope: Scope) -> Iterator[ListenAddress]:
    listen = _settings(paths).listen
    if scope is Scope.SYSTEM or not listen:
        return
    try:
        host, port = split_address(listen)
    except InvalidConfig:
        return
    if port:
        yield ListenAddress(host, port, os.getuid(), by_unit=False)


def _settings(paths: Paths) -> BridgeSettings:
    try:
        return load([paths.system.settings, paths.user.settings]).bridge
    except McpdError:
        return BridgeSettings()  # The bridge does not start with invalid settings.


def base_url(paths: Paths) -> str:
    """Return the base URL of the caller's bridge.

    Raises :class:`~mcpd.errors.ServiceUnavailable` unless it listens on a fixed port of the caller.
    """
    found = listen_addresses(paths, Scope.USER)
    for address in found:
        if address.listeners() == {address.owner}:
            return f"{'https' if _settings(paths).tls_certificate else 'http'}://{address}"
    faults = "; ".join(address.fault() or f"nothing is listening on {address}" for address in found)
    raise ServiceUnavailable(
        f"your bridge has no fixed URL: {faults or 'no port is configured'}. To give it its own port:"
        f" systemctl --user stop mcpd-bridge.service; systemctl --user enable --now {UNIT}; without systemd, set"
        " [bridge] listen in mcpd.toml"
    )


def check_url(url: str) -> None:
    """Raise :class:`~mcpd.errors.Busy` unless only the caller or root listens on *url*, which is on this machine.

    Otherwise, clients would send the bridge's token to another user.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = _addresses(parts.hostname or "")
    except ValueError:
        return  # Not a valid address.
    for address in addresses:
        uids = listening(address, port)
        strangers = uids - {_ROOT, os.getuid()}
        if strangers or not uids:
            who = f"{_names(strangers)} is listening" if strangers else "nothing is listening"
            more = "" if len(addresses) == 1 else "; use 127.0.0.1 or [::1] instead of the name, which resolves to both"
            raise Busy(
                f"{url}: {who} on {address}, port {port}, and the client would send the bridge's token there{more}"
            )


def _addresses(host: str) -> list[str]:
    """Return the loopback addresses for *host*, a name or an address of this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ["127.0.0.1", "::1"]
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_unspecified:
        return ["::1" if address.version == 6 else "127.0.0.1"]
    return [str(address)]


def checks(paths: Paths, scope: Scope) -> Iterator[Check]:
    """Check the addresses for ``mcpctl doctor``."""
    name, systemctl = "bridge port", "systemctl" if scope is Scope.SYSTEM else "systemctl --user"
    unit = _unit(scope)
    if unit and not unit.get("Listen"):
        yield Check(
            name, "fail", f"{UNIT} is not listening: only uids of at most four digits have a port of their own",
            f"choose a port: {systemctl} edit {UNIT}",
        )  # fmt: skip
    for address in (*_addresses_of_unit(unit, scope), *_addresses_of_settings(paths, scope)):
        fault = address.fault()
        if fault and address.listeners():
            yield Check(
                name, "fail", f"{fault} and receives the tokens of clients that connect there",
                f"free the port, or choose another one ({systemctl} edit {UNIT}); then start the unit, and deploy the"
                " configurations of HTTP clients again",
            )  # fmt: skip
        elif fault:
            start = f"{systemctl} stop mcpd-bridge.service; {systemctl} restart {UNIT}"
            yield Check(name, "fail", f"{fault}, so another user can take it", f"run: {start}")
        elif address.by_unit:
            yield Check(name, "ok", f"{address} is reserved by {UNIT}")
        else:
            yield Check(
                name, "warn", f"another user can take {address} ([bridge] listen) while the bridge is not running",
                f"use the unit instead: {systemctl} enable --now {UNIT}",
            )  # fmt: skip


def _names(uids: frozenset[int]) -> str:
    return ", ".join(map(_name, sorted(uids)))


def _name(uid: int) -> str:
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"
