# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl tools`` and ``call``: list and call the tools of a server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.conversation import conversation
from mcpd.cli.output import clean, first_line, note, table, write_json, write_text
from mcpd.cli.values import parse_json
from mcpd.errors import EXIT_FAILED, InvalidArgument, McpdError, NotFound, did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_SEPARATOR: Final = re.compile(r"[/._]")


async def tools(args: argparse.Namespace) -> int:
    """``mcpctl tools``. JSON: ``{"tools": […]}`` from the server's ``tools/list``."""
    async with conversation(args, args.id, args.timeout) as client:
        found = await client.tools()
    if args.json:
        write_json({"tools": found})
    elif found:
        rows = [(tool.get("name", ""), _arguments(tool), first_line(tool.get("description", ""))) for tool in found]
        table(("TOOL", "ARGUMENTS", "DESCRIPTION"), rows)
    else:
        note(f"{clean(args.id)} has no tools.")
    return 0


async def call(args: argparse.Namespace) -> int:
    """``mcpctl call``; 1 if the result has ``isError``. JSON: the whole result from the server."""
    async with conversation(args, args.id, args.timeout) as client:
        tool = _find(args.id, args.tool, await client.tools())
        arguments = _parse_arguments(args.arguments, _schema(tool))
        try:
            result = await client.call(str(tool["name"]), arguments)
        except McpdError as fault:
            output = (fault.data or {}).get("output")
            if isinstance(output, str) and output.strip():
                note(clean(output, lines=True).rstrip())
            raise
    if args.json:
        write_json(result)
    else:
        _print_result(result)
    return EXIT_FAILED if result.get("isError") else 0


def _find(server_id: str, name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the tool *name*, ignoring which separator it contains: some servers list ``a/b`` as ``a.b`` or ``a_b``.

    Raises :class:`~mcpd.errors.NotFound`.
    """
    names = {str(tool.get("name", "")): tool for tool in tools}
    alike = [name] if name in names else [each for each in names if _SEPARATOR.split(each) == _SEPARATOR.split(name)]
    if len(alike) == 1:
        return names[alike[0]]
    hint = did_you_mean(name, names)
    raise NotFound(f"{server_id} has no tool {name!r}; 'mcpctl tools {server_id}' lists its tools{clean(hint)}")


def _parse_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the arguments of a tool: one JSON object, or ``KEY=VALUE`` with values typed by the tool's *schema*."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            whole = parse_json(words[0])
        except ValueError as error:
            raise InvalidArgument(f"the arguments are not valid JSON: {error}") from error
        return dict(whole)
    arguments = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise InvalidArgument(f"{word!r} is neither KEY=VALUE nor a JSON object")
        if key in arguments:
            raise InvalidArgument(f"the argument {key!r} is specified twice")
        arguments[key] = _typed(key, text, schema.get(key))
    return arguments


def _typed(key: str, text: str, schema: object) -> Any:
    """Parse *text* as JSON; return it unchanged if *schema* accepts strings, or has no type and *text* is not JSON."""
    wanted = schema.get("type") if isinstance(schema, dict) else None
    kinds = wanted if isinstance(wanted, list) else [wanted] if isinstance(wanted, str) else []
    if "string" in kinds:
        return text
    try:
        return parse_json(text)
    except ValueError:
        if kinds:
            hint = "; write it as JSON" if "array" in kinds or "object" in kinds else ""
            kind = " or ".join(map(str, kinds))
            raise InvalidArgument(f"{key} is of type {kind}; {text[:80]!r} is not{hint}") from None
        return text


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _arguments(tool: Mapping[str, Any]) -> str:
    """Return the names of the tool's arguments, optional ones in brackets."""
    schema = tool.get("inputSchema")
    required = schema.get("required") if isinstance(schema, dict) else None
    needed = required if isinstance(required, list) else []
    return " ".join(name if name in needed else f"[{name}]" for name in _schema(tool))


def _print_result(result: Mapping[str, Any]) -> None:
    content = result.get("content")
    items = [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
    for item in items:
        write_text(_item_text(item))
    if not items and "structuredContent" in result:
        write_json(result["structuredContent"])


def _item_text(item: Mapping[str, Any]) -> str:
    resource = item.get("resource")
    match item.get("type"):
        case "text":
            return str(item.get("text", ""))
        case "image" | "audio" as kind:
            return f"[{kind}, {item.get('mimeType', 'unknown type')}, {len(str(item.get('data', ''))) * 3 // 4} bytes]"
        case "resource_link":
            return str(item.get("uri", ""))
        case "resource" if isinstance(resource, dict):
            return str(resource.get("text") or f"[resource {resource.get('uri', '')}]")
    return json.dumps(item, ensure_ascii=False)
