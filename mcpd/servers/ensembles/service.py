# SPDX-License-Identifier: LGPL-2.1-or-later
"""The operations of the server: run, continue, analyze, check and change ensembles."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from mcpd.errors import Cancelled, InvalidConfig, LimitExceeded, McpdError, NotFound
from mcpd.model import printable
from mcpd.paths import from_environment
from mcpd.servers.ensembles import checking, feedback
from mcpd.servers.ensembles.agents.scripts import ScriptAgents
from mcpd.servers.ensembles.agents.tool_calls import ServerTools
from mcpd.servers.ensembles.artifacts import execution
from mcpd.servers.ensembles.artifacts.analysis import analyze
from mcpd.servers.ensembles.artifacts.places import bare
from mcpd.servers.ensembles.artifacts.store import Artifacts
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.editing import edit, writing
from mcpd.servers.ensembles.engine.engine import Engine
from mcpd.servers.ensembles.format.graph import require_sound
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.format.models import McpAgent
from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.providers.models import HttpModels
from mcpd.servers.ensembles.request import ClientsModel, hops
from mcpd.servers.ensembles.schemas import Analysis, Edit, Feedback, Finding, Validation
from mcpd.servers.others import Others

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
    from pathlib import Path

    from mcpd.servers.ensembles.editing.planning import Changes
    from mcpd.servers.ensembles.engine.types import AgentResult, Found, Observer, RunResult
    from mcpd.servers.ensembles.format import validation
    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.settings import Settings

MOST_RUNS: Final = 32
"""Maximum number of concurrent runs."""
_CALL: Final = 3600.0
"""Time limit in seconds for a tool of another server; the agent's own limit is shorter."""

