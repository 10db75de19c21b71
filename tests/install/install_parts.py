# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of installations are made of: a scope of one's own, servers that behave and servers that do not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import stat
import tarfile
import zipfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.catalog import CatalogEntry
from mcpd.errors import NotFound
from mcpd.install import Installer, InstallOptions, Job, JobEvent, JobState
from mcpd.model import Entry
from mcpd.paths import Paths, Scope, from_environment
from mcpd.runtime.launchers import Launchers, PlainLauncher
from mcpd.runtime.sessions import Sessions
from mcpd.settings import InstallSettings, RuntimeSettings, Settings
from mcpd.store import Store
from mcpd.trust.keys import Keys
from tests.loopback import Loopback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

SERVER = """
import fcntl, json, os, sys, time

MODE = sys.argv[1] if len(sys.argv) > 1 else "ok"


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()


def tool(name):
    return {"name": name, "inputSchema": {"type": "object"}}


def meet(mine, other):
    open(os.environ["HOME"] + "/" + mine, "w").close()
    while not os.path.exists(os.environ["HOME"] + "/" + other):
        time.sleep(0.01)


def main():
    if MODE == "exit":
        sys.exit("cannot find my database")
    if MODE == "alone":
        lock = open(os.environ["HOME"] + "/lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit("another one runs")
    if MODE == "garbage":
        while True:
            print("this is no JSON-RPC at all")
    if MODE == "flood":
        while True:
            sys.stderr.write("complaint " * 100 + "\\n")
    if MODE == "banner":
        print("Welcome to my server!", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if "id" not in message or MODE == "silent":
            continue
        if MODE == "dual-busy" and method == "initialize":
            meet("working", "refused")
        if MODE == "dual-busy" and method == "server/discover" and not os.path.exists(os.environ["HOME"] + "/refused"):
            meet("refused", "working")
            sys.exit("another one works")
        modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})
        if method == "initialize" and MODE != "modern-only":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x"}}
        elif method == "server/discover" and MODE in ("dual", "dual-busy", "modern-only"):
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        elif method == "tools/list" and (MODE != "modern-only" or modern):
            result = {"tools": [tool("hello")]}
            if MODE == "pages":
                page = int(params.get("cursor", "0"))
                result = {"tools": [tool(f"t{page}")], **({"nextCursor": str(page + 1)} if page < 4 else {})}
            if MODE == "endless":
                result["nextCursor"] = "again"
            if MODE == "config":
                found = json.load(open("manifest.json"))["config"]
                result = {"tools": [tool(f"{key}={value}") for key, value in sorted(found.items())]}
            if MODE == "asks":
                send({"id": "mine", "method": "ping"})
                answer = json.loads(sys.stdin.readline())
                result = {"tools": [tool(f"pinged-{answer.get('result')}")]}
            if MODE == "which":
                import importlib.metadata as m
                result = {"tools": [tool(sys.executable), tool(str(sys.version_info[:2]))]}
        else:
            send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
            continue
        send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
"""


class Shelf:
    """A catalog whose entries the test puts there."""

    def __init__(self) -> None:
        self.entries_by_id: dict[str, Entry] = {}
        self.origin = "file:///registry.json"
        self.refreshed = 0
        self.signer = ""
        """Name of the key that vouches for all of it."""
        self.pinned: set[str] = set()

    def put(self, document: Mapping[str, Any]) -> None:
        entry = Entry.parse(dict(document), "test")
        self.entries_by_id[entry.id] = entry

    def find(self, server_id: str, source: str = "") -> CatalogEntry:
        if server_id not in self.entries_by_id:
            raise NotFound(f"no source offers {server_id}")
        return self._offer(server_id)

    def offers(self, ids: Collection[str]) -> dict[str, list[CatalogEntry]]:
        return {key: [self._offer(key)] for key in self.entries_by_id.keys() & set(ids)}

    def _offer(self, server_id: str) -> CatalogEntry:
        return CatalogEntry(self.entries_by_id[server_id], self.origin, bool(self.signer), self.signer)

    def pins_sha256(self, sha256: str) -> str:
        return self.signer if self.signer and sha256 in self.pinned else ""

    async def refresh(self, progress: Any = None) -> list[Any]:
        self.refreshed += 1
        if progress:
            progress(1, 1)
        return []


@dataclass
class World:
    """One scope with everything an installation needs."""

    paths: Paths
    store: Store
    shelf: Shelf
    sessions: Sessions
    installer: Installer
    events: list[tuple[int, str, JobState, int]] = field(default_factory=list)

    async def install(self, document: Mapping[str, Any], **options: Any) -> Job:
        """Install what *document* says and wait for the end."""
        job = self.begin(document, **options)
        await job.wait()
        return job

    async def fetch(self, document: Mapping[str, Any], **options: Any) -> Job:
        """Have the registry offer what *document* says, install it from there and wait for the end."""
        self.shelf.put(document)
        options.setdefault("consent", True)
        job = await self.installer.install(document["id"], InstallOptions(**options), os.getuid())
        await job.wait()
        return job

    async def update(self, *server_ids: str, **options: Any) -> Job:
        """Update *server_ids* (none: all) and wait for the end."""
        job = await self.installer.update(server_ids, InstallOptions(**options), os.getuid())
        await job.wait()
        return job

    def updates(self) -> dict[str, str]:
        """The versions of what registries have newer, by id."""
        return {server_id: update.version for server_id, update in self.installer.updates().items()}

    def begin(self, document: Mapping[str, Any], **options: Any) -> Job:
        options.setdefault("consent", True)
        return self.installer.install_manifest(json.dumps(document).encode(), InstallOptions(**options), os.getuid())

    def states(self, job: Job) -> list[JobState]:
        """The states *job* went through."""
        found: list[JobState] = []
        for number, _, state, _ in self.events:
            if number == job.number and (not found or found[-1] is not state):
                found.append(state)
        return found

    def left_over(self) -> list[str]:
        """What no server accounts for."""
        layout = self.paths.user
        known = {f"{s.id}/{n}" for s in self.store.list() for n in self.store.generations(s.id)}
        found = [
            f"{directory.name}/{path.name}"
            for directory in (layout.generations.iterdir() if layout.generations.is_dir() else ())
            if directory.is_dir()
            for path in directory.iterdir()
            if f"{directory.name}/{path.name.removesuffix('.tools.json')}" not in known
        ]
        return found + [str(path) for path in layout.generations.rglob(".mcpd-build")]


