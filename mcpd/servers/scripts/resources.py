# SPDX-License-Identifier: LGPL-2.1-or-later
"""The resources of a script server, read on request: contents, results of tools, variables."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field

from mcpd.errors import InvalidManifest, LimitExceeded, McpdError, NotFound, from_oserror
from mcpd.files import read_file, write_atomic
from mcpd.model import load_json
from mcpd.model.mcps import ResourceEntry
from mcpd.scripts import contents
from mcpd.scripts.mcps import last_result, source_fault, uri_fault, variable
from mcpd.servers.scripts import running
from mcpd.servers.scripts.schemas import from_texts
from mcpd.servers.scripts.transforms import MOST_OFFERED, left_out

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from pathlib import Path
    from urllib.parse import SplitResult

    from mcpd.servers.scripts.definition import Definition
    from mcpd.servers.scripts.offer import Tools

    Other = Callable[[str, str, dict[str, Any], int], Awaitable[dict[str, Any]]]
    """Calls a tool of another server: its id, the tool, the arguments and how many servers the request came through."""

MAX_RESOURCE: Final = contents.MAX_CONTENT
"""Maximum size of a resource in bytes."""
MOST_REDIRECTS: Final = 5
_TEXTUAL: Final = re.compile(
    r"text/.*|application/(?:json|xml|yaml|toml|javascript|ecmascript|sql|graphql|x-sh|x-yaml|.*\+(?:json|xml|yaml))"
    r"|image/svg\+xml",
    re.IGNORECASE,
)
_PARAMETERS: Final = re.compile(r"\s*;.*", re.DOTALL)


class ResourceItem(ResourceEntry):
    """A resource in an entry or from a transform."""

    size: Annotated[int, Field(ge=0, strict=True)] | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that clients see and can read."""

    item: ResourceItem
    source: SplitResult

    def listed(self) -> dict[str, Any]:
        """Return the resource as an entry of ``resources/list``."""
        item = self.item
        told = {"title": item.title, "description": item.description, "mimeType": item.mime_type, "size": item.size}
        return {
            "uri": item.uri,
            "name": item.name,
            **{key: each for key, each in told.items() if each not in ("", None)},
        }


class Resources:
    """All resources of the server *definition*; *generated* are the results of its transform."""

    def __init__(self, definition: Definition, generated: Iterable[object] = (), problems: Iterable[str] = ()) -> None:
        self._definition = definition
        self._offered: dict[str, Resource] = {}
        self._left_out = 0
        self.problems = list(problems)
        """The problems, for the maintainer of the server."""
        static = definition.raw.get("resources")
        for key, item in static.items() if isinstance(static, dict) else ():
            self._add(f"resource {key}", {"name": key, **item})
        for number, item in enumerate(generated, 1):
            self._add(f"resources_transform_cid: item {number}", item)
        if self._left_out:
            self.problems.append(left_out(self._left_out, "resources"))
        self.listed = [each.listed() for each in self._offered.values()]
        """The result of ``resources/list``."""

    def get(self, uri: str) -> Resource | None:
        """Return the resource *uri*, or None: only listed resources can be read, whatever the URI is."""
        return self._offered.get(uri)

    def without_tool(self, tools: Tools) -> Iterator[str]:
        """Yield the problems of resources that are read from a tool of the server itself that is not among *tools*."""
        for each in self._offered.values():
            if each.source.scheme == "server" and each.source.netloc == self._definition.id:
                name = own_tool(each.source)
                if tools.of_path(name) is None:
                    yield f"resource {each.item.name}: {self._definition.id} has no tool or function {name or 'main'!r}"

    def _add(self, where: str, raw: object) -> None:
        if len(self._offered) >= MOST_OFFERED:
            self._left_out += 1
            return
        try:
            item = ResourceItem.parse(raw, where)
        except InvalidManifest as error:
            self.problems.append(error.message)
            return
        item = item.model_copy(update={"uri": item.uri or item.source, "name": item.name or item.uri or item.source})
        source = item.source or item.uri
        fault = uri_fault(item.uri) or source_fault(source, self._definition.id, self._definition.entry)
        if not fault and item.uri in self._offered:
            fault = f"another resource has the URI {item.uri}"
        if fault:
            self.problems.append(f"{where}: {fault}")
            return
        self._offered[item.uri] = Resource(item, urlsplit(source))


