# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs in the format of ``execution.json``: llm-orc's keys, and additional ones; :mod:`.stored` reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import LimitExceeded
from mcpd.servers.ensembles.artifacts.places import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcpd.servers.ensembles.engine.types import AgentResult, Fault, RunResult, Usage

CUTS: Final = (None, 64 * 1024, 1024)
"""Characters kept of responses, in successive attempts, if the file would be too large."""
_LONG: Final = frozenset({"response", "deliverable", "input", "error"})


def begun(ensemble: str, text: str, definition: Mapping[str, Any], started: float) -> dict[str, Any]:
    """Return the document of a run of *ensemble* with the input *text*, started at *started*, in seconds since 1970."""
    return {
        "ensemble": ensemble,
        "status": "running",
        "input": text,
        "results": {},
        "synthesis": None,
        "metadata": {"agents_used": 0, "started_at": started},
        "deliverable": None,
        "definition": plain(definition),
    }


def ended(result: RunResult, definition: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return *result* as a document; the *definition*, except of a nested run, is stored in it."""
    seconds = max(0.0, result.completed_at - result.started_at)
    document: dict[str, Any] = {
        "ensemble": result.ensemble,
        "status": result.status,
        "input": result.input,
        "results": {name: agent(each) for name, each in result.results.items()},
        "synthesis": None,
        "metadata": {
            "agents_used": len(result.results),
            "started_at": result.started_at,
            "duration": f"{seconds:.2f}s",
            "completed_at": result.completed_at,
            "usage": {"agents": _usage(result.results.values()), "totals": _totals(result)},
        },
        "deliverable": result.deliverable,
    }
    if result.fault is not None:
        document["fault"] = _fault(result.fault)
    if definition is not None:
        document["definition"] = plain(definition)
    return document


def agent(result: AgentResult) -> dict[str, Any]:
    """Return the result of an agent; fields without a value are omitted."""
    document: dict[str, Any] = {"response": result.response, "status": result.status}
    if result.fault is not None:
        document |= {"error": result.fault.message, "fault": _fault(result.fault)}
    more = {
        "kind": result.kind,
        "depends_on": list(result.depends_on),
        "model": result.model,
        "provider": result.provider,
        "profile": result.profile,
        "fallback": result.fallback,
        "iterations": result.iterations,
        "reused": result.reused,
        "definition": result.definition,
        "instances": [{"name": each.name, **agent(each)} for each in result.instances],
        "child": ended(result.child) if result.child else None,
    }
    return {
        **document,
        "started_at": result.started_at,
        "completed_at": result.completed_at,
        "attempts": result.attempts,
        "usage": _used(result.usage),
        **{key: value for key, value in more.items() if value},
    }


def line(result: AgentResult) -> bytes:
    """Return *result* as a line of ``agents.jsonl``."""
    return _bytes(json.dumps({"name": result.name, **agent(result)}, ensure_ascii=False)) + b"\n"


def encoded(document: dict[str, Any], most: int = MAX_BYTES) -> bytes:
    """Return *document* as a file of at most *most* bytes, with long responses cut if necessary.

    An agent whose response is cut has ``"cut": true``, and a run whose input is cut ``"input_cut": true``. Raises
    :class:`~mcpd.errors.LimitExceeded` if the document is still too large.
    """
    for kept in CUTS:
        data = _within(document if kept is None else _cut(document, kept), most)
        if data is not None:
            return data
    raise LimitExceeded(f"the record of the run is larger than {most} bytes, though its responses were cut")


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return *value* as plain JSON data; other types become strings."""
    text = json.dumps(value, default=str, skipkeys=True)
    made: dict[str, Any] = json.loads(text, parse_constant=str)
    return made


def _within(document: dict[str, Any], most: int) -> bytes | None:
    made, size = [], 1
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(document):
        made.append(_bytes(part))
        size += len(made[-1])
        if size > most:
            return None
    return b"".join(made) + b"\n"


def _bytes(text: str) -> bytes:
    # Models may answer with single surrogates, which UTF-8 cannot represent.
    return text.encode(errors="replace")


def _cut(value: Any, kept: int) -> Any:
    if isinstance(value, list):
        return [_cut(each, kept) for each in value]
    if not isinstance(value, dict):
        return value
    long = {key for key, each in value.items() if key in _LONG and isinstance(each, str) and len(each) > kept}
    made = {
        key: f"{each[:kept]}…" if key in long else each if key == "definition" else _cut(each, kept)
        for key, each in value.items()
    }
    if "response" in long:
        made["cut"] = True
    if "input" in long:
        made["input_cut"] = True
    return made


def _fault(fault: Fault) -> dict[str, Any]:
    return {"error": fault.error, "message": fault.message, "agent": fault.agent, "data": plain(fault.data)}


def _used(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd,
    }


def _usage(results: Iterable[AgentResult]) -> dict[str, Any]:
    """Return the usage of the agents that used models in this run."""
    return {
        each.name: {**_used(each.usage), "duration_ms": round(each.seconds * 1000), "model": each.model}
        for each in results
        if not each.reused and (each.model is not None or each.usage.total_tokens)
    }


def _totals(result: RunResult) -> dict[str, Any]:
    asked = _usage(result.results.values())
    return {
        "total_tokens": result.usage.total_tokens,
        "total_input_tokens": result.usage.input_tokens,
        "total_output_tokens": result.usage.output_tokens,
        "total_cost_usd": result.usage.cost_usd,
        "total_duration_ms": sum(each["duration_ms"] for each in asked.values()),
        "agents_count": len(asked),
    }