@asynccontextmanager
async def make_world(scope: Scope = Scope.USER, *, max_sessions: int = 64, **install: Any) -> AsyncIterator[World]:
    """A scope in the directories that the environment names, where *max_sessions* servers may run at once."""
    paths = from_environment()
    settings = Settings(
        install=InstallSettings(**({"health_timeout": 120} | install)),
        runtime=RuntimeSettings(max_sessions=max_sessions),
    )
    store = Store(paths, scope, keep_generations=settings.install.keep_generations)
    launcher, shelf = PlainLauncher(), Shelf()
    sessions = Sessions(store, launcher, paths, settings, scope)
    launchers = Launchers(launcher, launcher)
    keys = Keys(paths, scope)
    installer = Installer(store, shelf, sessions, launchers, paths, settings, scope, keys)  # type: ignore[arg-type]
    world = World(paths, store, shelf, sessions, installer)

    def note(event: JobEvent) -> None:
        world.events.append((event.job.number, event.kind, event.job.state, event.job.progress))

    installer.jobs.subscribe(note)
    try:
        yield world
    finally:
        await installer.close()
        await sessions.close()


def project(directory: Path, files: Mapping[str, str] | None = None) -> Path:
    """A directory with ``server.py`` and *files*."""
    for name, text in {"server.py": SERVER, **(files or {})}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def local(directory: Path, mode: str = "ok", **fields: Any) -> dict[str, Any]:
    """An entry for the project in *directory*."""
    return {
        "id": "org.test.hello",
        "name": "Hello",
        "summary": "Says hello",
        "version": "1.0",
        "transports": [{"type": "stdio", "command": "python3", "args": ["server.py", mode]}],
        "source": {"type": "local", "path": str(directory)},
        **fields,
    }


def wheel(
    directory: Path,
    name: str = "fake-server",
    version: str = "1.0",
    *,
    scripts: tuple[str, ...] = ("fake-server",),
    requires: tuple[str, ...] = (),
    extra: Mapping[str, str] | None = None,
) -> Path:
    """A wheel whose console scripts are the test server."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": SERVER,
        f"{module}/__main__.py": f"from {module} import main\nmain()\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\n" + "".join(f"{s} = {module}:main\n" for s in scripts),
        **(extra or {}),
    }
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for path, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


def sdist(directory: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """A source distribution with *files*."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}.tar.gz"
    path.write_bytes(tarball({f"{name}-{version}/{member}": text for member, text in files.items()}))
    return path


def tarball(files: Mapping[str, str]) -> bytes:
    """A gzipped tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, text in files.items():
            entry = tarfile.TarInfo(member)
            entry.size, entry.mode = len(text.encode()), stat.S_IFREG | 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def index(root: Path, *files: Path, hashes: Mapping[str, str] | None = None, url: str = "") -> str:
    """A package index with *files*, as a ``file:`` URL; *hashes* replaces what it says about a file.

    With *url*, where *root* is served, the index is there.
    """
    top = url or root.as_uri()
    pages: dict[str, list[str]] = {}
    for path in files:
        package = path.name.split("-")[0].replace("_", "-").lower()
        digest = (hashes or {}).get(path.name) or hashlib.sha256(path.read_bytes()).hexdigest()
        pages.setdefault(package, []).append(
            f'<a href="{top}/{path.relative_to(root)}#sha256={digest}">{path.name}</a>'
        )
    for package, links in pages.items():
        page = root / "simple" / package / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"<!DOCTYPE html><html><body>{'<br>'.join(links)}</body></html>")
    (root / "simple").mkdir(parents=True, exist_ok=True)
    return f"{top}/simple"


class FileServer(Loopback):
    """Serves the directory *root* by HTTP, as files that never change."""

    def __init__(self, root: Path) -> None:
        self.asked: list[str] = []
        """Names of the files that were fetched."""
        server = self

        class Handler(SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(root))

            def end_headers(self) -> None:
                self.send_header("Cache-Control", "max-age=365000000, immutable, public")
                super().end_headers()

            def do_GET(self) -> None:
                server.asked.append(self.path.rpartition("/")[2])
                super().do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self.serve(Handler)


async def reach(job: Job, world: World, state: JobState) -> None:
    """Wait until *job* is in *state*."""
    reached = asyncio.Event()

    def look(_: JobEvent | None = None) -> None:
        if job.state is state or job.state.finished:
            reached.set()

    end = world.installer.jobs.subscribe(look)
    look()
    await reached.wait()
    end()
    assert job.state is state, job.error


def running(directory: Path) -> list[str]:
    """Command lines of living processes that name *directory*."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line and int(process.name) != os.getpid():
            found.append(line)
    return found
