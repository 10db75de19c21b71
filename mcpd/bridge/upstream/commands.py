# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers of the stand-alone bridge: plain commands, started as children of the bridge, each in a session of its own.

A server is stopped with everything in its process group, also what it left behind when it ended by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.bridge.http.routing import is_server_name
from mcpd.bridge.upstream.source import Ends, Listed, ServerInfo
from mcpd.errors import HeldBack, InvalidConfig, InvalidManifest, NotFound, NotSupported, SpawnFailed, from_oserror
from mcpd.runtime.launch import memory_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Raw

log = logging.getLogger(__name__)

EXIT_GRACE: Final = 1.0
"""Seconds that a server gets to end by itself, at the end of its input."""
STOP_TIMEOUT: Final = 3.0
"""Seconds between SIGTERM and SIGKILL."""
SHORT_LIFE: Final = 5.0
"""A server that lived shorter, in seconds, counts as crashed."""
FREE_CRASHES: Final = 3
"""Crashes in a row without a delay before the next start."""
LONGEST_DELAY: Final = 60.0


@dataclass(frozen=True, slots=True)
class Command:
    """The command that starts a server."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the bridge's own environment."""
    cwd: str | None = None
    document: bytes | None = field(default=None, repr=False)
    """What it reads from a descriptor whose number becomes its last argument: others cannot see it there."""
    elsewhere: bool = False
    """True if the server runs elsewhere, and this only reaches it."""
    missing: str = ""
    """The reason if it cannot be started here."""

    @property
    def summary(self) -> str:
        """The text for listings, without the arguments, which may contain secrets."""
        return "runs elsewhere" if self.elsewhere else f"starts {self.argv[0].rpartition('/')[2]}"


class Process:
    """A running command."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: int, stdout: int, command: _Held) -> None:
        self._process = process
        self._ends = Ends(stdin, stdout)
        self._held = command
        self._started = time.monotonic()
        self._stopped = False
        loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = loop.create_future()
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            self._signal(signal.SIGKILL)
            process.wait()
            raise
        loop.add_reader(self._pidfd, self._exited)

    def take(self) -> tuple[int, int]:
        """Our ends of its stdin and stdout."""
        return self._ends.take()

    async def stop(self, *, died: bool = False) -> None:
        """Wait a moment, then SIGTERM to its process group, SIGKILL three seconds later."""
        if not died:
            self._stopped = True
        self._ends.close()
        await asyncio.wait([self._gone], timeout=EXIT_GRACE)
        if self._gone.done():
            return
        self._signal(signal.SIGTERM)
        await asyncio.wait([self._gone], timeout=STOP_TIMEOUT)
        if not self._gone.done():
            self._signal(signal.SIGKILL)
            await self._gone

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        # As long as the process was not waited for, nobody else can have its group's number.
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        os.close(self._pidfd)
        if not self._stopped:
            log.warning("server %s ended with status %d", self._held.name, code)
            self._held.ended(time.monotonic() - self._started)
        self._gone.set_result(None)


class _Held:
    """A command and its recent crashes."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self.command = command
        self._crashes = 0
        self._not_before = 0.0

    def check(self) -> None:
        if self.command.missing:
            raise NotSupported(self.command.missing)
        wait = self._not_before - time.monotonic()
        if wait > 0:
            raise HeldBack(f"server {self.name} keeps crashing: it is not started for the next {wait:.0f} s")

    def ended(self, lived: float) -> None:
        self._crashes = self._crashes + 1 if lived < SHORT_LIFE else 0
        if self._crashes > FREE_CRASHES:
            delay = min(2.0 ** (self._crashes - FREE_CRASHES), LONGEST_DELAY)
            self._not_before = time.monotonic() + delay


