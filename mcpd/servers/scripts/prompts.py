# SPDX-License-Identifier: LGPL-2.1-or-later
"""The prompts of a script server: messages with arguments, written as Jinja templates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import ConfigDict, Field, JsonValue, StrictBool

from mcpd.errors import InvalidArgument, InvalidManifest
from mcpd.model.base import Document, Text
from mcpd.servers.scripts.calls import Limits, PythonJob
from mcpd.servers.scripts.schemas import checker, from_texts
from mcpd.servers.scripts.transforms import MOST_OFFERED, left_out

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from mcpd.servers.scripts.checking import Checks
    from mcpd.servers.scripts.definition import Definition
    from mcpd.servers.scripts.running import Server
    from mcpd.servers.scripts.schemas import Checker
    from mcpd.servers.scripts.transforms import Runs

MAX_TEMPLATE: Final = 256 * 1024
"""Maximum length of one message's template in characters."""
LIMITS: Final = Limits(seconds=2.0, memory=256 << 20, processes=8, output=4 << 20)
"""Limits for rendering the templates of one prompt."""
MOST_COMPLETIONS: Final = 100
"""Maximum number of values in one completion."""


class ArgumentItem(Document):
    """An argument of a prompt."""

    model_config = ConfigDict(alias_generator=str)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    title: Text = ""
    description: Text = ""
    required: StrictBool = False
    schema_: dict[str, JsonValue] = Field(default_factory=dict, alias="schema")
    """Schema of its value."""


class _Text(Document):
    type: Literal["text"]
    text: str


class _Media(Document):
    type: Literal["image", "audio"]
    data: str
    mime_type: str


class _Link(Document):
    type: Literal["resource_link"]
    uri: str
    name: str


class _Held(Document):
    uri: str
    text: str | None = None
    blob: str | None = None


class _Embedded(Document):
    type: Literal["resource"]
    resource: _Held


class _Message(Document):
    role: Literal["user", "assistant"] = "user"
    content: str | Annotated[_Text | _Media | _Link | _Embedded, Field(discriminator="type")]


class PromptItem(Document):
    """A prompt in an entry or from a transform: several messages, or the template of one."""

    model_config = ConfigDict(alias_generator=str)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    title: Text = ""
    description: Text = ""
    arguments: Annotated[list[ArgumentItem], Field(max_length=100)] = Field(default_factory=list)
    messages: Annotated[list[_Message], Field(max_length=1000)] = Field(default_factory=list)
    template: Text = ""