class LastResult:
    """The result of the last successful call, in a file, as any of a server's processes may be asked for it."""

    def __init__(self, definition: Definition, path: Path) -> None:
        self._id = definition.id
        self._path = path
        source = last_result(definition.id)
        self.is_kept = bool(definition.entry.resources_transform_cid) or any(
            source == (each.source or each.uri) for each in _static(definition)
        )
        """True if any resource may refer to it."""

    def keep(self, result: dict[str, Any]) -> None:
        """Save *result*, of ``tools/call``. Raises :class:`~mcpd.errors.McpdError`."""
        kept = {"content": result["content"], "structured": "structuredContent" in result}
        write_atomic(self._path, json.dumps(kept).encode(), 0o600)

    def read(self, item: ResourceItem) -> list[dict[str, Any]]:
        """Return the contents of the resource *item*. Raises :class:`~mcpd.errors.McpdError`."""
        try:
            kept = load_json(read_file(self._path, 2 * MAX_RESOURCE), f"resource {item.uri}: {self._path}")
        except FileNotFoundError:
            raise NotFound(f"resource {item.uri}: no tool of {self._id} has given a result yet") from None
        except OSError as error:
            raise from_oserror(error, f"resource {item.uri}: reading {self._path}") from error
        if not isinstance(kept, dict):
            raise InvalidManifest(f"resource {item.uri}: {self._path} is not what was written there")
        return _of_blocks(item, kept.get("content"), structured=bool(kept.get("structured")))


def _static(definition: Definition) -> Iterable[ResourceEntry]:
    static = definition.entry.resources
    return static.values() if isinstance(static, dict) else ()


class Reader:
    """Reads the *resources* of *server*, which may come from its own *tools* and from those of *other* servers."""

    def __init__(
        self,
        server: running.Server,
        resources: Resources,
        tools: Callable[[], Awaitable[Tools]],
        other: Other,
        last: LastResult,
    ) -> None:
        self._server = server
        self._definition = server.definition
        self._resources = resources
        self._tools = tools
        self._other = other
        self._last = last

    async def read(self, uri: str, hops: int = 0) -> list[dict[str, Any]]:
        """Return the contents of the resource *uri*, for a request that came through *hops* servers.

        Raises :class:`~mcpd.errors.NotFound`, with the URI in ``data``, if it is not listed, and another
        :class:`~mcpd.errors.McpdError` if it cannot be read.
        """
        resource = self._resources.get(uri)
        if resource is None:
            fault = NotFound(f"Resource not found: {uri[:1000]}")
            fault.data = {"uri": uri}
            raise fault
        seen = [uri]
        while True:
            found = await self._read(resource, hops)
            target = _redirection(found)
            if not target:
                break
            if len(seen) > MOST_REDIRECTS:
                raise McpdError(f"resource {uri}: redirected more than {MOST_REDIRECTS} times")
            following = self._resources.get(target)
            if following is None:
                raise McpdError(f"resource {uri}: redirected to {target[:1000]}, which is no resource of this server")
            resource = following
            seen.append(target)
        _check_size(uri, found)
        return [{**each, "uri": uri} for each in found]

    async def _read(self, resource: Resource, hops: int) -> list[dict[str, Any]]:
        item, source = resource.item, resource.source
        if source.scheme == "cid":
            data = await asyncio.to_thread(
                contents.read, item.source or item.uri, self._definition.contents, MAX_RESOURCE
            )
            return [of_bytes(data, item.mime_type)]
        if source.scheme not in {"variable", "server"}:
            return await asyncio.to_thread(self._last.read, item)
        if source.scheme == "variable":
            return [_of_value(self._definition.entry.variables[variable(item.source or item.uri)], item.mime_type)]
        if source.netloc == self._definition.id:
            return await self._own(resource)
        tool = unquote(source.path.removeprefix("/")) or source.netloc
        result = await self._other(source.netloc, tool, _query(source, {}), hops)
        return _of_blocks(item, result.get("content"), structured="structuredContent" in result)

    async def _own(self, resource: Resource) -> list[dict[str, Any]]:
        item, source = resource.item, resource.source
        name = own_tool(source)
        tool = (await self._tools()).of_path(name)
        if tool is None:
            raise NotFound(f"resource {item.uri}: {self._definition.id} has no tool or function {name or 'main'!r}")
        arguments = _query(source, tool.tool.input_schema)
        try:
            outcome = await running.outcome(self._server, tool, arguments)
        except McpdError as error:
            raise type(error)(f"resource {item.uri}: {source.geturl()}: {error.message}") from error
        return _of_blocks(item, outcome.content, outcome.mime_type, structured=isinstance(outcome.value, dict | list))


