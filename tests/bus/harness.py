# SPDX-License-Identifier: LGPL-2.1-or-later
"""A private message bus that includes the shipped policy, mcpd on it, and a client that can misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mcpd.bus.connection import Connection, Match
from mcpd.bus.names import BUS_NAME, DBUS, DBUS_PATH, MANAGER, ROOT
from mcpd.paths import Layout, Paths, Scope
from tests.preloaded import process_of, python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

DBUS_DIR = Path(__file__).parents[2] / "dbus"
PATIENCE = 120.0

BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
  "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:dir={directory}</listen>
  {services}
  <auth>EXTERNAL</auth>
  <limit name="max_message_unix_fds">64</limit>
  <limit name="max_match_rules_per_connection">32</limit>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.PolicyKit1"/>
    <allow send_destination="org.freedesktop.systemd1"/>
    <allow send_destination="org.mcpd.Test"/>
  </policy>
  <include>{policy}</include>
  <policy user="{uid}">
    <allow own="org.mcpd.Mcp1"/>
    <allow own="org.mcpd.Test"/>
    <allow own="org.freedesktop.PolicyKit1"/>
    <allow own="org.freedesktop.systemd1"/>
    {extra}
  </policy>
</busconfig>
"""
"""As the system bus has it: nothing may be called that no policy file allows."""


@dataclass
class PrivateBus:
    """A running dbus-daemon."""

    address: str
    process: subprocess.Popen[str]

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {"DBUS_SESSION_BUS_ADDRESS": self.address, "DBUS_SYSTEM_BUS_ADDRESS": self.address}

    def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


def start_bus(directory: Path, *, any_interface: bool = False, services: Path | None = None) -> PrivateBus:
    """Start a bus in *directory*.

    With *any_interface* it lets calls through that name no interface; *services* holds the files of what it may start.
    """
    extra = '<allow send_destination="org.mcpd.Mcp1"/>' if any_interface else ""
    config = directory / "bus.conf"
    policy = DBUS_DIR / "org.mcpd.Mcp1.conf"
    started = f"<servicedir>{services}</servicedir>" if services else ""
    config.write_text(
        BUS_CONFIG.format(directory=directory, policy=policy, uid=os.getuid(), extra=extra, services=started)
    )
    process = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address, "dbus-daemon did not start"
    return PrivateBus(address, process)


