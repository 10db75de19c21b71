# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shipped scripts as servers, with the shipped map, through the official client over stdio."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent, TextResourceContents

from mcpd.scripts.generator import build
from tests.servers.scripts_harness import command

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.types import CallToolResult

DATA = Path(__file__).parents[2] / "data"
TOOLS = {
    "date": {"now", "convert", "add", "diff", "format"},
    "echo": {"echo", "repeat"},
    "jq": {"query", "keys", "length", "flatten", "paths", "types"},
    "markdown": {"convert", "plain", "toc"},
}
needs_jq = pytest.mark.skipif(which("jq") is None, reason="jq is not installed")


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the manifest of a script as mcpd would, and returns its path."""
    directory = tmp_path_factory.mktemp("shipped")
    built = build(DATA / "mcps.source.json", directory / "cas").map

    def write(server_id: str, **changes: Any) -> Path:
        script = DATA / f"share/scripts/{server_id}.py"
        manifest = {
            "id": server_id,
            "name": server_id,
            "config": {},
            "script": {
                "path": str(script),
                "kind": "python",
                "entry": {**built[server_id], **changes},
                "contents": [str(directory / "cas")],
            },
        }
        path = directory / f"{server_id}-{len(list(directory.iterdir()))}.json"
        path.write_text(json.dumps(manifest))
        return path

    return write


def client(manifest: Path) -> Client:
    program, *arguments = command("--manifest", manifest)
    return Client(StdioServerParameters(command=program, args=arguments), mode="legacy")


def text(result: CallToolResult) -> str:
    """The one text of a result that is no failure."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert not result.is_error, content.text
    return content.text


