# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP headers of revision 2026-07-28 that repeat parts of a request, for intermediaries that do not parse bodies."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.remote.messages import Message

_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_ANNOTATION: Final = "x-mcp-header"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}")
_PLAIN: Final = re.compile(r"(?!\s|=\?base64\?.*\?=$)[\x20-\x7e]*(?<!\s)")
_MAX_TOOLS: Final = 10_000


class ParameterHeaders:
    """The arguments of tools that have a header, as known from ``tools/list``."""

    def __init__(self) -> None:
        self._tools: dict[str, dict[tuple[str, ...], str]] = {}

    def learn(self, result: object) -> None:
        """Store the tools in *result*, of ``tools/list``."""
        tools = result.get("tools") if isinstance(result, dict) else None
        for tool in tools if isinstance(tools, list) else []:
            if isinstance(tool, dict) and isinstance(tool.get("name"), str) and len(self._tools) < _MAX_TOOLS:
                self._tools[tool["name"]] = dict(_annotated(tool.get("inputSchema")))

    def of(self, message: Message) -> dict[str, str]:
        """Return all headers of the request *message* that come from its body."""
        params = message.params
        headers = {"Mcp-Protocol-Version": message.revision, "Mcp-Method": encoded(message.method)}
        name = params.get(_NAMED_BY.get(message.method, ""))
        if isinstance(name, str):
            headers["Mcp-Name"] = encoded(name)
        if message.method == "tools/call" and isinstance(name, str):
            for path, token in self._tools.get(name, {}).items():
                text = _text(_value(params.get("arguments"), path))
                if text is not None:
                    headers[f"Mcp-Param-{token}"] = encoded(text)
        return headers


def encoded(text: str) -> str:
    """Return *text* as the value of a header, in marked Base64 if it cannot be sent unchanged."""
    if _PLAIN.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def _annotated(schema: object) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path, only through ``properties``, and the header of each property that has one."""
    pending: list[tuple[tuple[str, ...], object]] = [((), schema)]
    while pending:
        path, node = pending.pop()
        if not isinstance(node, dict):
            continue
        token = node.get(_ANNOTATION)
        if path and isinstance(token, str) and _TOKEN.fullmatch(token):
            yield path, token
        below = node.get("properties")
        if isinstance(below, dict):
            pending += (((*path, name), child) for name, child in below.items())


def _value(arguments: Any, path: tuple[str, ...]) -> object:
    for name in path:
        arguments = arguments.get(name) if isinstance(arguments, dict) else None
    return arguments


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None
