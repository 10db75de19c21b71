# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tools of the workstation: names, models, functions and results, and the memory that results take."""

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
    """Base of the arguments of a tool. Optional fields have a default; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Result(BaseModel):
    """Base of the ``structuredContent`` of a tool. Fields that are None are omitted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call, with its content blocks."""

    result: Result
    content: tuple[dict[str, Any], ...] = ()
    """The content blocks; if empty, *result* as JSON is the text."""


Run: TypeAlias = "Callable[[Call, Any], Coroutine[Any, Any, Answer]]"


@dataclass(frozen=True)
class Tool:
    """A tool.

    *run* is called with the call and the *arguments* model, and raises McpdError. *read_only*, *destructive*,
    *idempotent* and *open_world* are the annotations of the MCP specification. A tool whose arguments have
    ``timeout_seconds`` may take that long, all others :data:`~mcpd.servers.workstation.workstation.SECONDS`.
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
        """The validator of arguments against the schema."""
        return validator_of(self.input_schema)

    def offered(self, name: str, *, results: bool) -> dict[str, Any]:
        """Return the tool as listed by ``tools/list`` under *name*; with *results*, including its output schema."""
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
"""Maximum size of all pending results in bytes; further calls wait."""
EACH: Final = 4 * 1024 * 1024
"""Bytes reserved for a result before its size is known."""


class Answers:
    """Memory of the pending results of one server."""

    def __init__(self, most: int = MOST, each: int = EACH) -> None:
        self._most, self._each = most, each
        self._taken = 0
        self._room = asyncio.Event()

    async def share(self, *, small: bool = False) -> Share:
        """Reserve memory for another result, waiting until there is enough; *small* results reserve none in advance."""
        each = 0 if small else self._each
        while self._taken and self._taken + each > self._most:
            self._room.clear()
            await self._room.wait()
        return Share(self, each)

    def change(self, more: int) -> None:
        """Add *more* bytes to those taken; a negative number releases some."""
        self._taken += more
        if more < 0:
            self._room.set()


class Share:
    """Memory taken by one result."""

    def __init__(self, answers: Answers, size: int) -> None:
        self._answers, self._size = answers, 0
        self.is_now(size)

    def is_now(self, size: int) -> None:
        """Set its size in bytes: 0 when the result was sent."""
        self._answers.change(size - self._size)
        self._size = size