class CommandSource:
    """The servers given on the command line or in a file."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = {name: _Held(name, command) for name, command in commands.items()}
        self._infos = {name: ServerInfo(name) for name in commands}

    async def describe(self, server: str) -> ServerInfo:
        """Only that it exists."""
        self._find(server)
        return self._infos[server]

    def known(self, server: str) -> ServerInfo | None:
        """The same, as nothing changes."""
        return self._infos.get(server)

    def listen(self, listener: Callable[[], None]) -> None:
        """Nothing changes."""

    async def authorize(self, server: str, caller: Caller) -> None:
        """Allow everything to everyone who was admitted."""

    async def tools(self, _server: str) -> list[Raw]:
        """None: nobody has asked before."""
        return []

    async def listing(self) -> list[Listed]:
        """Their names, and the programs that are started; arguments may hold secrets."""
        return [Listed(name, summary=held.command.summary) for name, held in self._commands.items()]

    async def start(self, server: str, _caller: Caller, _environment: Mapping[str, str]) -> Process:
        """Start the command of *server*, whoever calls."""
        held = self._find(server)
        held.check()
        try:
            with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
                server_in, stdin = os.pipe2(os.O_CLOEXEC)
                theirs.callback(os.close, server_in)
                ours.callback(os.close, stdin)
                stdout, server_out = os.pipe2(os.O_CLOEXEC)
                theirs.callback(os.close, server_out)
                ours.callback(os.close, stdout)
                process = Process(
                    await asyncio.to_thread(_popen, held.command, server_in, server_out), stdin, stdout, held
                )
                ours.pop_all()
                return process
        except OSError as error:
            held.ended(0.0)
            program = held.command.argv[0]
            where = f" in {error.filename!r}" if error.filename and error.filename != program else ""
            raise SpawnFailed(
                from_oserror(error, f"starting {program!r}{where} for server {server}").message
            ) from error

    async def close(self) -> None:
        """Nothing to let go of."""

    def _find(self, server: str) -> _Held:
        try:
            return self._commands[server]
        except KeyError:
            raise NotFound(f"there is no server {server!r} here") from None


def _popen(command: Command, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as stack:
        argv = command.argv
        passed: tuple[int, ...] = ()
        if command.document is not None:
            passed = (memory_file("manifest.json", command.document),)
            stack.callback(os.close, *passed)
            argv = (*argv, str(*passed))
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            cwd=command.cwd,
            env={**os.environ, **command.env},
            start_new_session=True,
            pass_fds=passed,
        )


# ---------------------------------------------------------------------------------------- what to run


def from_arguments(arguments: Iterable[str]) -> dict[str, Command]:
    """The commands of ``--server NAME=COMMAND`` options. Raises :class:`~mcpd.errors.InvalidConfig`."""
    commands: dict[str, Command] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise InvalidConfig(f"--server {argument!r}: {error}") from error
        if not equals or not argv:
            raise InvalidConfig(f"--server {argument!r}: write NAME=COMMAND")
        _add(commands, name, Command(argv), "--server")
    return commands


def from_file(path: Path) -> dict[str, Command]:
    """The commands of a file with ``mcpServers``, without those that are switched off there.

    Raises :class:`~mcpd.errors.InvalidConfig`.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    except ValueError as error:
        raise InvalidConfig(f"{path}: {error}") from error
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise InvalidConfig(f'{path}: there is no object "mcpServers"')
    commands: dict[str, Command] = {}
    for name, entry in servers.items():
        if isinstance(entry, dict) and (entry.get("disabled") is True or entry.get("enabled") is False):
            continue
        _add(commands, name, _command(name, entry, f"{path}: mcpServers.{name}"), str(path))
    return commands


def _command(name: str, entry: object, where: str) -> Command:
    if isinstance(entry, dict) and "url" in entry and "command" not in entry:
        return _remote(name, entry, where)
    if not isinstance(entry, dict) or not isinstance(entry.get("command"), str) or not entry["command"]:
        raise InvalidConfig(f'{where}: there is neither a "command" nor a "url"')
    args, env, cwd = entry.get("args", []), entry.get("env", {}), entry.get("cwd")
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise InvalidConfig(f'{where}: "args" is not a list of strings')
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise InvalidConfig(f'{where}: "env" is not an object of strings')
    if cwd is not None and not isinstance(cwd, str):
        raise InvalidConfig(f'{where}: "cwd" is not a string')
    return Command((entry["command"], *args), env, cwd)


def _remote(name: str, entry: Mapping[str, object], where: str) -> Command:
    """What reaches a server elsewhere; its headers, which may be secrets, are neither arguments nor variables."""
    from mcpd.model import Manifest, dump_json  # pydantic is for those who need it
    from mcpd.runtime.bundled import remote_program

    transport = {"type": entry.get("type", "streamable-http"), "url": entry["url"], "headers": entry.get("headers")}
    if transport["type"] in {"ws", "websocket"}:
        transport["wsUrl"] = transport.pop("url")
    document = {"id": name, "transports": [transport]}
    try:
        found = Manifest.parse(document, where).remote
        if found is None:
            raise InvalidConfig(f'{where}: "type" is none of http, sse and websocket')
        found.check_remote()
    except InvalidManifest as error:
        raise InvalidConfig(f"{where}: {error.message.removeprefix(where).lstrip(': ')}") from error
    try:
        program = remote_program(name)
    except NotSupported as error:
        # One server that cannot be reached is no reason to do without the others.
        log.warning("%s: %s", where, error.message)
        return Command((), elsewhere=True, missing=error.message)
    return Command((*program.argv, "--manifest-fd"), document=dump_json(document), elsewhere=True)


def _add(commands: dict[str, Command], name: str, command: Command, where: str) -> None:
    if not is_server_name(name):
        raise InvalidConfig(f"{where}: {name[:140]!r} cannot be the name of a server: it is part of a URL path")
    if name in commands:
        raise InvalidConfig(f"{where}: the server {name!r} is listed twice")
    commands[name] = command
