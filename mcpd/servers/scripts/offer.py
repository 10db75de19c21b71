# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools of a script server: from its entry, from its script, and from a transform."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import ConfigDict, Field, JsonValue, StrictBool

from mcpd.errors import InvalidManifest
from mcpd.model.base import Document, Text
from mcpd.servers.scripts.discover import python, shell
from mcpd.servers.scripts.schemas import Checker, checker
from mcpd.servers.scripts.tool import MAX_TOOLS, Tool, tool_name
from mcpd.servers.scripts.transforms import MOST_OFFERED, left_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcpd.servers.scripts.definition import Definition

MAIN: Final = "main"
"""Function of the tool that is named like its server."""


class _Annotations(Document):
    title: str | None = None
    read_only_hint: StrictBool | None = None
    destructive_hint: StrictBool | None = None
    idempotent_hint: StrictBool | None = None
    open_world_hint: StrictBool | None = None


class ToolItem(Document):
    """A tool in an entry or from a transform. Missing fields of a function are taken from the script."""

    model_config = ConfigDict(alias_generator=str)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    title: Text = ""
    description: str | None = None
    input_schema: dict[str, JsonValue] | None = Field(default=None, alias="inputSchema")
    output_schema: dict[str, JsonValue] | None = Field(default=None, alias="outputSchema")
    annotations: _Annotations | None = None
    function: Annotated[str, Field(max_length=256)] | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that clients see and can call."""

    tool: Tool
    arguments: Checker
    results: Checker | None
    """Checks results against the tool's output schema; ``None`` without one."""
    found: bool
    """True if the arguments were found in the script instead of being given for it."""
    missing: str = ""
    """The reason why it cannot be called; empty if it can."""

    def listed(self) -> dict[str, Any]:
        """Return the tool as an entry of ``tools/list``."""
        tool = self.tool
        said: dict[str, Any] = {"name": tool.name}
        if tool.title:
            said["title"] = tool.title
        said |= {"description": tool.description, "inputSchema": tool.input_schema}
        if tool.output_schema is not None:
            said["outputSchema"] = tool.output_schema
        if tool.annotations:
            said["annotations"] = tool.annotations
        return said


