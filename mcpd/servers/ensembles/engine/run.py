# SPDX-License-Identifier: LGPL-2.1-or-later
"""One run of one ensemble: the order of its agents, and the consequences of failures."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, TimedOut
from mcpd.servers.ensembles.engine.executing import INTERNAL, Executor, faulted
from mcpd.servers.ensembles.engine.inputs import MAX_GATHERED, Given, as_json, parsed
from mcpd.servers.ensembles.engine.types import AgentResult, Fault, RunResult, Silent
from mcpd.servers.ensembles.format import references
from mcpd.servers.ensembles.format.graph import terminals
from mcpd.servers.ensembles.format.models import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcpd.servers.ensembles.engine.budget import Meter, Slots
    from mcpd.servers.ensembles.engine.progress import Stretch
    from mcpd.servers.ensembles.engine.types import (
        Found,
        Journal,
        Models,
        Origin,
        RunStatus,
        Scripts,
        Source,
        ToolCaller,
    )
    from mcpd.servers.ensembles.format.models import Agent

log: Final = logging.getLogger("llm-orc")


@dataclass(frozen=True, slots=True)
class Whole:
    """The state shared by a run and the runs nested in it."""

    source: Source
    models: Models
    scripts: Scripts
    tools: ToolCaller
    meter: Meter
    slots: Slots
    nests: asyncio.Semaphore
    """Limits concurrent agents that run ensembles; nested runs have their own, to avoid deadlocks."""
    depth: int = 0
    others: dict[tuple[Origin, str], Found] = field(default_factory=dict)
    """The ensembles that agents run, by the origin and the name of the reference."""


class Run:
    """One run."""

    def __init__(
        self,
        whole: Whole,
        found: Found,
        text: str,
        *,
        stretches: Mapping[str, Stretch],
        define: Callable[[], Mapping[str, str]] | None = None,
        journal: Journal | None = None,
        earlier: Mapping[str, AgentResult] | None = None,
    ) -> None:
        """Prepare a run; *stretches* and *earlier* are by agent; *define* returns the definitions, in a thread."""
        self.whole, self.found, self.text = whole, found, text
        self.ensemble = found.ensemble
        self._stretches, self._define = stretches, define
        self._definitions: Mapping[str, str] = {}
        self._journal: Journal = journal or Silent()
        self._earlier = earlier or {}
        self._results: dict[str, AgentResult] = {}
        self._done = {agent.name: asyncio.Event() for agent in self.ensemble.agents}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop: Fault | None = None
        self._ending = self._cancelled = False
        self._final: RunResult | None = None
        self._started, self._completed = time.time(), 0.0

    async def complete(self) -> RunResult:
        """Run all agents. On cancellation, end everything that was started before raising."""
        seconds = self.ensemble.timeout_seconds
        try:
            if self._define is not None:
                self._definitions = await asyncio.to_thread(self._define)
            self._tasks = {asyncio.create_task(self._agent(agent)) for agent in self.ensemble.agents}
            done, late = await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if not task.cancelled():
                    task.result()
            if late:
                fault = TimedOut(f"{self.ensemble.name} was not done within {seconds:g} s; its timeout_seconds says so")
                self._stop = self._stop or faulted("", fault)
        except asyncio.CancelledError:
            self._cancelled = True
            raise
        finally:
            await self._end_all()
            self._completed = time.time()
        self._final = self.result()
        return self._final

    async def _end_all(self) -> None:
        """End all running tasks, even if this is cancelled repeatedly."""
        self._cancel_all()
        ending = asyncio.gather(*self._tasks, return_exceptions=True)
        cancelled = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                cancelled = True
        for agent in self.ensemble.agents:
            if agent.name not in self._results:
                self._results[agent.name] = self._ended(agent, "cancelled", self._stop)
        if cancelled and not self._cancelled:
            self._cancelled = True
            raise asyncio.CancelledError

    def _cancel_all(self) -> None:
        """Cancel each task but the current one, only once: a second time would interrupt its cleanup."""
        if self._ending:
            return
        self._ending = True
        here = asyncio.current_task()
        for task in self._tasks:
            if task is not here:
                task.cancel()

    def result(self) -> RunResult:
        """Return the result so far."""
        if self._final is not None:
            return self._final
        known = self._results
        results = {agent.name: known[agent.name] for agent in self.ensemble.agents if agent.name in known}
        return RunResult(
            ensemble=self.ensemble.name,
            status=self._status(),
            input=self.text,
            results=results,
            deliverable=self._deliverable(),
            started_at=self._started,
            completed_at=self._completed or time.time(),
            usage=self.whole.meter.used,
            fault=self._stop,
        )

    def _status(self) -> RunStatus:
        if self._cancelled:
            return "cancelled"
        statuses = {result.status for result in self._results.values()}
        if self._stop is not None or "success" not in statuses:
            # An ensemble whose agents were all skipped because of their conditions has completed.
            return "failed" if self._stop is not None or statuses != {"skipped"} else "completed"
        return "completed" if statuses <= {"success", "skipped"} else "completed_with_errors"

    def _deliverable(self) -> str | None:
        found = {
            name: response
            for name in terminals(self.ensemble.agents)
            if (result := self._results.get(name)) is not None and (response := result.response) is not None
        }
        if len(found) <= 1:
            return next(iter(found.values()), None)
        if sum(map(len, found.values())) > MAX_GATHERED:
            return None
        try:
            return as_json({name: parsed(response) for name, response in found.items()})
        except McpdError:
            # Too deeply nested for JSON, but it can be shown as text.
            return as_json(found)

    async def _agent(self, agent: Agent) -> None:
        for name in agent.depends_on:
            await self._done[name].wait()
        dependencies = {name: self._results[name] for name in agent.depends_on}
        result = self._reused(agent) or self._skipped(agent, dependencies)
        if result is None:
            result = await self._executed(agent, dependencies)
        result.definition = self._definitions.get(agent.name, "")
        self._results[agent.name] = result
        self._journal.finished(result)
        stretch = self._stretches[agent.name]
        stretch.finish(replace(result, name=stretch.path(agent.name)))
        self._done[agent.name].set()
        if result.status == "failed" and (agent.on_failure or self.ensemble.on_failure) == "stop":
            self._stop_for(result)

    def _stop_for(self, result: AgentResult) -> None:
        """End the run, as its policy does not let it continue after the failed *result*."""
        if self._stop is None:
            self._stop = result.fault
        self._cancel_all()

    def _reused(self, agent: Agent) -> AgentResult | None:
        known = self._earlier.get(agent.name)
        if known is None or known.status != "success" or not known.definition:
            return None
        if known.definition != self._definitions.get(agent.name):
            return None
        return replace(known, reused=True) if all(map(self._unchanged, agent.depends_on)) else None

    def _unchanged(self, name: str) -> bool:
        """Return True if the agent *name* has the same response as in the earlier run, or had and has none."""
        now, then = self._results[name], self._earlier.get(name)
        return now.reused if now.status == "success" else then is None or then.status != "success"

    def _skipped(self, agent: Agent, dependencies: Mapping[str, AgentResult]) -> AgentResult | None:
        """Return the result of an agent that is not to be run, or None."""
        if dependencies and all(each.status != "success" for each in dependencies.values()):
            failed = [name for name, each in dependencies.items() if each.status == "failed" or each.fault is not None]
            if not failed:
                return self._ended(agent, "skipped", None)
            message = f"it was not run, as {', '.join(failed)} failed and it depends on nothing else"
            return self._ended(agent, "skipped", Fault("Failed", message, agent.name, {"failed": failed}))
        if agent.when is None:
            return None
        try:
            holds = references.holds(agent.when, self._values())
        except McpdError as fault:
            return self._ended(agent, "failed", faulted(agent.name, fault))
        return None if holds else self._ended(agent, "skipped", None)

    def _values(self) -> dict[str, object]:
        """Return the values for references: the input, and the responses so far."""
        said = {name: each.response for name, each in self._results.items() if each.response is not None}
        return {**said, "input": self.text}

    async def _executed(self, agent: Agent, dependencies: Mapping[str, AgentResult]) -> AgentResult:
        stretch = self._stretches[agent.name]
        stretch.started(agent.name)
        result = AgentResult(agent.name, kind_of(agent), "success", depends_on=agent.depends_on, started_at=time.time())
        executor = Executor(self.whole, self.found, self._values, stretch)
        try:
            await executor.execute(agent, Given(self.text, dependencies), result)
        except McpdError as fault:
            result.status, result.response, result.fault = "failed", None, faulted(agent.name, fault)
        except asyncio.CancelledError:
            result.status, result.response, result.fault = "cancelled", None, self._stop
            result.completed_at = time.time()
            self._results[agent.name] = result
            raise
        except Exception:
            # An internal error must not discard the results of other agents.
            log.exception("agent %s of ensemble %s", agent.name, self.ensemble.name)
            result.status, result.response, result.fault = "failed", None, Fault("Failed", INTERNAL, agent.name)
        result.completed_at = time.time()
        return result

    def _ended(self, agent: Agent, status: str, fault: Fault | None) -> AgentResult:
        now = time.time()
        return AgentResult(
            agent.name,
            kind_of(agent),
            status,  # type: ignore[arg-type]
            fault=fault,
            depends_on=agent.depends_on,
            started_at=now,
            completed_at=now,
            attempts=0,
        )
