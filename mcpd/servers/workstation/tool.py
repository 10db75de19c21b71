# SPDX-License-Identifier: LGPL-2.1-or-later
"""A tool of the workstation: its name, models and function, and what it answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict

from mcpd.servers.checking import validator_of
from mcpd.servers.json_schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from jsonschema import Draft202012Validator

    from mcpd.servers.workstation.call import Call


class Arguments(BaseModel):
    """What a tool takes. A field that may be left out has a default; nothing else is accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Result(BaseModel):
    """What a tool says in ``structuredContent``. A field that is None is left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call comes to."""

    result: Result
    content: tuple[dict[str, Any], ...] = ()
    """The content blocks; without any, *result* as JSON is the text."""


Run: TypeAlias = "Callable[[Call, Any], Coroutine[Any, Any, Answer]]"


@dataclass(frozen=True)
class Tool:
    """One tool.

    *run* is given the call and the *arguments* model, and raises McpdError. *read_only*, *destructive*, *idempotent*
    and *open_world* are the annotations of the MCP specification. A tool whose arguments have ``timeout_seconds`` may
    take that long, all others as long as the settings say.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    result: type[Result]
    run: Run = field(repr=False)
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return schema_of(self.arguments, mode="validation")

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of ``structuredContent``."""
        return schema_of(self.result, mode="serialization")

    @cached_property
    def validator(self) -> Draft202012Validator:
        """What holds arguments against the schema."""
        return validator_of(self.input_schema)

    def offered(self, name: str, *, results: bool) -> dict[str, Any]:
        """Return the tool as ``tools/list`` shows it, under *name*; with *results*, with the schema of its result."""
        return {
            "name": name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            **({"outputSchema": self.output_schema} if results else {}),
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.read_only,
                "destructiveHint": self.destructive,
                "idempotentHint": self.idempotent,
                "openWorldHint": self.open_world,
            },
        }


MOST: Final = 64 * 1024 * 1024
"""Bytes of all answers; a call that begins waits until there is room."""
EACH: Final = 4 * 1024 * 1024
"""Bytes that are taken for an answer until it is there."""


class Answers:
    """Those of one server."""

    def __init__(self, most: int = MOST, each: int = EACH) -> None:
        self._most, self._each = most, each
        self._taken = 0
        self._room = asyncio.Event()

    async def share(self, *, small: bool = False) -> Share:
        """Room for one more, as soon as there is; *small* ones are not counted before they are there."""
        each = 0 if small else self._each
        while self._taken and self._taken + each > self._most:
            self._room.clear()
            await self._room.wait()
        return Share(self, each)

    def change(self, more: int) -> None:
        """Take *more* bytes, or give back what is less than none."""
        self._taken += more
        if more < 0:
            self._room.set()


class Share:
    """What one answer takes."""

    def __init__(self, answers: Answers, size: int) -> None:
        self._answers, self._size = answers, 0
        self.is_now(size)

    def is_now(self, size: int) -> None:
        """It takes *size* bytes: none when it was sent."""
        self._answers.change(size - self._size)
        self._size = size
