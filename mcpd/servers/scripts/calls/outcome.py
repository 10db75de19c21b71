# SPDX-License-Identifier: LGPL-2.1-or-later
"""The outcome of a call, from the frames of its keeper; the worker's result is not trusted."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mcpd.servers.scripts.calls import results
from mcpd.servers.scripts.calls.job import Outcome

if TYPE_CHECKING:
    from mcpd.servers.scripts.calls.job import Limits

LAST_LINES: Final = 10
"""Number of lines of a failing shell script's output in the error."""


@dataclass(slots=True)
class Report:
    """The frames of the keeper at the end of a call."""

    result: bytes = b""
    output: bytes = b""
    last: dict[str, Any] = field(default_factory=dict)


def outcome(report: Report, limits: Limits, *, shell: bool) -> Outcome:
    """Return the outcome of a call that had *limits*."""
    if stopped := report.last["stopped"]:
        return failed(_stopped(stopped, report, limits), timed_out=stopped == "time")
    if report.result:
        return _answer(report.result)
    code = report.last["code"]
    if shell and code == 0:
        return _output(report.output)
    return failed(_ended(code, report, limits, shell=shell), timed_out=code == -signal.SIGXCPU)


def failed(message: str, *, timed_out: bool = False) -> Outcome:
    """Return the outcome of a failed call; *timed_out* if it exceeded its time limit."""
    return Outcome([], None, None, "", message, timed_out=timed_out)


def _stopped(why: str, report: Report, limits: Limits) -> str:
    if why == "time":
        return f"The call ran for more than {limits.seconds:g} s and was stopped."
    if why == "output":
        return f"The call wrote more than {limits.output} bytes and was stopped."
    if why == "processes":
        return f"The call started more than {limits.processes} processes and was stopped."
    if why == "start":
        return f"The call could not be started: {report.last['tail']}."
    return "The call was ended: the process that started it was killed."


def _ended(code: int | None, report: Report, limits: Limits, *, shell: bool) -> str:
    """Return the reason why there is no result."""
    if code is None:
        return "The call was stopped, and one of its processes still hangs in the kernel."
    said = (
        "\n".join((report.last["tail"].strip() or _text(report.output).strip()).splitlines()[-LAST_LINES:])
        if shell
        else ""
    )
    if code == -signal.SIGXCPU:
        how = f"The call used more than {limits.seconds:g} s of processor time and was stopped."
    elif code == -signal.SIGXFSZ:
        how = "The call wrote a file of more than 1 GiB and was stopped."
    elif code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        how = f"The call was killed by signal {name}."
    elif shell:
        how = f"The script ended with status {code}."
    else:
        how = f"The call ended with status {code} and without a result; see the server's log."
    return f"{said}\n{how}" if said else how


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _output(data: bytes) -> Outcome:
    """Return the outcome of a shell script that printed *data*; a JSON object is structured as well."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        found = results.binary(data, "")
        return Outcome(found["content"], None, None, found["mime_type"], "")
    structured = None
    if text.lstrip()[:1] == "{":
        try:
            structured = _read(data)
        except (ValueError, RecursionError, results.NotJson):
            structured = None
    if not isinstance(structured, dict):
        structured = None
    return Outcome(results.text_blocks(text) if text else [], structured, text, "", "")


def _answer(data: bytes) -> Outcome:
    """Return the outcome that the worker wrote, if it is valid."""
    try:
        found = _read(data)
    except (ValueError, RecursionError, results.NotJson):
        found = None
    if not isinstance(found, dict):
        return failed("The call's result cannot be read; the script wrote into a file descriptor that is not its own.")
    error, mime_type = found.get("error") or "", found.get("mime_type") or ""
    structured = found.get("structured")
    if "content" not in found:
        value = found.get("value")
        structured = value if isinstance(value, dict) else None
        return Outcome([] if error else results.text_blocks(value), structured, value, "", str(error))
    blocks = results.are_blocks(found["content"]) and results.are_encoded(found["content"])
    if not blocks or not isinstance(structured, dict | None):
        return failed("The call's result is none; the script wrote into a file descriptor that is not its own.")
    raw = _raw(found, structured) if "result" in found else None
    return Outcome(found["content"], structured, found.get("value"), str(mime_type), str(error), raw)


def _raw(found: dict[str, Any], structured: dict[str, Any] | None) -> dict[str, Any]:
    """Return the whole result that a script returned in MCP's form, from its parts."""
    raw: dict[str, Any] = {"content": found["content"], "isError": bool(found.get("error"))}
    if structured is not None:
        raw["structuredContent"] = structured
    if isinstance(found["result"], dict) and isinstance(meta := found["result"].get("_meta"), dict):
        raw["_meta"] = meta
    return raw


def _read(data: bytes) -> Any:
    """Return the JSON in *data*; it must be strict and not nested too deeply, and its texts encodable."""
    value = json.loads(data, parse_constant=_refuse, parse_float=_finite)
    if b"\\u" in data or data.count(b"{") + data.count(b"[") > results.DEEPEST:
        value = results.plain(value)
    return value


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(number)
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