@dataclass
class Daemon:
    """A running mcpd."""

    process: asyncio.subprocess.Process
    log_file: Path

    @property
    def pid(self) -> int:
        return process_of(self.process.pid)

    def fds(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def log(self) -> str:
        return self.log_file.read_text()

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@dataclass
class Machine:
    """Directories and a bus; mcpd is started in it as often as a test wants."""

    bus: PrivateBus
    root: Path
    settings: dict[str, str] = field(default_factory=dict)
    _started: list[Daemon] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        inherited = {key: value for key, value in self.bus.environ.items() if not key.startswith(("XDG_", "MCP"))}
        return inherited | self.settings | {
            "HOME": str(self.root / "home"),
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "MCP_ROOT": str(self.root / "system"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }  # fmt: skip

    @property
    def installed(self) -> Path:
        return self.root / "home/.local/share/mcp/installed"

    @property
    def paths(self) -> Paths:
        def layout(scope: Scope, base: Path) -> Layout:
            return Layout(
                scope=scope,
                sources_list=base / "config/sources.list",
                settings=base / "config/mcpd.toml",
                installed=base / "data/installed",
                secrets=base / "data/secrets",
                state=base / "state",
                cache=base / "cache",
                runtime=base / "run",
                overlay=base / "data/overlay",
                scripts=base / "data/scripts",
                contents=base / "data/cas",
                orchestration=base / "orchestration",
                deployments=base / "data/deployments",
            )

        user, system = layout(Scope.USER, self.root / "user"), layout(Scope.SYSTEM, self.root / "machine")
        return Paths(user=user, system=system, vendor=self.root / "vendor", home=self.root / "home")

    def install(self, server_id: str, *, where: Path | None = None, **fields: Any) -> Path:
        """Put a server where mcpd finds it, as another tool would; its directory."""
        directory = (where or self.installed) / server_id
        directory.mkdir(parents=True, exist_ok=True)
        manifest = {
            "id": server_id,
            "name": server_id.title(),
            "summary": f"The server {server_id}",
            "version": "1.0",
            "scope": "user",
            "installDir": str(directory),
            "transports": [{"type": "stdio", "command": "cat"}],
        }
        (directory / "manifest.json").write_text(json.dumps(manifest | fields))
        return directory

    async def start(self, *arguments: str) -> Daemon:
        """Start mcpd without waiting for anything."""
        for name in ("home", "run"):
            (self.root / name).mkdir(exist_ok=True, mode=0o700)
        log_file = self.root / f"mcpd-{len(self._started)}.log"
        with log_file.open("w") as log:
            process = await asyncio.create_subprocess_exec(
                python(), "-m", "mcpd.daemon", *(arguments or ("--user",)), "--log-level", "debug",
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environ,
            )  # fmt: skip
        daemon = Daemon(process, log_file)
        self._started.append(daemon)
        return daemon

    async def serve(self, *arguments: str) -> Daemon:
        """Start mcpd and wait until it owns its name."""
        async with await Connection.open(self.bus.address) as connection:
            owned = asyncio.Event()
            match = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", BUS_NAME)
            await connection.subscribe(match, lambda signal: owned.set() if signal.args[2] else None)
            daemon = await self.start(*arguments)
            ended = asyncio.create_task(daemon.process.wait())
            ready = asyncio.create_task(owned.wait())
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait([ended, ready], return_when=asyncio.FIRST_COMPLETED)
            assert not ended.done(), daemon.log()
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            return daemon

    async def stop(self) -> None:
        for daemon in self._started:
            if daemon.process.returncode is None:
                daemon.process.kill()
            await daemon.process.wait()


@asynccontextmanager
async def connected(bus: PrivateBus) -> AsyncIterator[Connection]:
    async with await Connection.open(bus.address) as connection:
        yield connection


async def next_signal(signals: asyncio.Queue[Any], member: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            signal = await signals.get()
            if signal.member == member:
                return signal


def header_fields(fields: Sequence[tuple[int, str, Any]]) -> bytes:
    out = b""
    for code, signature, value in fields:
        out = _align(out, 8) + bytes([code, len(signature)]) + signature.encode() + b"\0"
        if signature in ("s", "o"):
            out = _align(out, 4) + string(value)
        elif signature == "g":
            out += bytes([len(value)]) + value.encode() + b"\0"
        elif signature == "u":
            out = _align(out, 4) + struct.pack("<I", value)
    return out


def _align(data: bytes, to: int) -> bytes:
    return data + b"\0" * (-len(data) % to)


def string(text: str) -> bytes:
    """*text* as the wire has it."""
    return struct.pack("<I", len(text.encode())) + text.encode() + b"\0"


class RawClient:
    """Speaks the wire format by itself, so that it can say what no library would, and need not read."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(address.split("path=")[1].split(",", maxsplit=1)[0])
        self.serial = 0
        self._buffer = bytearray()
        uid = str(os.getuid()).encode().hex().encode()
        for line in (b"\0AUTH EXTERNAL " + uid, b"NEGOTIATE_UNIX_FD"):
            self.sock.sendall(line + b"\r\n")
            assert self.sock.recv(100).startswith((b"OK", b"AGREE"))
        self.sock.sendall(b"BEGIN\r\n")
        self.call("Hello", destination=DBUS, path=DBUS_PATH, interface=DBUS)
        self.name = self.reply(1)[1][4:].rstrip(b"\0").decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def message(
        self, member: str, *, kind: int = 1, flags: int = 0, destination: str = BUS_NAME, path: str = ROOT,
        interface: str | None = MANAGER, signature: str = "", body: bytes = b"", fds: int = 0,
        fields: Sequence[tuple[int, str, Any]] = (),
    ) -> bytes:  # fmt: skip
        self.serial += 1
        header: list[tuple[int, str, Any]] = [(1, "o", path), (3, "s", member), (6, "s", destination)]
        header += [(2, "s", interface)] if interface else []
        header += [(8, "g", signature)] if signature else []
        header += [(9, "u", fds)] if fds else []
        head = header_fields([*header, *fields])
        start = b"l" + bytes([kind, flags, 1]) + struct.pack("<III", len(body), self.serial, len(head))
        return _align(start + head, 8) + body

    def call(self, member: str, *, passing: Sequence[int] = (), **message: Any) -> int:
        """Send a call and return its serial."""
        data = self.message(member, fds=len(passing), **message)
        if passing:
            sent = socket.send_fds(self.sock, [data], list(passing))
            data = data[sent:]
        self.sock.sendall(data)
        return self.serial

    def messages(self) -> Iterator[tuple[int, dict[int, Any], bytes]]:
        """Type, header fields and body of every message that arrives."""
        while True:
            while len(self._buffer) >= 16:
                length, _, header = struct.unpack_from("<III", self._buffer, 4)
                start = 16 + header + -header % 8
                if len(self._buffer) < start + length:
                    break
                message = bytes(self._buffer[: start + length])
                del self._buffer[: start + length]
                yield message[1], _fields(message[16 : 16 + header]), message[start:]
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self._buffer += data

    def reply(self, serial: int) -> tuple[str, bytes]:
        """Error name (empty for none) and body of the reply to *serial*."""
        for kind, fields, body in self.messages():
            if kind in (2, 3) and fields.get(5) == serial:
                return fields.get(4, ""), body
        raise AssertionError


def _fields(data: bytes) -> dict[int, Any]:
    found: dict[int, Any] = {}
    at = 0
    while at < len(data):
        at += -at % 8
        code, kind = data[at], chr(data[at + 2])
        at += 4
        if kind == "g":
            found[code] = data[at + 1 : at + 1 + data[at]].decode()
            at += data[at] + 2
            continue
        at += -at % 4
        (value,) = struct.unpack_from("<I", data, at)
        at += 4
        if kind != "u":
            found[code] = data[at : at + value].decode()
            at += value + 1
        else:
            found[code] = value
    return found


def error_text(body: bytes) -> str:
    """The message of an error reply."""
    return body[4:-1].decode()