_SYNTAX: Final = ImmutableSandboxedEnvironment(optimized=False)
"""Used only to parse templates; they are rendered in a process of its own."""
_NAMES: Final = frozenset({"range", "dict", "namespace", "joiner", "cycler"})
"""Names that templates can use besides their arguments."""
_SPECIAL: Final = frozenset({"loop", "self", "super", "caller", "varargs", "kwargs"})
_RENDERER: Final = f"""
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

def render(texts, values):
    environment = ImmutableSandboxedEnvironment(
        autoescape=False, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.globals = {{name: environment.globals[name] for name in {sorted(_NAMES)!r}}}
    made, room = [], {LIMITS.output}
    try:
        for text in texts:
            parts = []
            for part in environment.from_string(text).generate(values):
                room -= len(part)
                if room < 0:
                    return {{"error": "it makes more than {LIMITS.output} characters"}}
                parts.append(part)
            made.append("".join(parts))
        return {{"texts": made}}
    except MemoryError:
        raise
    except Exception as error:
        return {{"error": str(error) or type(error).__name__}}
"""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that clients see and can get."""

    item: PromptItem
    checkers: Mapping[str, Checker]
    messages: tuple[tuple[str, str | dict[str, Any]], ...]
    """Roles, each with the template of a text or with another content."""

    def listed(self) -> dict[str, Any]:
        """Return the prompt as an entry of ``prompts/list``."""
        item = self.item
        told = {
            "title": item.title,
            "description": item.description,
            "arguments": [_argument(each) for each in item.arguments],
        }
        return {"name": item.name, **{key: value for key, value in told.items() if value}}

    async def get(self, server: Server, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of ``prompts/get`` of *server* with the arguments *given*.

        Raises :class:`~mcpd.errors.InvalidArgument` with the name of the invalid argument.
        """
        values = await self.values(server.checks, given)
        texts = iter(await self._rendered(server.runs, values))
        messages = [
            {"role": role, "content": said if isinstance(said, dict) else {"type": "text", "text": next(texts)}}
            for role, said in self.messages
        ]
        said = {"description": self.item.description} if self.item.description else {}
        return {**said, "messages": messages}

    def check_strings(self, given: Mapping[str, Any]) -> None:
        """Raise :class:`~mcpd.errors.InvalidArgument` for an argument that is not a string."""
        for each in self.item.arguments:
            if not isinstance(given.get(each.name, ""), str):
                raise self._wrong(f"the argument {each.name} has to be a string")

    async def values(self, checks: Checks, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for the templates. Raises :class:`~mcpd.errors.InvalidArgument`, see :meth:`get`."""
        self.check_strings(given)
        known = {each.name: each for each in self.item.arguments}
        for name in given:
            if name not in known:
                raise self._wrong(f"there is no argument {name[:100]!r}")
        values: dict[str, Any] = {}
        for name, argument in known.items():
            if name not in given:
                if argument.required:
                    raise self._wrong(f"the argument {name} is required")
                if "default" in argument.schema_:
                    values[name] = argument.schema_["default"]
                continue
            values[name] = from_texts(argument.schema_, [given[name]])
            fault = await checks.fault(self.checkers[name], values[name], "the argument")
            if fault:
                raise self._wrong(f"the argument {name} is not what it has to be: {fault}")
        return values

    def complete(self, argument: str, begun: str) -> list[str]:
        """Return the values of *argument* that begin with *begun*, if its schema enumerates them."""
        found = next((each.schema_.get("enum") for each in self.item.arguments if each.name == argument), None)
        values = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
        return [each for each in values if each.lower().startswith(begun.lower())]

    def _wrong(self, what: str) -> InvalidArgument:
        names = ", ".join(each.name + (" (required)" if each.required else "") for each in self.item.arguments)
        return InvalidArgument(f"prompt {self.item.name}: {what}; its arguments are: {names or 'none'}")

    async def _rendered(self, runs: Runs, values: Mapping[str, Any]) -> list[str]:
        """Return the rendered texts, from a process that must not write and has :data:`LIMITS`."""
        texts = [said for _, said in self.messages if isinstance(said, str)]
        if not texts:
            return []
        job = PythonJob("render", {}, _RENDERER, f"prompt {self.item.name}", (texts, dict(values)), read_only=True)
        found = await runs.call(job, LIMITS)
        match found.value:
            case {"texts": [*made]} if not found.error and len(made) == len(texts):
                return [str(each) for each in made]
            case {"error": str(error)}:
                raise InvalidArgument(f"prompt {self.item.name}: its template failed: {error}")
            case _:
                raise InvalidArgument(f"prompt {self.item.name}: its template failed: {found.error}")


class Prompts:
    """All prompts of the server *definition*; *generated* are the results of its transform."""

    def __init__(self, definition: Definition, generated: Iterable[object] = (), problems: Iterable[str] = ()) -> None:
        self._offered: dict[str, Prompt] = {}
        self._left_out = 0
        self.problems = list(problems)
        """The problems, for the maintainer of the server."""
        static = definition.raw.get("prompts")
        for name, item in static.items() if isinstance(static, dict) else ():
            self._add(f"prompt {name}", {**item, "name": name})
        for number, item in enumerate(generated, 1):
            self._add(f"prompts_transform_cid: item {number}", item)
        if self._left_out:
            self.problems.append(left_out(self._left_out, "prompts"))
        self.listed = [each.listed() for each in self._offered.values()]
        """The result of ``prompts/list``."""

    def get(self, name: str) -> Prompt:
        """Return the prompt *name*. Raises :class:`~mcpd.errors.InvalidArgument` if there is none."""
        found = self._offered.get(name)
        if found is None:
            raise InvalidArgument(f"Unknown prompt: {name[:1000]}")
        return found

    def _add(self, where: str, raw: object) -> None:
        if len(self._offered) >= MOST_OFFERED:
            self._left_out += 1
            return
        try:
            item = PromptItem.parse(raw, where)
            prompt = _prompt(item, self._offered)
        except InvalidManifest as error:
            self.problems.append(error.message)
        except (TemplateError, ValueError, RecursionError) as error:
            self.problems.append(f"{where}: {error}")
        else:
            self._offered[item.name] = prompt


def _argument(item: ArgumentItem) -> dict[str, Any]:
    told = {"title": item.title, "description": item.description}
    return {"name": item.name, **{key: text for key, text in told.items() if text}, "required": item.required}


def _prompt(item: PromptItem, others: Container[str]) -> Prompt:
    """Return the prompt for *item*; *others* are known names. Raises ValueError and TemplateError if it is invalid."""
    if item.name in others:
        raise ValueError(f"another prompt has the name {item.name}")
    names = [each.name for each in item.arguments]
    if len(set(names)) != len(names):
        raise ValueError("two of its arguments have one name")
    if bool(item.messages) == bool(item.template):
        raise ValueError('it needs "messages" or a "template", and not both')
    messages = [(each.role, each.content) for each in item.messages] or [("user", item.template)]
    return Prompt(
        item,
        {each.name: _checker(each) for each in item.arguments},
        tuple((role, _content(content, set(names))) for role, content in messages),
    )


def _checker(item: ArgumentItem) -> Checker:
    try:
        return checker(json.dumps(item.schema_))
    except ValueError as error:
        raise ValueError(f"argument {item.name}: {error}") from error


def _content(content: str | Document, names: set[str]) -> str | dict[str, Any]:
    """Return the checked template of a text, or another content as JSON."""
    if isinstance(content, Document) and not isinstance(content, _Text):
        return content.to_json()
    text = content.text if isinstance(content, _Text) else str(content)
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"a template has more than {MAX_TEMPLATE} characters")
    # Not compiled, as that evaluates constant expressions, which may do anything.
    template = _SYNTAX.parse(text)
    unknown = _used(template) - names - _NAMES - _SPECIAL
    if unknown:
        raise ValueError(f"a template uses {', '.join(sorted(unknown))}, and there is no such argument")
    for kind, known in ((nodes.Filter, _SYNTAX.filters), (nodes.Test, _SYNTAX.tests)):
        for node in template.find_all(kind):
            if node.name not in known:
                raise ValueError(f"a template uses the {kind.__name__.lower()} {node.name}, and there is none")
    return text


def _used(template: nodes.Template) -> set[str]:
    """Return the names that *template* uses without setting them."""
    used: set[str] = set()
    made = {each.name for each in template.find_all(nodes.Macro)}
    made |= {each.target for each in template.find_all(nodes.Import)}
    for each in template.find_all(nodes.FromImport):
        made |= {name if isinstance(name, str) else name[1] for name in each.names}
    for name in template.find_all(nodes.Name):
        (used if name.ctx == "load" else made).add(name.name)
    return used - made
