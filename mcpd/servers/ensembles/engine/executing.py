# SPDX-License-Identifier: LGPL-2.1-or-later
"""Execute an agent, by its kind, and retry temporary failures."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from mcpd.errors import InvalidArgument, InvalidManifest, LimitExceeded, McpdError, ServiceUnavailable, TimedOut
from mcpd.model import load_json, printable
from mcpd.servers.ensembles.engine.budget import Meter, Slots
from mcpd.servers.ensembles.engine.inputs import Given, as_text, chunks, gathered, parsed, selected
from mcpd.servers.ensembles.engine.types import MAX_DEPTH, MAX_RESPONSE, AgentResult, Fault, Prompt, ScriptCall, Usage
from mcpd.servers.ensembles.format import references
from mcpd.servers.ensembles.format.graph import require_sound, terminals
from mcpd.servers.ensembles.format.models import (
    DispatchAgent,
    EnsembleAgent,
    LoopAgent,
    McpAgent,
    ModelAgent,
    Profile,
    ScriptAgent,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcpd.servers.ensembles.engine.progress import Stretch
    from mcpd.servers.ensembles.engine.run import Whole
    from mcpd.servers.ensembles.engine.types import Found, RunResult
    from mcpd.servers.ensembles.format.models import Agent, Ensemble

MOST: Final = 120.0
"""Maximum delay in seconds that a provider may request; if it is longer, the agent fails instead of waiting."""
_BACKOFF: Final = wait_random_exponential(multiplier=0.5, max=30)
_RETRY_AFTER: Final = "retry_after"
T = TypeVar("T")


class Attempts:
    """The attempts of one agent."""

    def __init__(self, retries: int) -> None:
        self.made = 0
        self._retrying = AsyncRetrying(
            stop=stop_after_attempt(retries + 1),
            wait=_wait,
            retry=retry_if_exception(_is_transient),
            reraise=True,
            sleep=asyncio.sleep,
        )

    async def of(self, call: Callable[[], Awaitable[T]], seconds: float, whom: str) -> T:
        """Return the result of *call*, which may take *seconds* each time. Raises the error of the last attempt.

        *whom* names the callee in messages.
        """

        async def attempt() -> T:
            self.made += 1
            try:
                async with asyncio.timeout(seconds) as timeout:
                    return await call()
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise TimedOut(f"{whom} did not answer within {seconds:g} s; timeout_seconds gives it more") from None

        return await self._retrying(attempt)


def _is_transient(error: BaseException) -> bool:
    if not isinstance(error, (LimitExceeded, ServiceUnavailable, TimedOut)):
        return False
    after = _retry_after(error)
    # A limit without a delay is one that waiting does not lift.
    return after <= MOST if after is not None else not isinstance(error, LimitExceeded)


def _retry_after(error: McpdError) -> float | None:
    """Return the delay in seconds, or None for a limit that waiting does not lift."""
    data = error.data or {}
    if _RETRY_AFTER not in data:
        return None
    found = data[_RETRY_AFTER]
    return float(found) if isinstance(found, (int, float)) and found >= 0 else 0.0


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    after = _retry_after(error) if isinstance(error, McpdError) else None
    return max(after or 0.0, _BACKOFF(state) if not after else 0.0)


SECONDS: Final = {"model": 120.0, "script": 60.0, "ensemble": 300.0, "loop": 300.0, "dispatch": 300.0, "mcp": 300.0}
"""Default time limits of an attempt by kind of agent, in seconds."""
MODEL_RETRIES: Final = 2
"""Default number of retries for models, whose providers are sometimes overloaded."""
INTERNAL: Final = "an internal error, which the log has"
_FENCED: Final = re.compile(r"\s*```[a-zA-Z]*\n(.*)\n```\s*", re.DOTALL)

log: Final = logging.getLogger("llm-orc")


def faulted(agent: str, fault: McpdError) -> Fault:
    """Return *fault* as that of *agent*."""
    return Fault(fault.word, fault.message, agent, fault.data or {})


@dataclass(frozen=True, slots=True)
class Executor:
    """Executes one agent of a run of *found*; *values* returns the values for references."""

    whole: Whole
    found: Found
    values: Callable[[], Mapping[str, object]]
    stretch: Stretch

    async def execute(self, agent: Agent, given: Given, result: AgentResult) -> None:
        """Run *agent* with *given* and store its response in *result*. Raises McpdError."""
        given = replace(given, selected=selected(agent, given.dependencies))
        if agent.fan_out:
            await self._fan_out(agent, given, result)
        else:
            await self._respond(agent, given, result, self.stretch)

    async def _fan_out(self, agent: Agent, given: Given, result: AgentResult) -> None:
        elements = chunks(agent, given)
        self.whole.meter.begin(len(elements))
        waiting = iter(elements)
        instances: dict[int, AgentResult] = {}

        async def work() -> None:
            for chunk in waiting:
                name = f"{agent.name}[{chunk.index}]"
                one = AgentResult(name, result.kind, "success", started_at=time.time())
                instances[chunk.index] = one
                stretch = self.stretch.within("", max(1, chunk.total))
                await self._instance(agent, replace(given, chunk=chunk), one, stretch)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.whole.slots.most):
                    group.create_task(work())
        finally:
            result.instances = [instances[index] for index in sorted(instances)]
            result.attempts = max(1, sum(each.attempts for each in result.instances))
            for each in result.instances:
                result.usage += each.usage
            result.model = next((each.model for each in result.instances if each.model), None)
            result.provider = next((each.provider for each in result.instances if each.provider), None)
            result.profile = next((each.profile for each in result.instances if each.profile), None)
            result.fallback = any(each.fallback for each in result.instances)
        response, status = gathered(result.instances)
        if status == "failed" and result.instances:
            first = next(each.fault for each in result.instances if each.fault is not None)
            failed = McpdError(f"all its {len(result.instances)} instances failed; the first: {first.message}")
            failed.data = {**first.data, "instances": len(result.instances)}
            raise failed
        result.response = response

    async def _instance(self, agent: Agent, given: Given, one: AgentResult, stretch: Stretch) -> None:
        """Run one instance; its failure does not affect others."""
        try:
            await self._respond(agent, given, one, stretch)
        except McpdError as fault:
            one.status, one.fault = "failed", faulted(one.name, fault)
        except asyncio.CancelledError:
            one.status = "cancelled"
            raise
        except Exception:
            # An internal error affects only this instance.
            log.exception("%s of ensemble %s", one.name, self.found.ensemble.name)
            one.status, one.fault = "failed", Fault("Failed", INTERNAL, one.name)
        finally:
            one.completed_at = time.time()
        stretch.finish(replace(one, name=stretch.path(one.name)))

    async def _respond(self, agent: Agent, given: Given, result: AgentResult, stretch: Stretch) -> None:
        match agent:
            case ModelAgent():
                response = await self._model(agent, given, result, stretch)
            case ScriptAgent():
                response = await self._script(agent, given, result)
            case McpAgent():
                response = await self._tool(agent, given, result)
            case _:
                response = await self._ensembles(agent, given, result, stretch)
        if len(response) > MAX_RESPONSE:
            raise LimitExceeded(f"its response has {len(response)} characters; {MAX_RESPONSE} are the most")
        self.whole.meter.keep(len(response))
        result.response = response

    async def _model(self, agent: ModelAgent, given: Given, result: AgentResult, stretch: Stretch) -> str:
        text = given.for_model(agent.input_scope)
        try:
            return await self._asked(agent, agent.model_profile, text, result)
        except McpdError as fault:
            if agent.fallback_model_profile is None or self.whole.meter.spent() is not None:
                raise
            stretch.observer.fallback(stretch.path(result.name), fault)
        result.fallback = True
        return await self._asked(agent, agent.fallback_model_profile, text, result)

    async def _asked(self, agent: ModelAgent, name: str | None, text: str, result: AgentResult) -> str:
        """Return the answer of the model of the profile *name*, or of the model that *agent* itself names."""
        profile, trusted = self._profile(agent, name)
        result.model, result.provider, result.profile = profile.model, profile.provider, name
        as_json = agent.output_format == "json"
        prompt = Prompt(text, profile, profile.system_prompt, json=as_json, trusted=trusted)

        async def ask() -> str:
            self.whole.meter.check()
            completion = await self.whole.models.complete(prompt)
            usage = _usage(profile, completion.input_tokens, completion.output_tokens)
            self.whole.meter.add(usage)
            result.usage += usage
            result.model = completion.model or profile.model
            return _json_of(completion.text) if as_json else completion.text

        seconds = agent.timeout_seconds or profile.timeout_seconds or SECONDS["model"]
        retries = MODEL_RETRIES if agent.retries is None else agent.retries
        whom = f"{profile.provider} model {printable(profile.model)}"
        return await self._attempted(result, retries, ask, seconds, whom)

    def _profile(self, agent: ModelAgent, name: str | None) -> tuple[Profile, bool]:
        """Return the profile with the settings of *agent*, and whether its address was configured by the user."""
        source, origin = self.whole.source, self.found.origin
        if name is None:
            profile, trusted = Profile(model=agent.model or "", provider=agent.provider or "mock"), False
        else:
            profile, tier = source.profile_of(name, origin)
            trusted = tier != "project"
        own = {
            key: value
            for key in ("system_prompt", "temperature", "max_tokens")
            if (value := getattr(agent, key)) is not None
        }
        if agent.options is not None:
            own["options"] = {**(profile.options or {}), **agent.options}
        return (profile.model_copy(update=own) if own else profile), trusted

    async def _script(self, agent: ScriptAgent, given: Given, result: AgentResult) -> str:
        call = ScriptCall(
            agent=result.name,
            script=agent.script,
            parameters=agent.parameters,
            input=given.text,
            context=given.context(self.found.ensemble.name, result.name),
            origin=self.found.origin,
        )
        seconds = agent.timeout_seconds or SECONDS["script"]
        return await self._attempted(
            result,
            agent.retries,
            lambda: self.whole.scripts.run(call),
            seconds,
            f"script {printable(agent.script)}",
        )

    async def _tool(self, agent: McpAgent, given: Given, result: AgentResult) -> str:
        server, tool, said = agent.mcp.server, agent.mcp.tool, agent.mcp.arguments
        arguments = parsed(given.text) if said is None else references.substitute(said, self._named(given))
        if not isinstance(arguments, dict):
            raise InvalidArgument(
                f"the arguments of tool {printable(tool)} of server {server} are no object: name them in mcp.arguments"
            )
        seconds = agent.timeout_seconds or SECONDS["mcp"]
        whom = f"tool {printable(tool)} of server {server}"
        return await self._attempted(
            result, agent.retries or 0, lambda: self.whole.tools.call(server, tool, arguments), seconds, whom
        )

    async def _attempted(
        self, result: AgentResult, retries: int | None, call: Callable[[], Any], seconds: float, whom: str
    ) -> str:
        """Return the result of *call*, which takes one of the slots; only this waits for others."""
        attempts = Attempts(retries or 0)
        before = result.attempts if result.fallback else 0
        try:
            async with self.whole.slots.taken():
                if not result.fallback:
                    result.started_at = time.time()
                return str(await attempts.of(call, seconds, whom))
        finally:
            result.attempts = before + attempts.made

    async def _ensembles(
        self, agent: EnsembleAgent | LoopAgent | DispatchAgent, given: Given, result: AgentResult, stretch: Stretch
    ) -> str:
        if self.whole.depth >= MAX_DEPTH:
            raise LimitExceeded(f"ensembles run one another {MAX_DEPTH} levels deep at the most")
        seconds = agent.timeout_seconds or SECONDS[result.kind]
        attempts = Attempts(agent.retries or 0)

        async def run() -> str:
            match agent:
                case EnsembleAgent():
                    return await self._ran(agent.ensemble, given.text, result, stretch, 1)
                case DispatchAgent():
                    return await self._ran(self._target(agent, given), given.text, result, stretch, 1)
                case LoopAgent():
                    return await self._looped(agent, given.text, result, stretch)

        try:
            async with self.whole.nests:
                return await attempts.of(run, seconds, result.name)
        finally:
            result.attempts = attempts.made

    def _target(self, agent: DispatchAgent, given: Given) -> str:
        found = references.substitute(agent.dispatch, self._named(given))
        if not isinstance(found, str) or not found:
            raise InvalidArgument(f"dispatch {printable(agent.dispatch)} gives no name of an ensemble")
        return found.strip()

    def _named(self, given: Given) -> Mapping[str, object]:
        """Return the values for references: the run's input, the responses so far, and the element of an instance."""
        return self.values() if given.chunk is None else {**self.values(), "item": given.chunk.value}

    async def _looped(self, agent: LoopAgent, text: str, result: AgentResult, stretch: Stretch) -> str:
        loop = agent.loop
        for iteration in range(1, loop.max_iterations + 1):
            result.iterations = iteration
            said = await self._ran(loop.body, text, result, stretch, loop.max_iterations)
            found = parsed(said)
            values = found if isinstance(found, dict) else {}
            values = {**values, "deliverable": found}
            if references.holds(loop.until, values):
                break
            text = said if loop.carry is None else as_text(references.substitute(loop.carry, values))
        return said

    async def _ran(self, name: str, text: str, result: AgentResult, stretch: Stretch, parts: int) -> str:
        """Return the deliverable of the ensemble *name*; its progress is one of *parts* of this agent's."""
        from mcpd.servers.ensembles.engine.run import Run  # circular import

        found = self._other(name)
        ensemble, whole = found.ensemble, self.whole
        whole.meter.begin(len(ensemble.agents))
        inner = replace(
            whole,
            meter=Meter(ensemble.name, ensemble.budget, whole.meter),
            slots=Slots(ensemble.max_concurrent, whole.slots),
            nests=asyncio.Semaphore(ensemble.max_concurrent),
            depth=whole.depth + 1,
        )
        run = Run(
            inner,
            found,
            text or ensemble.default_task or "",
            stretches={
                each.name: stretch.within(f"{result.name}/", parts * len(ensemble.agents)) for each in ensemble.agents
            },
        )
        try:
            child = await run.complete()
        finally:
            result.usage += inner.meter.used
            result.child = run.result()
        return _delivered(ensemble, child)

    def _other(self, name: str) -> Found:
        """Return the ensemble *name*: the same in the whole run, even if its file changes meanwhile."""
        known, key = self.whole.others, (self.found.origin, name)
        if key not in known:
            found = self.whole.source.find(name, self.found.origin)
            require_sound(found.ensemble, file=printable(str(found.origin.file)))
            known[key] = found
        return known[key]


