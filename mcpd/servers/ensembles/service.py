# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the server does: runs ensembles, keeps what has come of it, looks at it, and changes and checks ensembles."""

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
"""Runs that go on at the same time."""
_CALL: Final = 3600.0
"""Seconds that a tool of another server may take; that agent's own time is less."""

log = logging.getLogger(SERVER)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has come to."""

    artifact: str | None
    """Its id; None if it could not be kept."""
    problem: str | None
    """Why it could not be kept, or not as a whole."""
    result: RunResult
    plexus: Feedback | None


class Service:
    """The ensembles of one process. It is used in one loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.library = Library(settings)
        self.artifacts = Artifacts.of(self.library)
        self._models = HttpModels(settings.keys, ClientsModel(), lambda: checking.own_base_urls(self.library))
        self._scripts = ScriptAgents(settings, self.library.script)
        # A sandbox shows nothing of what is installed; and what mcpd starts is given a socket if it may call others.
        self._paths = None if settings.confined else from_environment()
        bridge = None if self._paths is None else self._paths.user.runtime / "bridge.sock"
        self._others = Others(SERVER, _CALL, grant='"permissions" of its manifest', bridge=bridge)
        self._runs: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._editing: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Cancel what runs, and wait until it is recorded. Nothing runs after that."""
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
        """Run the ensemble *name* with the input *text*. What fails in it is in the outcome.

        Cancelling it cancels the run, which is recorded all the same. Raises :class:`~mcpd.errors.NotFound`,
        :class:`~mcpd.errors.InvalidConfig` and, if too many run, :class:`~mcpd.errors.LimitExceeded`.
        """
        found, loaded, _ = await asyncio.to_thread(self.library.loaded, name)
        return await self._owned(self._run(found, loaded, text, observer, {}, plexus_context))

    async def resume_execution(self, artifact: str, observer: Observer) -> Outcome:
        """Run the ensemble of *artifact* again with the same input, without the agents that have a response there.

        Raises :class:`~mcpd.errors.Busy` for a run that goes on, and what :meth:`invoke_ensemble` does.
        """
        artifact = await asyncio.to_thread(self.artifacts.resolved, artifact)
        earlier = await asyncio.to_thread(self.artifacts.earlier, artifact)
        found, loaded, _ = await asyncio.to_thread(self._ran, artifact, earlier.ensemble)
        return await self._owned(self._run(found, loaded, earlier.input, observer, earlier.results, None))

    async def _owned(self, run: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Wait for *run* in a task of its own: what ends the request does not end the recording."""
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
            # Nobody may be left who waits for a fault.
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
        """The id by which the run *kept* below *root* is found: others may mean another ensemble by its name."""
        if kept is None:
            return None
        name, _, timestamp = kept.rpartition("/")
        return f"{self.artifacts.name(name, root)}/{timestamp}"

    async def _tell(
        self, found: Found, document: dict[str, Any], run: Callable[[], dict[str, Any]], context: str | None
    ) -> Feedback | None:
        """Tell Plexus of what *run* makes, in a thread; None if nobody wants that."""
        client, where = feedback.client(found, self._scripts.confinement, context)
        if client is None or not where:
            return feedback.unwanted(context)
        return await feedback.send(client, where, document, await asyncio.to_thread(run))

    def _ran(self, artifact: str, name: str) -> tuple[Found, Loaded, str]:
        """The ensemble that left *artifact* behind, which says that it is of *name*.

        Raises :class:`~mcpd.errors.NotFound` if there is none any more: another one of that name has not run there.
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
        """What there is to say of *artifact*. Raises :class:`~mcpd.errors.NotFound`."""
        artifact = await asyncio.to_thread(self.artifacts.resolved, artifact)
        document = await asyncio.to_thread(self.artifacts.read, artifact)
        analysis = await asyncio.to_thread(analyze, document)
        name = str(document.get("ensemble") or bare(artifact.rpartition("/")[0]))
        told = None
        if plexus_feedback:
            # The ensemble may be there no more, or be wrong by now.
            with suppress(McpdError):
                found, loaded, _ = await asyncio.to_thread(self._ran, artifact, name)
                about = {**document, "analysis": analysis, "artifact_id": artifact}
                told = await self._tell(found, loaded.document, lambda: about, None)
        return Analysis(
            artifact_id=artifact, ensemble=name, status=str(document.get("status")), analysis=analysis, plexus=told
        )

    async def validate_ensemble(self, name: str, *, check_tools: bool = False) -> Validation:
        """What is wrong with the ensemble *name*; with *check_tools* its servers are asked for their tools.

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
        """Change the file of the ensemble *name* and keep the rest of it as it is; with *dry_run* only say how.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.InvalidArgument` for changes that cannot be made,
        :class:`~mcpd.errors.InvalidConfig` for such as would leave an ensemble with new faults, and
        :class:`~mcpd.errors.ReadOnly`.
        """
        found, _, _ = await asyncio.to_thread(self.library.loaded, name)
        # What another call has changed meanwhile is read again.
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
        """The names of the tools of each server that *found* calls, and a finding for each that does not tell."""
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
