# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asking a bridge at its unix socket."""

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
"""Seconds in which a bridge must answer, its start included."""
LARGEST_ANSWER: Final = 65536


class _Connection(http.client.HTTPConnection):
    """HTTP over the unix socket *path*."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Open the socket, which starts the bridge if it does not run."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, target: str, *, system: bool) -> dict[str, Any]:
    """What the bridge at the unix socket *path* answers to a request without a body.

    Raises :class:`~mcpd.errors.NotAuthorized` or :class:`~mcpd.errors.ServiceUnavailable` if it cannot be asked,
    :class:`~mcpd.errors.NotFound` or McpdError for what it refuses.
    """
    whose, scope = ("the system's", "") if system else ("your", " --user")
    connection = _Connection(path)
    try:
        connection.request(method, target)
        reply = connection.getresponse()
        status, body = reply.status, json.loads(reply.read(LARGEST_ANSWER))
    except PermissionError as error:
        raise NotAuthorized(
            f"{path} is open to members of the group mcp only; an administrator adds you with: usermod -aG mcp USER, "
            "and it holds from your next login on"
            if system
            else f"{path} is open to its owner only, who is somebody else"
        ) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ServiceUnavailable(
            f"{whose} bridge does not listen at {path}; start it with: systemctl{scope} enable --now mcpd-bridge.socket"
            f"{'' if system else ', or where there is no systemd: mcpd-bridge --user'}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServiceUnavailable(f"{whose} bridge at {path} gave no answer that makes sense: {error}") from error
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
class Place:
    """An address at which a bridge is to listen on TCP."""

    host: str
    port: int
    owner: int
    """The uid that listens there if all is well."""
    by_unit: bool
    """The unit listens there as long as its user is logged in; else the bridge does, while it runs."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listeners(self) -> frozenset[int]:
        """Return the uids that listen there now."""
        return listening(self.host, self.port)

    def fault(self) -> str:
        """Return why no client may send a token there; empty if it may."""
        uids = self.listeners()
        if strangers := uids - {self.owner}:
            return f"{self} belongs to {_names(strangers)}"
        return f"nobody listens at {self}, where {UNIT} should" if self.by_unit and not uids else ""


def places(paths: Paths, scope: Scope) -> list[Place]:
    """Return where the bridge of *scope* is to listen; a port that changes with every start is left out."""
    return [*_places_of_unit(_unit(scope), scope), *_places_of_settings(paths, scope)]


def _unit(scope: Scope) -> dict[str, str]:
    """Return what systemd knows of the unit; nothing if it is neither enabled nor started."""
    shown = show([UNIT], ["ActiveState", "UnitFileState", "Listen"], system=scope is Scope.SYSTEM)
    unit = shown[0] if shown else {}
    is_wanted = unit.get("UnitFileState", "").startswith("enabled") or unit.get("ActiveState") in {"active", "failed"}
    return unit if is_wanted else {}


def _places_of_unit(unit: Mapping[str, str], scope: Scope) -> Iterator[Place]:
    owner = _ROOT if scope is Scope.SYSTEM else os.getuid()
    for line in unit.get("Listen", "").splitlines():
        try:
            host, port = split_address(line.rpartition(" (")[0])
        except InvalidConfig:
            continue
        yield Place(host, port, owner, by_unit=True)


def _places_of_settings(paths: Paths, scope: Scope) -> Iterator[Place]:
    listen = _settings(paths).listen
    if scope is Scope.SYSTEM or not listen:
        return
    try:
        host, port = split_address(listen)
    except InvalidConfig:
        return
    if port:
        yield Place(host, port, os.getuid(), by_unit=False)


def _settings(paths: Paths) -> BridgeSettings:
    try:
        return load([paths.system.settings, paths.user.settings]).bridge
    except McpdError:
        return BridgeSettings()  # With those of the files the bridge does not start.


def base_url(paths: Paths) -> str:
    """Return the base of the URLs of the caller's bridge.

    Raises :class:`~mcpd.errors.ServiceUnavailable` unless the caller listens on a port that stays the same.
    """
    found = places(paths, Scope.USER)
    for place in found:
        if place.listeners() == {place.owner}:
            return f"{'https' if _settings(paths).tls_certificate else 'http'}://{place}"
    faults = "; ".join(place.fault() or f"nobody listens at {place}" for place in found)
    raise ServiceUnavailable(
        f"your bridge has no URL that lasts: {faults or 'no port is set up for it'}. This gives it a port of your own:"
        f" systemctl --user stop mcpd-bridge.service; systemctl --user enable --now {UNIT}; where there is no systemd,"
        " set [bridge] listen in mcpd.toml"
    )


def check_url(url: str) -> None:
    """Raise :class:`~mcpd.errors.Busy` if what a client sends to *url*, of this machine, may come to another user.

    The caller and root may listen there.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = _addresses(parts.hostname or "")
    except ValueError:
        return  # There is no such address.
    for address in addresses:
        uids = listening(address, port)
        strangers = uids - {_ROOT, os.getuid()}
        if strangers or not uids:
            who = f"{_names(strangers)} listens" if strangers else "nobody listens"
            more = "" if len(addresses) == 1 else "; write 127.0.0.1 or [::1] instead of a name that stands for both"
            raise Busy(f"{url}: {who} at {address}, port {port}, where the client would send the bridge's token{more}")


def _addresses(host: str) -> list[str]:
    """Return the addresses of loopback that *host*, a name or an address of this machine, leads to."""
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
    """Yield what ``mcpctl doctor`` finds about the addresses."""
    name, systemctl = "bridge port", "systemctl" if scope is Scope.SYSTEM else "systemctl --user"
    unit = _unit(scope)
    if unit and not unit.get("Listen"):
        yield Check(
            name, "fail", f"{UNIT} listens nowhere: only a uid of at most four digits has a port of its own",
            f"choose a port: {systemctl} edit {UNIT}",
        )  # fmt: skip
    for place in (*_places_of_unit(unit, scope), *_places_of_settings(paths, scope)):
        fault = place.fault()
        if fault and place.listeners():
            yield Check(
                name, "fail", f"{fault}, who gets the token of clients that connect there",
                f"have it freed, or choose another port ({systemctl} edit {UNIT}); then start that unit, and deploy the"
                " configurations of HTTP clients again",
            )  # fmt: skip
        elif fault:
            start = f"{systemctl} stop mcpd-bridge.service; {systemctl} restart {UNIT}"
            yield Check(name, "fail", f"{fault}, so another user can take it", f"run: {start}")
        elif place.by_unit:
            yield Check(name, "ok", f"{place} is held by {UNIT}")
        else:
            yield Check(
                name, "warn", f"{place} of [bridge] listen can be taken by another user while the bridge does not run",
                f"use the unit instead: {systemctl} enable --now {UNIT}",
            )  # fmt: skip


def _names(uids: frozenset[int]) -> str:
    return ", ".join(map(_name, sorted(uids)))


def _name(uid: int) -> str:
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"
