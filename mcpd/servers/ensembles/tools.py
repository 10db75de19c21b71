# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools: their descriptions, and the format of their results."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidArgument
from mcpd.servers.checking import checked, validator_of
from mcpd.servers.ensembles.artifacts.execution import plain
from mcpd.servers.ensembles.artifacts.stored import rounded
from mcpd.servers.ensembles.engine.types import Silent
from mcpd.servers.ensembles.request import Stream
from mcpd.servers.ensembles.schemas import (
    Analysis,
    Analyze,
    Arguments,
    Edit,
    Execution,
    Invoke,
    Refusal,
    Result,
    Resume,
    Share,
    Update,
    Validate,
    Validation,
)
from mcpd.servers.ensembles.uris import artifact_uri
from mcpd.servers.json_schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from jsonschema import Draft202012Validator

    from mcpd.servers.ensembles.engine.types import AgentResult, Fault, Observer, RunResult
    from mcpd.servers.ensembles.request import Report, Say
    from mcpd.servers.ensembles.service import Outcome, Service

MOST_CHARACTERS: Final = 1024 * 1024
"""Maximum length of all responses in a result together, and of the deliverable, in characters; the artifact has all."""
_ALIASES: Final = {"input_data": "input"}
"""Other accepted names of arguments of ``invoke``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a call."""

    result: Result
    text: str | None = None
    """The text block; if None, *result* as JSON."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call, with the functions that report its progress to the client."""

    service: Service
    report: Report | None = None
    say: Say | None = None

    def observer(self, ensemble: str, *, streaming: bool) -> Observer:
        """Return the observer for a run of *ensemble*."""
        return Stream(ensemble, self.report, self.say) if streaming else Silent()


Run: TypeAlias = "Callable[[Call, Any], Coroutine[Any, Any, Answer]]"


@dataclass(frozen=True)
class Tool:
    """A tool; *read_only*, *destructive* and *open_world* are annotations of the MCP specification."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    result: type[Result]
    run: Run = field(repr=False)
    read_only: bool = False
    destructive: bool = False
    open_world: bool = False
    result_listed: bool = True
    """False for a tool with the same result as another one, whose schema need not take up context twice."""

    @cached_property
    def validator(self) -> Draft202012Validator:
        """The validator of arguments against the schema."""
        return validator_of(schema_of(self.arguments, mode="validation"))

    @cached_property
    def offered(self) -> dict[str, Any]:
        """The tool as listed by ``tools/list``."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": schema_of(self.arguments, mode="validation"),
            **({"outputSchema": schema_of(self.result, mode="serialization")} if self.result_listed else {}),
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.read_only,
                "destructiveHint": self.destructive,
                "idempotentHint": self.read_only,
                "openWorldHint": self.open_world,
            },
        }


def offered() -> list[dict[str, Any]]:
    """Return the tools as listed by ``tools/list``."""
    return [tool.offered for tool in TOOLS.values()]


