# SPDX-License-Identifier: LGPL-2.1-or-later
"""An mcpd that does what a test says, on a real bus and with the signatures of the shipped interfaces."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

from mcpd.bus import codec
from mcpd.bus.connection import Connection
from mcpd.bus.contract import interfaces
from mcpd.bus.names import BUS_NAME, JOB, MANAGER, PROPERTIES, ROOT, SESSION, job_path, server_path, session_path
from mcpd.errors import InvalidArgument, McpdError, NotFound, NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bus.transport import Frame

CALCULATOR = {
    "id": "calculator",
    "name": "Calculator",
    "summary": "Adds numbers",
    "version": "1.0",
    "scope": "user",
    "state": "installed",
    "sandboxed": True,
    "configured": True,
}

_DEFAULTS = {"pinned": False}
"""What a server has under keys that it does not have."""


def need(kind: str, key: str, **more: object) -> dict[str, Any]:
    """An item of the property ``Needs`` of a job."""
    return {"kind": kind, "key": key, "label": "", "sensitive": False, "type": "", "description": "", **more}


NETWORK = need("permission", "network")


class Job:
    """A job of the fake: tests push its states."""

    def __init__(self, fake: FakeMcpd, number: int, kind: str, server_id: str) -> None:
        self.fake = fake
        self.path = job_path(number)
        self.calls: list[tuple[str, Any]] = []
        self.called = asyncio.Event()
        self.properties: dict[str, Any] = {
            "Id": codec.Variant("u", number),
            "Kind": kind,
            "ServerId": server_id,
            "State": "queued",
            "Progress": codec.Variant("u", 101),
            "Plan": codec.Variant("aa{sv}", []),
            "Durations": codec.Variant("a{sd}", {}),
            "Needs": codec.Variant("aa{sv}", []),
        }

    def enter(
        self,
        state: str,
        *,
        needs: list[dict[str, Any]] | None = None,
        plan: list[dict[str, Any]] | None = None,
        progress: int = 101,
        durations: dict[str, float] | None = None,
    ) -> None:
        changed = {
            "State": state,
            "Progress": codec.Variant("u", progress),
            "Needs": codec.Variant("aa{sv}", needs or []),
        }
        if durations is not None:
            changed["Durations"] = codec.Variant("a{sd}", durations)
        if plan is not None:
            changed["Plan"] = codec.Variant("aa{sv}", plan)
        self.properties.update(changed)
        self.fake.connection.emit(self.path, PROPERTIES, "PropertiesChanged", "sa{sv}as", [JOB, changed, []])

    def end(self, result: str = "done", error: str = "", message: str = "") -> None:
        self.enter(result)
        self.fake.connection.emit(self.path, JOB, "Finished", "sss", [result, error, message])
        self.fake.connection.emit(ROOT, MANAGER, "JobRemoved", "osss", [self.path, result, error, message])

    async def wait_call(self, count: int = 1) -> list[tuple[str, Any]]:
        """The calls made on the job, once there are *count*."""
        async with asyncio.timeout(120):
            while len(self.calls) < count:
                await self.called.wait()
                self.called.clear()
        return self.calls


class FakeMcpd:
    """Owns the bus name and answers from its attributes; :attr:`calls` holds what was asked of the Manager."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.servers: dict[str, dict[str, Any]] = {"calculator": dict(CALCULATOR)}
        self.pages: list[list[dict[str, Any]]] = [[]]
        self.sources: list[dict[str, Any]] = []
        self.registry: dict[str, Any] = {"state": "ready", "entries": 3}
        """What is found out about a source that is added, soon afterwards."""
        self.config: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self.generations: list[dict[str, Any]] = []
        """Of each server but those in :attr:`histories`."""
        self.histories: dict[str, list[dict[str, Any]]] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        """What servers were installed from."""
        self.changes: list[dict[str, Any]] = []
        """What the update that waits changes of the tools."""
        self.errors: dict[str, McpdError] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.received: list[bytes] = []
        self.jobs: list[Job] = []
        self.readings: list[Job] = []
        """The jobs that read registries, which the others do not count."""
        self.on_job: Callable[[Job], None] = lambda job: job.end()
        self.on_reading: Callable[[Job], None] = lambda job: job.end()
        self.program: list[str] = []
        self.features = ["spawn", "sandbox"]
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.spawned = asyncio.Event()
        self.job_started = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        connection.serve(self._on_call)

    async def close(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
        for process in self.processes.values():
            await process.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.connection.close()

    def _on_call(self, frame: Frame) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, frame: Frame) -> None:
        with frame.fds:
            try:
                values, fds = await self._dispatch(frame)
            except McpdError as error:
                self.connection.reply_error(frame, error.dbus_name, error.message)
                return
            except Exception as error:
                self.connection.reply_error(frame, McpdError.dbus_name, f"fault of the test's mcpd: {error!r}")
                raise
            signature = interfaces()[frame.interface].methods[frame.member].out_signature
            self.connection.reply(frame, signature, codec.marshal(signature, values), fds)
            for fd in fds:
                os.close(fd)

    async def _dispatch(self, frame: Frame) -> tuple[list[Any], list[int]]:
        args = frame.values()
        if frame.member in self.errors:
            raise self.errors[frame.member]
        if frame.interface == PROPERTIES:
            return [self._properties(frame.path, args[0])], []
        if frame.interface == JOB:
            return self._on_job_call(frame, args), []
        if frame.interface == SESSION:
            self.processes[frame.path].terminate()
            await self.processes[frame.path].wait()
            return [], []
        self.calls.append((frame.member, *args))
        handler = getattr(self, f"_{frame.member}", None)
        if frame.member == "Spawn":
            return await self._spawn(frame, *args)
        if handler is not None:
            return handler(frame, *args), []
        return [self._start_job(frame, args)], []

    def _properties(self, path: str, interface: str) -> dict[str, Any]:
        if interface == JOB:
            return next(job for job in (*self.jobs, *self.readings) if job.path == path).properties
        if interface == SESSION:
            return {"Pid": codec.Variant("u", self.processes[path].pid)}
        return {"Version": "1.2.3", "Scope": "user", "Features": self.features}

    def _server(self, server_id: str) -> dict[str, Any]:
        if server_id not in self.servers:
            raise NotFound(f"there is no server {server_id!r}")
        return self.servers[server_id]

    def _ListServers(self, _frame: Frame, wanted: dict[str, Any]) -> list[Any]:
        return [[server for server in self.servers.values() if wanted.items() <= (_DEFAULTS | server).items()]]

    def _GetServer(self, _frame: Frame, server_id: str) -> list[Any]:
        return [self._server(server_id), server_path(server_id)]

    def _ListAvailable(self, _frame: Frame, _query: dict[str, Any], cursor: str) -> list[Any]:
        page = int(cursor or 0)
        return [self.pages[page], str(page + 1) if page + 1 < len(self.pages) else ""]

    def _GetAvailable(self, _frame: Frame, server_id: str, options: dict[str, Any]) -> list[Any]:
        for entry in (entry for page in self.pages for entry in page):
            if entry["id"] == server_id and options.get("source", entry.get("origin")) == entry.get("origin"):
                return [entry]
        raise NotFound(f"no registry offers {server_id!r}")

    def _GetEntry(self, _frame: Frame, server_id: str) -> list[Any]:
        if server_id not in self.entries:
            raise NotSupported(f"{server_id} was not installed from an entry")
        return [json.dumps(self.entries[server_id])]

    def _GetHistory(self, _frame: Frame, server_id: str) -> list[Any]:
        self._server(server_id)
        return [self.histories.get(server_id, self.generations)]

    def _GetPending(self, _frame: Frame, server_id: str) -> list[Any]:
        server = self._server(server_id)
        if not server.get("pending-version"):
            raise NotFound(f"{server_id} has no pending update")
        update = {"generation": codec.Variant("u", 3), "version": server["pending-version"], "from-version": "1.0"}
        return [update, self.changes]

    def _SetPinned(self, _frame: Frame, server_id: str, pinned: object, _options: object) -> list[Any]:
        self._server(server_id)["pinned"] = pinned
        return []

    def _ListSources(self, _frame: Frame) -> list[Any]:
        return [self.sources]

    def _AddSource(self, _frame: Frame, url: str, _options: object) -> list[Any]:
        added: dict[str, Any] = {"url": url, "scope": "user", "state": "new", "file": "/f", "problem": ""}
        self.sources.append(added)
        asyncio.get_running_loop().call_soon(self._read, added)
        return []

    def _read(self, source: dict[str, Any]) -> None:
        source.update(self.registry)
        self.connection.emit(ROOT, MANAGER, "CatalogChanged")

    def _RemoveSource(self, _frame: Frame, url: str, _options: object) -> list[Any]:
        if url not in [source["url"] for source in self.sources]:
            raise NotFound(f"{url!r} is no source")
        return []

    def _GetConfig(self, _frame: Frame, server_id: str) -> list[Any]:
        self._server(server_id)
        return list(self.config.get(server_id, ({}, [])))

    def _SetConfig(self, _frame: Frame, server_id: str, _changes: object, _options: object) -> list[Any]:
        self._server(server_id)
        return []

    def _SetSecret(self, frame: Frame, server_id: str, _key: str, index: int, _options: object) -> list[Any]:
        self._server(server_id)
        self.received.append(read_all(frame.fds.get(index)))
        return []

    def _ListSessions(self, _frame: Frame) -> list[Any]:
        return [
            [
                {
                    "path": codec.Variant("o", path),
                    "server-id": "calculator",
                    "unit": "",
                    "state": "running",
                    "pid": codec.Variant("u", process.pid),
                    "owner-uid": codec.Variant("u", os.getuid()),
                    "started": codec.Variant("t", 1_700_000_000),
                }
                for path, process in self.processes.items()
                if process.returncode is None
            ]
        ]

    def _start_job(self, frame: Frame, args: list[Any]) -> str:
        if frame.member in {"InstallManifest", "InstallBundle"}:
            self.received.append(read_all(frame.fds.get(args[0])))
        server_id = args[0] if isinstance(args[0], str) else ""
        if isinstance(args[0], list) and len(args[0]) == 1:
            server_id = args[0][0]
        if frame.member == "InstallBundle":
            server_id = "calculator"
        if frame.member in {"CheckUpdates", "Refresh"}:
            reading = Job(self, 1000 + len(self.readings), frame.member.lower(), "")
            self.readings.append(reading)
            asyncio.get_running_loop().call_soon(self.on_reading, reading)
            return reading.path
        job = Job(self, len(self.jobs) + 1, frame.member.lower(), server_id)
        self.jobs.append(job)
        self.job_started.set()
        asyncio.get_running_loop().call_soon(self.on_job, job)
        return job.path

    def _on_job_call(self, frame: Frame, args: list[Any]) -> list[Any]:
        job = next(job for job in (*self.jobs, *self.readings) if job.path == frame.path)
        if frame.member == "SetSecret":
            self.received.append(read_all(frame.fds.get(args[1])))
        job.calls.append((frame.member, args))
        job.called.set()
        if frame.member == "Cancel":
            job.end("cancelled", "org.mcpd.Mcp1.Error.Cancelled", "the job was cancelled")
        return []

    async def _spawn(
        self, frame: Frame, server_id: str, fds: dict[int, int], flags: int, options: dict[str, Any]
    ) -> tuple[list[Any], list[int]]:
        self._server(server_id)
        if flags:
            raise InvalidArgument("unknown flag")
        ends: dict[int, int] = {}
        if fds:
            given = {number: frame.fds.get(index) for number, index in fds.items()}
            process = await self._start(given[0], given[1], given.get(2), options)
        else:
            stdin, ends[0] = os.pipe()
            ends[1], stdout = os.pipe()
            process = await self._start(stdin, stdout, None, options)
            os.close(stdin)
            os.close(stdout)
        path = session_path(len(self.processes) + 1)
        self.processes[path] = process
        self.spawned.set()
        waiter = asyncio.get_running_loop().create_task(self._announce_exit(path, process, frame.sender))
        self._tasks.add(waiter)
        waiter.add_done_callback(self._tasks.discard)
        return [path, dict(zip(ends, range(len(ends)), strict=True))], list(ends.values())

    async def _start(
        self, stdin: int, stdout: int, stderr: int | None, options: dict[str, Any]
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.program,
            stdin=stdin,
            stdout=stdout,
            stderr=asyncio.subprocess.DEVNULL if stderr is None else stderr,
            env={"PATH": os.environ["PATH"], **options.get("environment", {})},
        )

    async def _announce_exit(self, path: str, process: asyncio.subprocess.Process, owner: str) -> None:
        code = await process.wait()
        told = ["success" if code == 0 else "failed", code if code >= 0 else 128 - code]
        self.connection.emit(path, SESSION, "Exited", "si", told, destination=owner)


async def fake_mcpd(address: str) -> FakeMcpd:
    """A fake that owns mcpd's name on the bus at *address*."""
    connection = await Connection.open(address)
    assert await connection.request_name(BUS_NAME)
    return FakeMcpd(connection)


def read_all(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read()
