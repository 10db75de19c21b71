# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that follow a branch: what is installed may be behind it while their version and entry stay the same.

``revisions.json`` in the cache holds where branches were when somebody last asked, for mcpd may end in between.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest, McpdError
from mcpd.install.git import GitRecipe
from mcpd.install.lockfile import read_lock
from mcpd.install.updates import is_pinned, recorded_registry
from mcpd.install.workbench import Workbench
from mcpd.model import COMMIT, SourceType, load_json
from mcpd.store.files import is_missing, make_directory, read_file, remove_tree, write_atomic
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mcpd.install.job import Job
    from mcpd.install.workbench import Tools
    from mcpd.model import Manifest
    from mcpd.store import InstalledServer, Store

PARALLEL: Final = 4
"""Repositories that are asked at once."""
_NAMED: Final = 12
"""Digits of a commit id that a listing shows."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen of one server."""

    head: str
    """The commit that its branch was at."""
    made_from: tuple[str, ...]
    """The commits of the generations that there were. What came later was made from a newer look at the branch, or
    from another one."""


class Revisions:
    """The commits that branches were at when somebody last asked."""

    def __init__(self, tools: Tools, store: Store) -> None:
        self._tools = tools
        self._store = store
        self._cache = tools.paths.layout(tools.scope).cache
        self._looking = asyncio.Lock()
        self._looks: dict[str, _Look] | None = None
        """By server id; None until they were read."""

    async def look(self, job: Job, servers: Iterable[InstalledServer]) -> None:
        """Ask where the branches are that *servers* follow; of one that cannot be asked nothing new is known."""
        following = [one for one in servers if one.writable and one.manifest is not None and _follows(one.manifest)]
        async with self._looking:
            known = await in_thread(self._known)
            looks = {one.id: known[one.id] for one in following if one.id in known}
            await in_thread(remove_tree, self._scratch)  # what a killed mcpd left
            room = asyncio.Semaphore(PARALLEL)
            async with asyncio.TaskGroup() as group:
                for server in following:
                    group.create_task(self._look(job, server, room, looks))
            self._looks = looks
            await in_thread(self._keep, looks)

    def moved(self, server: InstalledServer, generation: Path) -> str:
        """The commit, in short, that the branch of *server* is at; empty if *generation* is made from it, or newer.

        Reads the disk.
        """
        look = self._known().get(server.id)
        if look is None or server.manifest is None or is_pinned(server.manifest):
            return ""
        installed = _commit(generation)
        return look.head[:_NAMED] if installed != look.head and installed in look.made_from else ""

    async def _look(self, job: Job, server: InstalledServer, room: asyncio.Semaphore, looks: dict[str, _Look]) -> None:
        try:
            made_from = await in_thread(self._made_from, server)
            async with room, asyncio.timeout(self._tools.settings.catalog.timeout):
                looks[server.id] = _Look(await self._ask(job, server), made_from)
        except (McpdError, OSError) as error:  # a TimeoutError is one
            said = error.message if isinstance(error, McpdError) else str(error) or "it does not answer in time"
            log.warning("%s: whether it has moved on cannot be told: %s", server.id, said)

    def _made_from(self, server: InstalledServer) -> tuple[str, ...]:
        numbers = [*self._store.generations(server.id), *filter(None, [server.pending_generation])]
        paths = [server.generation, *(server.generation.with_name(str(number)) for number in numbers)]
        return tuple(sorted({commit for path in paths if (commit := _commit(path))}))

    async def _ask(self, job: Job, server: InstalledServer) -> str:
        manifest = server.manifest
        assert manifest is not None  # noqa: S101 -- for the type checker: it was looked at
        assert manifest.source is not None  # noqa: S101 -- as well
        root = self._scratch / secrets.token_hex(8)
        try:
            await in_thread(make_directory, root)
            bench = Workbench(self._tools, job, manifest, root)
            await in_thread(bench.prepare)
            return await GitRecipe(bench, manifest.source).head()
        finally:
            await in_thread(remove_tree, root)

    @property
    def _scratch(self) -> Path:
        return self._cache / "revisions"

    @property
    def _file(self) -> Path:
        return self._cache / "revisions.json"

    def _known(self) -> dict[str, _Look]:
        if self._looks is None:
            self._looks = self._read()
        return self._looks

    def _read(self) -> dict[str, _Look]:
        try:
            document = load_json(read_file(self._file), str(self._file))
        except InvalidManifest as error:
            log.warning("%s; it is made anew by 'mcpctl update --check'", error.message)
            return {}
        except OSError as error:
            if not is_missing(error):
                log.warning("%s: %s", self._file, error.strerror)
            return {}
        found = document.items() if isinstance(document, dict) else ()
        return {server_id: look for server_id, said in found if (look := _parsed(said)) is not None}

    def _keep(self, looks: dict[str, _Look]) -> None:
        document = {server_id: asdict(look) for server_id, look in looks.items()}
        try:
            make_directory(self._cache)
            write_atomic(self._file, json.dumps(document).encode())
        except (McpdError, OSError) as error:
            log.warning("%s: it is forgotten with the end of mcpd: %s", self._file, error)


def _parsed(said: Any) -> _Look | None:
    head, made_from = (said.get("head"), said.get("made_from")) if isinstance(said, dict) else (None, None)
    if not isinstance(head, str) or not COMMIT.fullmatch(head) or not isinstance(made_from, list):
        return None
    return _Look(head, tuple(commit for commit in made_from if isinstance(commit, str)))


def _commit(generation: Path) -> str:
    """The commit that *generation* is made from; empty if it is made from something else."""
    resolved = read_lock(generation).get("resolved")
    commit = resolved.get("rev") if isinstance(resolved, dict) else None
    return commit if isinstance(commit, str) else ""


def _follows(manifest: Manifest) -> bool:
    """Whether an update may bring another commit although the registry says the same as before."""
    source = manifest.source
    return (
        source is not None
        and source.type is SourceType.GIT
        and not COMMIT.fullmatch(source.rev)
        and not is_pinned(manifest)
        and bool(recorded_registry(manifest))
    )
