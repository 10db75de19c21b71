# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a tool of the workstation is: its name, its models, from which its schemas are made, and what it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

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