class Tools:
    """All tools of the server *definition*; *generated* are the results of its transform."""

    def __init__(self, definition: Definition, generated: Iterable[object] = (), problems: Iterable[str] = ()) -> None:
        self._definition = definition
        self._offered: dict[str, Offered] = {}
        self._left_out = 0
        self.problems = list(problems)
        """The problems, for the maintainer of the server."""
        self._broken = ""
        """The problem with the script as a whole."""
        self._by_name: dict[str, Tool] = {}
        """The tools found in the script."""
        self._functions: frozenset[str] = frozenset()
        self._discover()
        entry = definition.entry
        for name in entry.tools:
            self._add(f"tool {name}", {**definition.raw["tools"][name], "name": name})
        # An entry that fully describes tools offers only those; one that only changes some of the script's offers all.
        defines = any(tool.input_schema is not None or tool.function for tool in entry.tools.values())
        if entry.auto_discover or (entry.auto_discover is None and not defines):
            for tool in self._by_name.values():
                self._offer(f"tool {tool.name}", tool, found=True)
        for number, item in enumerate(generated, 1):
            self._add(f"tools_transform_cid: item {number}", item, again="another tool has the name")
        if self._left_out:
            self.problems.append(left_out(self._left_out, "tools"))
        self.listed = [each.listed() for each in self._offered.values()]
        """The result of ``tools/list``."""

    def get(self, name: str) -> Offered | None:
        """Return the tool *name*; the server's id is an alias of the tool named like it, or else of ``main``.

        Not of ``main`` if the map filters or changes tools, as its rules for ``main`` apply to that name only.
        """
        found = self._offered.get(name)
        definition = self._definition
        if found is None and name == definition.id:
            found = self._offered.get(tool_name(name))
            if found is None and definition.kind == "python" and not definition.narrowed:
                return self._offered.get(MAIN)
        return found

    def of_path(self, path: str) -> Offered | None:
        """Return the tool for the *path* of a ``server://`` URI of this server: any public function, listed or not."""
        name = path or self._definition.id
        if name not in self._offered:
            try:
                tool, found = self._tool(ToolItem(name=name))
                made = self._made(tool, found=found)
            except ValueError:
                return None
        else:
            made = self._offered[name]
        return None if made.missing else made

    # ---------------------------------------------------------------------------------- the script's content

    def _discover(self) -> None:
        definition = self._definition
        found: list[Tool] = []
        try:
            if definition.kind == "python":
                found, self._functions = python.read(definition.source, definition.path)
            elif definition.kind == "shell":
                found = [shell.tool(definition.source, definition.id)]
        except InvalidManifest as error:
            self._broken = error.message
            self.problems.append(error.message)
        if len(found) >= MAX_TOOLS:
            self.problems.append(f"{definition.path}: the first {MAX_TOOLS} tools are offered; others are left out")
        self._by_name = {tool.name: tool for tool in found}

    # ---------------------------------------------------------------------------------------- offered tools

    def _add(self, where: str, raw: object, again: str = "") -> None:
        """Add the tool *raw*; *again* is the problem to report if there is one of its name."""
        if self._is_full():
            return
        try:
            item = ToolItem.parse(raw, where)
        except InvalidManifest as error:
            self.problems.append(error.message)
            return
        if again and item.name in self._offered:
            self.problems.append(f"{where}: {again} {item.name}")
            return
        tool, found = self._tool(item)
        self._offer(where, tool, found=found)

    def _offer(self, where: str, tool: Tool, *, found: bool) -> None:
        if tool.name in self._offered or self._is_full():
            return
        try:
            made = self._made(tool, found=found)
        except ValueError as error:
            self.problems.append(f"{where}: {error}")
            return
        if made.missing and made.missing != self._broken:
            self.problems.append(f"{where}: {made.missing}")
        self._offered[tool.name] = made

    def _is_full(self) -> bool:
        """Return True if no more tools are offered, and count the omitted one."""
        full = len(self._offered) >= MOST_OFFERED
        self._left_out += full
        return full

    def _made(self, tool: Tool, *, found: bool) -> Offered:
        """Return the tool with checkers for its schemas. Raises ValueError for an invalid schema."""
        given, arguments = _checked("inputSchema", tool.input_schema)
        results = None
        if tool.output_schema is not None:
            promised, results = _checked("outputSchema", tool.output_schema)
            tool = replace(tool, output_schema=promised)
        return Offered(replace(tool, input_schema=given), arguments, results, found, self._missing(tool))

    def _tool(self, item: ToolItem) -> tuple[Tool, bool]:
        """Return the tool for *item*, and whether its arguments are those found in the script."""
        known = self._known(item)
        found = known is not None and item.input_schema is None
        function = item.function if item.function is not None else self._function(item.name)
        base = known or Tool(name=item.name, description="", input_schema={"type": "object"}, function=function)
        tool = replace(
            base,
            name=item.name,
            title=item.title or base.title,
            description=base.description if item.description is None else item.description,
            input_schema=base.input_schema if item.input_schema is None else item.input_schema,
            output_schema=base.output_schema if item.output_schema is None else item.output_schema,
            annotations=base.annotations if item.annotations is None else item.annotations.to_json(),
        )
        return tool, found

    def _known(self, item: ToolItem) -> Tool | None:
        """Return the tool found in the script with that name or function, or None."""
        if self._definition.kind == "shell" and item.function is None and item.name in self._by_name:
            return self._by_name[item.name]
        function = self._function(item.name) if item.function is None else item.function
        return next((tool for tool in self._by_name.values() if tool.function == function), None)

    def _function(self, name: str) -> str:
        """Return the default function of the tool *name*: ``main`` or the whole script if named like the server."""
        if name != self._definition.id:
            return name
        if self._definition.kind == "shell":
            return ""
        return MAIN if MAIN in self._functions or name not in self._functions else name

    def _missing(self, tool: Tool) -> str:
        definition = self._definition
        if self._broken:
            return self._broken
        if not definition.kind:
            return f"server {definition.id} has no script, so there is nothing that the tool could run"
        if definition.kind == "python" and tool.function not in self._functions:
            return f"{definition.path} has no function {tool.function}"
        return ""


def _checked(name: str, schema: Mapping[str, Any]) -> tuple[dict[str, Any], Checker]:
    """Return *schema* as one of an object, as MCP requires, and its checker; raises ValueError for any other."""
    kind = schema.get("type", "object")
    if kind != "object":
        raise ValueError(f"{name}: $.type: {kind!r} has to be 'object'")
    whole = {"type": "object", **schema}
    try:
        return whole, checker(json.dumps(whole))
    except RecursionError:
        raise ValueError(f"{name}: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