def _delivered(ensemble: Ensemble, child: RunResult) -> str:
    """Return the deliverable of *child*, a run of *ensemble*. Raises McpdError if there is none, or it is too long."""
    name = ensemble.name
    ends = (child.results[each].response for each in terminals(ensemble.agents))
    if (size := sum(len(each) for each in ends if each is not None)) > MAX_RESPONSE:
        raise LimitExceeded(f"what ensemble {name} delivers has {size} characters; {MAX_RESPONSE} are the most")
    if child.deliverable is not None and child.status in {"completed", "completed_with_errors"}:
        return child.deliverable
    faults = [each.fault for each in child.results.values() if each.fault is not None]
    first = child.fault or next(iter(faults), None)
    if first is None:
        if child.status == "completed":
            return ""
        raise McpdError(f"ensemble {name} has delivered nothing")
    agent = f"agent {first.agent}: " if first.agent else ""
    fault = McpdError(f"ensemble {name} failed: {agent}{first.message}")
    fault.data = {**first.data, "ensemble": name, "agent": first.agent, "error": first.error}
    raise fault


def _usage(profile: Profile, given: int, answered: int) -> Usage:
    beyond = profile.cost_per_token if profile.cost_per_output_token is None else profile.cost_per_output_token
    return Usage(given, answered, given * profile.cost_per_token + answered * beyond)


def _json_of(text: str) -> str:
    """Return *text*, which has to be JSON, without a code fence around it. Raises McpdError."""
    fenced = _FENCED.fullmatch(text)
    bare = fenced.group(1) if fenced else text.strip()
    try:
        load_json(bare, "the answer")
    except InvalidManifest:
        fault = McpdError("its answer is to be JSON, and is not")
        fault.data = {"output": text[:2000]}
        raise fault from None
    return bare