async def call_tool(call: Call, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``tools/call`` for the tool *name*.

    Raises :class:`KeyError` for an unknown tool, :class:`~mcpd.errors.InvalidArgument` for arguments that do not match
    its schema, and the errors of the service.
    """
    tool = TOOLS[name]
    given = await asyncio.to_thread(checked, tool, _renamed(tool, arguments))
    answer = await tool.run(call, given)
    return await asyncio.to_thread(_told, answer)


def _renamed(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return *arguments* with aliases replaced by the listed names."""
    if tool.arguments is not Invoke:
        return dict(arguments)
    for alias, name in _ALIASES.items():
        if alias in arguments and name in arguments:
            raise InvalidArgument(f"{tool.name}: {alias} is another name of {name}; give one of them")
    return {_ALIASES.get(name, name): value for name, value in arguments.items()}


def _told(answer: Answer) -> dict[str, Any]:
    structured = answer.result.model_dump(mode="json", exclude_none=True)
    text = answer.text if answer.text is not None else json.dumps(structured, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": structured,
        "isError": answer.is_error,
    }


# ------------------------------------------------------------------------------------------------- implementations


async def _invoke(call: Call, given: Invoke) -> Answer:
    observer = call.observer(given.ensemble_name, streaming=given.streaming)
    outcome = await call.service.invoke_ensemble(
        given.ensemble_name, given.input, observer, plexus_context=given.plexus_context
    )
    return _ran(outcome, given.output_format)


async def _resume(call: Call, given: Resume) -> Answer:
    observer = call.observer(given.artifact_id.rpartition("/")[0], streaming=given.streaming)
    return _ran(await call.service.resume_execution(given.artifact_id, observer), given.output_format)


async def _update(call: Call, given: Update) -> Answer:
    edit = await call.service.update_ensemble(
        given.ensemble_name, given.changes, dry_run=given.dry_run, backup=given.backup
    )
    return Answer(edit)


async def _analyze(call: Call, given: Analyze) -> Answer:
    return Answer(await call.service.analyze_execution(given.artifact_id, plexus_feedback=given.plexus_feedback))


async def _validate(call: Call, given: Validate) -> Answer:
    return Answer(await call.service.validate_ensemble(given.ensemble_name, check_tools=given.check_tools))


def _ran(outcome: Outcome, output_format: str) -> Answer:
    result = outcome.result
    size = sum(len(each.response or "") for each in result.results.values())
    most = MOST_CHARACTERS if size <= MOST_CHARACTERS else MOST_CHARACTERS // len(result.results)
    shares = {name: _share(each, most) for name, each in result.results.items()}
    long = len(result.deliverable or "") > MOST_CHARACTERS
    execution = Execution(
        ensemble=result.ensemble,
        status=result.status,
        error=result.fault.message if result.fault else None,
        fault=_refusal(result.fault),
        artifact_id=outcome.artifact,
        artifact=artifact_uri(outcome.artifact) if outcome.artifact is not None else None,
        not_kept=outcome.problem,
        results=shares,
        deliverable=result.deliverable[:MOST_CHARACTERS] if result.deliverable is not None else None,
        seconds=rounded(result.completed_at - result.started_at),
        tokens=result.usage.total_tokens,
        cost_usd=result.usage.cost_usd,
        cut=long or any(each.cut for each in shares.values()) or None,
        plexus=outcome.plexus,
    )
    text = _as_text(result, execution) if output_format == "text" else None
    return Answer(execution, text, is_error=result.status == "failed")


def _share(result: AgentResult, most: int) -> Share:
    """Return the summary of *result*, with at most *most* characters of the response."""
    return Share(
        status=result.status,
        response=result.response[:most] if result.response is not None else None,
        error=result.fault.message if result.fault else None,
        fault=_refusal(result.fault),
        seconds=rounded(result.seconds),
        model=result.model,
        tokens=result.usage.total_tokens or None,
        cost_usd=result.usage.cost_usd or None,
        attempts=result.attempts if result.attempts > 1 else None,
        fallback=result.fallback or None,
        reused=result.reused or None,
        cut=len(result.response or "") > most or None,
    )


def _refusal(fault: Fault | None) -> Refusal | None:
    return None if fault is None else Refusal(error=fault.error, data=plain(fault.data) or None)


def _as_text(result: RunResult, execution: Execution) -> str:
    """Return the deliverable, followed by the failures, as text."""
    parts = [execution.deliverable] if execution.deliverable is not None else []
    if len(result.deliverable or "") > MOST_CHARACTERS:
        parts.append(f"All {len(result.deliverable or '')} characters of it are in {execution.artifact or 'no file'}.")
    if result.fault is not None:
        parts.append(f"{result.ensemble}: {result.fault.message}")
    parts += [
        f"{each.name}: {each.status}: {each.fault.message if each.fault else 'no response'}"
        for each in result.results.values()
        if each.status not in {"success", "skipped"}
    ]
    return "\n\n".join(parts)


TOOLS: Final = {
    tool.name: tool
    for tool in (
        Tool(
            "invoke",
            "Run an ensemble",
            "Execute an ensemble: models, scripts and tools that work on one input. The result has each agent's"
            " response, the deliverable, and the id of the stored artifact. llm-orc://ensembles lists the ensembles.",
            Invoke,
            Execution,
            _invoke,
            destructive=True,
            open_world=True,
        ),
        Tool(
            "update_ensemble",
            "Change an ensemble",
            "Modify ensemble configuration: add and remove agents, change their dependencies and model profiles. Only"
            " shows the changes unless dry_run is false; then the file is changed, its comments are kept, and the"
            " previous file is saved beside it. Changes that would cause an error are refused.",
            Update,
            Edit,
            _update,
            destructive=True,
        ),
        Tool(
            "analyze_execution",
            "Analyze a run",
            "Analyze execution results: the time and costs of a stored run, the failures and their reasons, and the"
            " agents that did not run because of them.",
            Analyze,
            Analysis,
            _analyze,
            open_world=True,
        ),
        Tool(
            "validate_ensemble",
            "Validate an ensemble",
            "Validate ensemble configuration: report errors by file and line, such as cycles, and missing agents,"
            " profiles, scripts, ensembles and servers.",
            Validate,
            Validation,
            _validate,
            read_only=True,
        ),
        Tool(
            "resume_execution",
            "Continue a run",
            "Run an ensemble again with the input of a stored run. Agents that have a response in it and whose"
            " definitions have not changed do not run again. The result has the form of that of invoke.",
            Resume,
            Execution,
            _resume,
            destructive=True,
            open_world=True,
            result_listed=False,
        ),
    )
}
