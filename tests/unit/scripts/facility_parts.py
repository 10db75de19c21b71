# SPDX-License-Identifier: LGPL-2.1-or-later
"""A script server whose functions run in the test's own process, and a definition of one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcpd.scripts import contents
from mcpd.servers.scripts import definition
from mcpd.servers.scripts.calls import Outcome, PythonJob
from mcpd.servers.scripts.facility import Facility

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcpd.servers.scripts.calls import Limits, ShellJob
    from mcpd.servers.scripts.definition import Definition


SCRIPT = '''
def echo(message: str) -> str:
    """Say it back."""
    return message

def add(a: int, b: int = 2) -> int:
    return a + b

def fail(reason: str) -> str:
    raise RuntimeError(reason)

def _hidden() -> None:
    pass
'''
TRANSFORM = """
def generate_tools(server_name, context):
    return [
        {"name": "made", "description": server_name, "inputSchema": {"type": "object"}, "function": "echo"},
        {"name": "echo", "description": "comes second"},
        {"name": "bad", "function": "echo", "inputSchema": {"type": "nonsense"}},
        "rubbish",
        {"name": ""},
        {"name": "late", "function": "echo", "annotations": {"readOnlyHint": "maybe"}},
    ]
"""


def failed(message: str) -> Outcome:
    return Outcome([], None, None, "", message)


def returned(value: Any) -> Outcome:
    """What a function that returned *value* comes to; a list of blocks is what it stands for."""
    if isinstance(value, Outcome):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return Outcome([{"type": "text", "text": text}], value if isinstance(value, dict) else None, value, "", "")


@dataclass
class Inline:
    """Runs Python in place, and remembers what it was asked for."""

    source: str
    answers: Callable[[Any], Outcome] | None = None
    jobs: list[PythonJob | ShellJob] = field(default_factory=list)
    limits: list[Limits | None] = field(default_factory=list)

    async def call(self, job: PythonJob | ShellJob, limits: Limits | None = None, on_progress: Any = None) -> Outcome:
        self.jobs.append(job)
        self.limits.append(limits)
        if self.answers is not None:
            return self.answers(job)
        assert isinstance(job, PythonJob)
        names: dict[str, Any] = {}
        try:
            exec(job.source if job.source is not None else self.source, names)
            return returned(names[job.function](*job.positional, **job.arguments))
        except Exception as error:  # noqa: BLE001 -- whatever a function raises
            return failed(str(error))

    async def close(self) -> None:
        pass


def manifest(directory: Path, source: str = "", *, suffix: str = ".py", **entry: Any) -> Path:
    """The private manifest of the server ``thing`` with a script of *source*, if there is any, and an *entry*."""
    script: dict[str, Any] = {
        "path": "",
        "kind": "",
        "sha256": "",
        "entry": entry,
        "contents": [str(directory / "cas")],
    }
    if source:
        path = directory / f"thing{suffix}"
        path.write_text(source)
        script |= {"path": str(path), "kind": {".py": "python", ".sh": "shell"}[suffix]}
    said = {"id": "thing", "name": "Thing", "description": "Does things.", "version": "1.2", "config": {"key": "value"}}
    file = directory / "manifest.json"
    file.write_text(json.dumps({**said, "script": script}))
    return file


def define(directory: Path, source: str = "", *, suffix: str = ".py", **entry: Any) -> Definition:
    """The server of that manifest."""
    return definition.read(manifest(directory, source, suffix=suffix, **entry))


def store(directory: Path, data: str | bytes) -> str:
    """The id of *data*, put where :func:`define` has contents looked for."""
    return contents.write(directory / "cas", data.encode() if isinstance(data, str) else data)


async def nobody(server: str, tool: str, _arguments: dict[str, Any], _hops: int) -> dict[str, Any]:
    raise AssertionError(f"{tool} of {server} was called")


MADE: list[Facility] = []
"""Those that the test which runs has made, and which are closed behind it."""


def facility(
    defined: Definition,
    *,
    size: int = 100,
    runs: Inline | None = None,
    other: Any = nobody,
    home: Path | None = None,
) -> Facility:
    made = Facility(defined, runs or Inline(defined.source), other, size, home)
    MADE.append(made)
    return made


async def names(served: Facility) -> list[str]:
    return [tool["name"] for tool in (await served.list_tools(None))["tools"]]


async def call(served: Facility, name: str, /, **arguments: Any) -> dict[str, Any]:
    return await served.call_tool(name, arguments, None)


def text(result: dict[str, Any]) -> str:
    (block,) = result["content"]
    return str(block["text"])
