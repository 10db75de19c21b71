# SPDX-License-Identifier: LGPL-2.1-or-later
"""What script servers would offer, found by having ``mcp-scripts`` describe them inside a sandbox without network."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.upstream import policy
from mcpd.errors import InvalidManifest, McpdError, NotSupported, SandboxUnavailable
from mcpd.model import load_json
from mcpd.runtime import permissions
from mcpd.runtime.bundled import scripts_program
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.run import run
from mcpd.runtime.sandbox import build_spec, script_mounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.paths import Paths, Scope
    from mcpd.store import InstalledServer, Store

TIMEOUT: Final = 60.0
"""Seconds for one server: three transforms have 5 each."""
FACILITIES: Final = ("tools", "resources", "prompts")


@dataclass(slots=True)
class Offer:
    """What clients would get of one server."""

    id: str
    source: str
    """The file that it is made from; empty for an entry of the map alone."""
    state: str
    """``script``; ``installed``, ``disabled`` and ``broken`` are not asked."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Describer:
    """Describes servers of *store*, some at once; *paths* are those of the machine, whose secrets stay hidden."""

    def __init__(self, store: Store, paths: Paths, scope: Scope, unavailable: str = "") -> None:
        """*unavailable*: why nothing shall be run."""
        self._store, self._paths, self._scope = store, paths, scope
        self._turn = asyncio.Semaphore(os.cpu_count() or 1)
        self.unavailable = unavailable
        """Why nothing is run here; what is not run is only read."""

    async def all(self, servers: Sequence[InstalledServer]) -> list[Offer]:
        """What each of *servers* would offer, in their order."""
        tasks = [asyncio.create_task(self._offer(server)) for server in servers]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _offer(self, server: InstalledServer) -> Offer:
        path = server.script.path if server.script is not None else server.directory
        offer = Offer(server.id, str(path or ""), "script" if server.script is not None else "installed")
        if server.problem:
            offer.state, offer.problems = "broken", [server.problem]
            return offer
        if server.clash:
            offer.problems.append(server.clash)
        if server.entry.disabled:
            offer.state = "disabled"
        elif server.script is not None:
            try:
                async with self._turn:
                    await self._describe(server, offer)
            except (SandboxUnavailable, NotSupported) as error:
                self.unavailable = error.message
            except McpdError as error:
                offer.problems.append(error.message)
        return offer

    async def _describe(self, server: InstalledServer, offer: Offer) -> None:
        document = await asyncio.to_thread(self._document, server)
        if self.unavailable:
            return
        with TemporaryDirectory(prefix="mcps-") as made:
            said = await self._run(server, await asyncio.to_thread(_written, made, document))
        for name in FACILITIES:
            setattr(offer, name, [item for item in _list(said, name) if isinstance(item, dict)])
        offer.problems += [str(problem) for problem in _list(said, "problems")]
        narrow(offer, server.entry.policy)

    def _document(self, server: InstalledServer) -> dict[str, Any]:
        """The private manifest of *server* without secrets, which are not needed to tell what it offers."""
        manifest = server.manifest
        if manifest is None:
            raise InvalidManifest(server.problem)
        values = self._store.config(server.id).values
        secret = {item.key for item in manifest.configurable_properties if item.sensitive}
        permissions.parse(server.id, manifest.permissions, values, sensitive=secret)
        return {**manifest.to_json(), "config": values}

    async def _run(self, server: InstalledServer, manifest: Path) -> object:
        directory = manifest.parent
        program = scripts_program(server.id, str(manifest))
        is_bare = server.script is None or server.script.path is None
        spec = build_spec(
            server.id,
            (*program.argv, "--describe"),
            cwd=directory if is_bare else server.directory,
            writable=(),
            readable=[directory, *(Path(mount.source) for mount in (*program.mounts(), *script_mounts(server)))],
            network=False,
            env={},
            paths=self._paths,
            scope=self._scope,
        )
        done = await run(PlainLauncher(), replace(spec, id=f"check:{server.id}"), timeout=TIMEOUT)
        if done.code:
            said = done.stderr_tail.strip().splitlines() or [f"it ended with status {done.code}"]
            raise InvalidManifest(f"{server.id}: cannot be described: {said[-1]}")
        return load_json(done.stdout, server.id)


def narrow(offer: Offer, rules: str) -> None:
    """Take from *offer* what the entries of the map, as the bridge gets them in *rules*, do not let clients have."""
    stages = policy.load(rules)
    if stages is None:
        return
    _, shape = stages.apply("tools/list", {})
    if shape is not None:
        response = {"result": jsonrpc.Raw(jsonrpc.encode({"tools": offer.tools}))}
        shape(response)
        offer.tools = _list(load_json(bytes(response["result"]), offer.id), "tools")
    for name in ("resources", "prompts"):
        try:
            stages.apply(f"{name}/list", {})
        except policy.Answered:
            setattr(offer, name, [])


def _written(directory: str, document: dict[str, Any]) -> Path:
    """The file in *directory*, which nobody else can look into, that *document* was written to."""
    path = Path(directory).resolve() / "manifest.json"
    path.write_bytes(json.dumps(document).encode())
    return path


def _list(said: object, name: str) -> list[Any]:
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, list) else []