@pytest.mark.parametrize("server_id", sorted(TOOLS))
async def test_T10_5_shipped_scripts_offer_their_tools_and_nothing_is_wrong(
    manifests: Callable[..., Path], server_id: str
) -> None:
    """Those of jq that are no functions come from its transform, which the map names by its content."""
    process = await asyncio.create_subprocess_exec(
        *command("--manifest", manifests(server_id), "--describe"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    described = json.loads(out)
    assert described["problems"] == []
    assert {tool["name"] for tool in described["tools"]} == TOOLS[server_id]
    assert all(tool["description"] for tool in described["tools"])


@pytest.mark.parametrize("server_id", sorted(TOOLS))
async def test_T11_5_every_argument_of_a_shipped_tool_is_described(
    manifests: Callable[..., Path], server_id: str
) -> None:
    async with client(manifests(server_id)) as session:
        tools = (await session.list_tools()).tools
    undescribed = {
        f"{tool.name}.{name}"
        for tool in tools
        for name, said in tool.input_schema.get("properties", {}).items()
        if not said.get("description")
    }
    assert undescribed == set()


async def test_T8_2_echo_server(manifests: Callable[..., Path]) -> None:
    async with client(manifests("echo")) as session:
        assert text(await session.call_tool("echo", {"message": "grüß Gott"})) == "grüß Gott"
        refused = await session.call_tool("repeat", {"message": "x", "times": 0})
    assert refused.is_error
    assert "times: 0 is not between 1 and 1000" in str(refused.content)


async def test_echo_reports_progress(manifests: Callable[..., Path]) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with client(manifests("echo")) as session:
        said = await session.call_tool("repeat", {"message": "x", "times": 3, "seconds": 0.2}, progress_callback=hear)
    assert text(said) == "x\nx\nx"
    assert [(progress, total) for progress, total, _ in heard][-1] == (3, 3)
    assert heard == sorted(heard)


async def test_T8_3_markdown_server(manifests: Callable[..., Path]) -> None:
    hostile = "# Hi\n\n<script>alert(1)</script>\n\n[x](javascript:alert(1)) <img src=x onerror=alert(1)>"
    async with client(manifests("markdown")) as session:
        html = text(await session.call_tool("convert", {"markdown": hostile}))
        contents = await session.call_tool("toc", {"markdown": "# A\n\n## B"})
    assert "<h1>Hi</h1>" in html
    assert "<script" not in html
    assert "onerror" not in html
    assert 'href="javascript' not in html
    assert json.loads(text(contents)) == [{"level": 1, "title": "A"}, {"level": 2, "title": "B"}]


@needs_jq
async def test_T8_4_jq_server(manifests: Callable[..., Path]) -> None:
    data = {"items": [{"name": "a", "price": 5}, {"name": "b", "price": 12}]}
    async with client(manifests("jq")) as session:
        found = await session.call_tool("query", {"filter": ".items[] | select(.price > 10) | .name", "json": data})
        wrong = await session.call_tool("query", {"filter": ".[", "json": data})
    assert text(found) == '"b"'
    assert wrong.is_error
    assert "syntax error" in str(wrong.content)


@needs_jq
async def test_ready_made_filters_are_tools(manifests: Callable[..., Path]) -> None:
    async with client(manifests("jq")) as session:
        assert json.loads(text(await session.call_tool("keys", {"json": {"b": 1, "a": 2}}))) == ["b", "a"]
        assert text(await session.call_tool("length", {"json": [1, 2, 3]})) == "3"
        assert json.loads(text(await session.call_tool("flatten", {"json": [[1], [[2]]]}))) == [1, 2]
        paths = json.loads(text(await session.call_tool("paths", {"json": {"a": [{"b": None}, 1]}})))
        types = json.loads(text(await session.call_tool("types", {"json": {"a": 1, "b": []}})))
        other = await session.call_tool("keys", {"json": {}, "filter": "env"})
    assert paths == ["a.0.b", "a.1"]
    assert types == {"a": "number", "b": "array"}
    assert other.is_error


@needs_jq
async def test_the_administrator_adds_filters_in_the_map(manifests: Callable[..., Path]) -> None:
    manifest = manifests("jq", variables={"filters": {"emails": '[.. | strings | select(test("@"))]'}})
    async with client(manifest) as session:
        assert {tool.name for tool in (await session.list_tools()).tools} == TOOLS["jq"] | {"emails"}
        found = await session.call_tool("emails", {"json": {"a": ["x@y.example", "z"], "b": 1}})
    assert json.loads(text(found)) == ["x@y.example"]


async def test_jq_has_a_prompt(manifests: Callable[..., Path]) -> None:
    async with client(manifests("jq")) as session:
        with_sample = await session.get_prompt("write-filter", {"task": "count", "sample": '{"a": 1}'})
        without = await session.get_prompt("write-filter", {"task": "count"})
    contents = [each.messages[0].content for each in (with_sample, without)]
    first, second = [content.text for content in contents if isinstance(content, TextContent)]
    assert first.startswith("Write a jq filter that does this: count\n")
    assert '{"a": 1}' in first
    assert "Try it" not in second


async def test_T8_5_date_server(manifests: Callable[..., Path]) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    async with client(manifests("date")) as session:
        now = text(await session.call_tool("now", {"timezone": "Asia/Kathmandu"}))
        written = text(await session.call_tool("format", {"time": "2026-11-22", "pattern": "%A, %d %B %Y"}))
        difference = await session.call_tool("diff", {"start": "2026-01-01T00:00Z", "end": "2026-01-02T01:00Z"})
        wrong = await session.call_tool("now", {"timezone": "Mars/Olympus"})
    assert before <= datetime.fromisoformat(now) <= datetime.now(UTC)
    assert datetime.fromisoformat(now).utcoffset() == timedelta(hours=5, minutes=45)
    assert written == "Sunday, 22 November 2026"
    assert difference.structured_content == {
        "seconds": 90000.0, "days": 1, "hours": 1, "minutes": 0, "text": "1 day, 1 hour"
    }  # fmt: skip
    assert wrong.is_error
    assert "'Mars/Olympus' is no time zone" in str(wrong.content)


async def test_the_present_time_is_a_resource(manifests: Callable[..., Path]) -> None:
    async with client(manifests("date")) as session:
        uris = {str(resource.uri) for resource in (await session.list_resources()).resources}
        (content,) = (await session.read_resource("server://date/now?timezone=UTC")).contents
    assert uris == {"server://date/now", "server://date/now?timezone=UTC"}
    assert content.mime_type == "text/plain"
    assert isinstance(content, TextResourceContents)
    assert datetime.fromisoformat(content.text).utcoffset() == timedelta(0)