def own_tool(source: SplitResult) -> str:
    """Return the tool in *source*, a ``server://`` URI of the server itself; empty if it has only the id."""
    return unquote(source.path.removeprefix("/"))


def of_bytes(data: bytes, mime_type: str) -> dict[str, Any]:
    """Return the content *data*: text if it is UTF-8 and *mime_type*, if given, is textual; otherwise a blob."""
    kind = _PARAMETERS.sub("", mime_type)
    if not kind or _TEXTUAL.fullmatch(kind):
        try:
            return {"mimeType": mime_type or "text/plain", "text": data.decode()}
        except UnicodeDecodeError:
            pass
    return {"mimeType": mime_type or "application/octet-stream", "blob": base64.b64encode(data).decode()}


def _of_value(value: Any, mime_type: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"mimeType": mime_type or "text/plain", "text": value}
    return {"mimeType": mime_type or "application/json", "text": json.dumps(value, ensure_ascii=False)}


def _of_blocks(
    item: ResourceItem, blocks: object, mime_type: str = "", *, structured: bool = False
) -> list[dict[str, Any]]:
    """Return the blocks of a tool's result as contents of a resource."""
    kind = item.mime_type or mime_type
    found: list[dict[str, Any]] = []
    for block in blocks if isinstance(blocks, list) else []:
        match block:
            case {"type": "text", "text": str(text)}:
                found.append({"mimeType": kind or ("application/json" if structured else "text/plain"), "text": text})
            case {"type": "image" | "audio", "data": str(data)}:
                said = block.get("mimeType")
                found.append({"mimeType": said if isinstance(said, str) else kind, "blob": data})
            case {"type": "resource", "resource": {"text": str()} | {"blob": str()} as inner}:
                found.append(_embedded(inner, kind))
            case {"type": "resource_link", "uri": str(uri)}:
                found.append({"redirect": uri})
            case _:
                raise McpdError(f"resource {item.uri}: its source gave something that is no content of a resource")
    return found


def _embedded(resource: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the content of an embedded *resource*: its text, or its blob if it has none."""
    said = resource.get("mimeType")
    kind = said if isinstance(said, str) else kind
    key = "text" if isinstance(resource.get("text"), str) else "blob"
    return ({"mimeType": kind} if kind else {}) | {key: resource[key]}


def _redirection(found: list[dict[str, Any]]) -> str:
    return next((str(each["redirect"]) for each in found if "redirect" in each), "")


def _query(source: SplitResult, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments in the query of *source*, converted to the types in *schema*."""
    texts: dict[str, list[str]] = {}
    for name, text in parse_qsl(source.query, keep_blank_values=True):
        texts.setdefault(name, []).append(text)
    properties = schema.get("properties", {})
    return {name: from_texts(properties.get(name), each) for name, each in texts.items()}


def _check_size(uri: str, found: list[dict[str, Any]]) -> None:
    size = sum(
        len(each["text"].encode(errors="surrogatepass")) if "text" in each else len(each["blob"]) * 3 // 4
        for each in found
    )
    if size > MAX_RESOURCE:
        raise LimitExceeded(
            f"resource {uri} has {size} bytes, more than the {MAX_RESOURCE} ({MAX_RESOURCE >> 20} MiB) that are read"
        )