log = logging.getLogger(SERVER)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run and of recording it."""

    artifact: str | None
    """Id of the artifact; None if it could not be saved."""
    problem: str | None
    """The reason why it could not be saved, or not completely."""
    result: RunResult
    plexus: Feedback | None


class Service:
    """The ensembles of one process, used in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.library = Library(settings)
        self.artifacts = Artifacts.of(self.library)
        self._models = HttpModels(settings.keys, ClientsModel(), lambda: checking.own_base_urls(self.library))
        self._scripts = ScriptAgents(settings, self.library.script)
        # In a sandbox installed servers are not visible, but mcpd provides a socket if other servers may be called.
        self._paths = None if settings.confined else from_environment()
        bridge = None if self._paths is None else self._paths.user.runtime / "bridge.sock"
        self._others = Others(SERVER, _CALL, grant='"permissions" of its manifest', bridge=bridge)
        self._runs: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._editing: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Cancel all runs, and wait until they are recorded. Nothing can be run after that."""
        self._closing = True
        for task in self._runs:
            task.cancel()
        if self._runs:
            await asyncio.wait(self._runs)
        self._scripts.close()
        await self._models.close()

    # ------------------------------------------------------------------------------------------------------- running

    async def invoke_ensemble(
        self, name: str, text: str, observer: Observer, *, plexus_context: str | None = None
    ) -> Outcome:
        """Run the ensemble *name* with the input *text*. Failures in the run are part of the outcome.

        Cancellation cancels the run, which is recorded nevertheless. Raises :class:`~mcpd.errors.NotFound`,
        :class:`~mcpd.errors.InvalidConfig` and, for too many runs, :class:`~mcpd.errors.LimitExceeded`.
        """
        found, loaded, _ = await asyncio.to_thread(self.library.loaded, name)
        return await self._owned(self._run(found, loaded, text, observer, {}, plexus_context))

    async def resume_execution(self, artifact: str, observer: Observer) -> Outcome:
        """Run the ensemble of *artifact* again with the same input, reusing the responses that it contains.

        Raises :class:`~mcpd.errors.Busy` if the run has not ended, and the errors of :meth:`invoke_ensemble`.
        """
        artifact = await asyncio.to_thread(self.artifacts.resolved, artifact)
        earlier = await asyncio.to_thread(self.artifacts.earlier, artifact)
        found, loaded, _ = await asyncio.to_thread(self._ran, artifact, earlier.ensemble)
        return await self._owned(self._run(found, loaded, earlier.input, observer, earlier.results, None))

    async def _owned(self, run: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Await *run* in a task of its own, so that the end of the request does not end the recording."""
        if self._closing:
            run.close()
            raise Cancelled("the server ends; nothing runs any more")
        if len(self._runs) >= MOST_RUNS:
            run.close()
            raise LimitExceeded(f"{MOST_RUNS} runs go on at the same time; wait for one of them")
        task: asyncio.Task[Outcome] = asyncio.create_task(run)
        self._runs.add(task)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._runs.discard(task)
        if not task.cancelled():
            # Retrieve the exception, as nobody may be waiting for it.
            task.exception()

    async def _run(
        self,
        found: Found,
        loaded: Loaded,
        text: str,
        observer: Observer,
        earlier: Mapping[str, AgentResult],
        plexus_context: str | None,
    ) -> Outcome:
        require_sound(found.ensemble, loaded, str(found.origin.file))
        document = loaded.document
        root = self.library.artifact_root(found.origin)
        name = found.ensemble.name
        engine = Engine(self.library, self._models, self._scripts, self._tools())
        async with self.artifacts.recording(root, name, text or found.ensemble.default_task or "", document) as kept:
            result = await engine.run(found, text, observer=observer, journal=kept, earlier=earlier)
        artifact = await asyncio.to_thread(self._id, kept.id, root)
        told = await self._tell(
            found, document, lambda: {**execution.ended(result), "artifact_id": artifact}, plexus_context
        )
        return Outcome(artifact, kept.problem, result, told)

    def _id(self, kept: str | None, root: Path) -> str | None:
        """Return the id of the run *kept* below *root*, with the name that means its ensemble."""
        if kept is None:
            return None
        name, _, timestamp = kept.rpartition("/")
        return f"{self.artifacts.name(name, root)}/{timestamp}"

    async def _tell(
        self, found: Found, document: dict[str, Any], run: Callable[[], dict[str, Any]], context: str | None
    ) -> Feedback | None:
        """Notify Plexus of the result of *run*, called in a thread; return None if no Plexus is configured."""
        client, where = feedback.client(found, self._scripts.confinement, context)
        if client is None or not where:
            return feedback.unwanted(context)
        return await feedback.send(client, where, document, await asyncio.to_thread(run))

    def _ran(self, artifact: str, name: str) -> tuple[Found, Loaded, str]:
        """Return the ensemble that *artifact*, which says that it is of *name*, is a run of.

        Raises :class:`~mcpd.errors.NotFound` if it no longer exists: another one of that name has not run there.
        """
        known = artifact.rpartition("/")[0]
        found, loaded, text = self.library.loaded(known)
        if name != found.ensemble.name or not self.artifacts.is_in(artifact, self.library.artifact_root(found.origin)):
            raise NotFound(
                f"{printable(artifact)} is a run of another {printable(name)} than the ensemble {printable(known)},"
                f" which is in {printable(str(found.origin.file))}; invoke that"
            )
        return found, loaded, text

    def _tools(self) -> ServerTools:
        return ServerTools(self._others, hops=hops(), paths=self._paths)

    # ------------------------------------------------------------------------------------- looking, changing, checking

    async def analyze_execution(self, artifact: str, *, plexus_feedback: bool) -> Analysis:
        """Return the analysis of *artifact*. Raises :class:`~mcpd.errors.NotFound`."""
        artifact = await asyncio.to_thread(self.artifacts.resolved, artifact)
        document = await asyncio.to_thread(self.artifacts.read, artifact)
        analysis = await asyncio.to_thread(analyze, document)
        name = str(document.get("ensemble") or bare(artifact.rpartition("/")[0]))
        told = None
        if plexus_feedback:
            # The ensemble may have been removed, or be invalid.
            with suppress(McpdError):
                found, loaded, _ = await asyncio.to_thread(self._ran, artifact, name)
                about = {**document, "analysis": analysis, "artifact_id": artifact}
                told = await self._tell(found, loaded.document, lambda: about, None)
        return Analysis(
            artifact_id=artifact, ensemble=name, status=str(document.get("status")), analysis=analysis, plexus=told
        )

    async def validate_ensemble(self, name: str, *, check_tools: bool = False) -> Validation:
        """Return the faults of the ensemble *name*; with *check_tools*, its servers are queried for their tools.

        Raises :class:`~mcpd.errors.NotFound`.
        """
        try:
            found, loaded, _ = await asyncio.to_thread(self.library.loaded, name)
        except InvalidConfig as fault:
            findings = _told(checking.faults(fault))
            return Validation(ensemble=name, file=findings[0].file, valid=False, findings=findings)
        tools, unasked = await self._listed(found) if check_tools else ({}, [])
        findings = [*await self._check(found, loaded, tools), *unasked]
        return Validation(
            ensemble=found.ensemble.name,
            file=str(found.origin.file),
            valid=not any(each.severity == "error" for each in findings),
            agents=len(found.ensemble.agents),
            findings=findings,
        )

    async def update_ensemble(self, name: str, changes: Changes, *, dry_run: bool, backup: bool) -> Edit:
        """Change parts of the file of the ensemble *name*; with *dry_run*, only return the changes.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.InvalidArgument` for impossible changes,
        :class:`~mcpd.errors.InvalidConfig` for changes that would add faults, and :class:`~mcpd.errors.ReadOnly`.
        """
        found, _, _ = await asyncio.to_thread(self.library.loaded, name)
        # Within the lock the file is read again, as another call may have changed it.
        async with self._editing.setdefault(found.origin.file, asyncio.Lock()):
            return await self._update(name, changes, dry_run=dry_run, backup=backup)

    async def _update(self, name: str, changes: Changes, *, dry_run: bool, backup: bool) -> Edit:
        found, loaded, old = await asyncio.to_thread(self.library.loaded, name)
        file = str(found.origin.file)
        if not dry_run:
            writing.check_tier(found.origin)
        new = await asyncio.to_thread(edit.edited, old, changes, file)
        changed = await asyncio.to_thread(load, new, file)
        known = {(each.agent, each.message) for each in await self._check(found, loaded)}
        findings = await self._check(replace(found, ensemble=changed.ensemble), changed)
        worse = [each for each in findings if each.severity == "error" and (each.agent, each.message) not in known]
        diff = await asyncio.to_thread(edit.difference, old, new, file)
        if worse:
            refused = InvalidConfig(f"{name} is left as it is, as it would have a fault: {worse[0].message}")
            refused.data = {
                "file": file,
                "problems": [each.model_dump(exclude_none=True) for each in worse],
                "diff": diff,
            }
            raise refused
        kept = None
        if new != old and not dry_run:
            kept = await asyncio.to_thread(writing.write, found.origin.file, old, new, backup=backup)
            await asyncio.to_thread(self.library.refresh)
            log.info("%s was changed", printable(file))
        return Edit(
            ensemble=changed.ensemble.name,
            file=file,
            dry_run=dry_run,
            changed=new != old,
            diff=diff,
            backup=str(kept) if kept else None,
            findings=findings,
        )

    async def _check(
        self, found: Found, loaded: Loaded, tools: Mapping[str, Collection[str]] = MappingProxyType({})
    ) -> list[Finding]:
        servers = await self._tools().servers()
        access = self._models.access
        return _told(await asyncio.to_thread(checking.check, self.library, found, loaded, servers, access, tools))

    async def _listed(self, found: Found) -> tuple[dict[str, list[str]], list[Finding]]:
        """Return the tools of all servers that *found* uses, and a finding for each server that does not answer."""
        tools: dict[str, list[str]] = {}
        unasked = []
        agents = [each for each in found.ensemble.agents if isinstance(each, McpAgent)]
        for server in dict.fromkeys(each.mcp.server for each in agents):
            try:
                tools[server] = await self._tools().names(server)
            except McpdError as fault:
                agent = next(each.name for each in agents if each.mcp.server == server)
                unasked.append(
                    Finding(severity="warning", message=fault.message, file=str(found.origin.file), agent=agent)
                )
        return tools, unasked


def _told(findings: Iterable[validation.Finding]) -> list[Finding]:
    return [
        Finding(severity=each.severity, message=each.message, file=each.file, line=each.line, agent=each.agent)
        for each in findings
    ]
