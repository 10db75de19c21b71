# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-scripts`` over stdio, in both eras of MCP (T4 to T8)."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from mcp import MCPError
from mcp.types import BlobResourceContents, ResourceLink, TextContent, TextResourceContents

from mcpd.scripts import contents
from tests.servers import scripts_harness
from tests.servers.constants import impatient
from tests.servers.scripts_harness import ERAS, SCRIPT, command, manifest, served, text

if TYPE_CHECKING:
    from pathlib import Path

TRANSFORM = """
def generate_tools(server_name, context):
    return [{"name": "made", "function": "echo", "description": "Made of " + server_name}]
"""
PICTURE = bytes(range(256))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def described(*arguments: object) -> dict[str, Any]:
    """What a server started with *arguments* says that it would offer."""
    done = subprocess.run(command("--describe", *arguments), capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ERAS)
async def test_T8_1_a_session_from_the_greeting_to_the_calls(tmp_path: Path, log: Path, mode: str) -> None:
    async with served("--manifest", manifest(tmp_path, SCRIPT), mode=mode, log=log) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"echo", "greet", "fail", "count", "wait", "print_much", "where", "move"}
        assert tools["echo"].description == "Say it back."
        assert tools["echo"].input_schema["properties"]["message"]["description"] == "What to say."
        assert text(await client.call_tool("echo", {"message": "žluťoučký"})) == "žluťoučký"
        assert text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"
        where = await client.call_tool("where", {})
        assert where.structured_content == {"server": "thing", "key": "value"}
        assert text(await client.call_tool("print_much", {})) == "printed"


@pytest.mark.parametrize("mode", ERAS)
async def test_T5_what_is_wrong_with_a_call_is_told_in_its_result(tmp_path: Path, log: Path, mode: str) -> None:
    async with served("--manifest", manifest(tmp_path, SCRIPT), mode=mode, log=log) as client:
        for name, arguments, says in (
            ("echo", {}, "$.message is required"),
            ("echo", {"message": 5}, "$.message: 5 is not of type 'string'"),
            ("nothing", {}, "Unknown tool: nothing"),
            ("fail", {"reason": "the disk is full"}, "the disk is full"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error, name
            assert says in text(result)


@pytest.mark.parametrize("mode", ERAS)
async def test_resources_and_prompts(tmp_path: Path, log: Path, mode: str) -> None:
    name = contents.write(tmp_path / "cas", PICTURE)
    entry: dict[str, Any] = {
        "resources": {
            "picture": {"uri": f"cid://{name}", "mimeType": "image/png"},
            "moved": {"uri": "moved://", "source": "server://thing/move"},
            "note": {"uri": "variable://note"},
        },
        "prompts": {"about": {"template": "About {{ topic }}.", "arguments": [{"name": "topic", "required": True}]}},
        "variables": {"note": "a note"},
    }
    async with served("--manifest", manifest(tmp_path, SCRIPT, **entry), mode=mode, log=log) as client:
        listed = (await client.list_resources()).resources
        assert [each.name for each in listed] == ["picture", "moved", "note"]
        assert (await client.list_resource_templates()).resource_templates == []
        (picture,) = (await client.read_resource(f"cid://{name}")).contents
        assert isinstance(picture, BlobResourceContents)
        assert base64.b64decode(picture.blob) == PICTURE
        # T13.8
        (moved,) = (await client.read_resource("moved://")).contents
        assert isinstance(moved, TextResourceContents)
        assert (str(moved.uri), moved.text) == ("moved://", "a note")
        with pytest.raises(MCPError, match="Resource not found") as caught:
            await client.read_resource("variable://other")
        assert caught.value.error.code == {"legacy": -32002, "2026-07-28": -32602}[mode]
        assert caught.value.error.data == {"uri": "variable://other"}
        assert [each.name for each in (await client.list_prompts()).prompts] == ["about"]
        (message,) = (await client.get_prompt("about", {"topic": "ships"})).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == "About ships."
        for arguments, prompt in (({}, "about"), ({"topic": "x", "y": "z"}, "about"), ({}, "never")):
            with pytest.raises(MCPError) as wrong:
                await client.get_prompt(prompt, arguments)
            assert wrong.value.error.code == -32602
            assert prompt in wrong.value.error.message


@pytest.mark.parametrize("mode", ERAS)
async def test_T4_5_many_tools_come_in_pages(tmp_path: Path, log: Path, mode: str) -> None:
    script = "".join(f"def tool_{n}(): pass\n" for n in range(250))
    async with served("--manifest", manifest(tmp_path, script), mode=mode, log=log) as client:
        sizes: list[int] = []
        names: list[str] = []
        cursor = None
        while not sizes or cursor is not None:
            page = await client.list_tools(cursor=cursor)
            sizes.append(len(page.tools))
            names += [tool.name for tool in page.tools]
            cursor = page.next_cursor
        assert (sizes, names) == ([100, 100, 50], [f"tool_{n}" for n in range(250)])


@pytest.mark.parametrize("mode", ERAS)
async def test_T13_8_a_tool_that_redirects_gives_a_link(tmp_path: Path, log: Path, mode: str) -> None:
    async with served("--manifest", manifest(tmp_path, SCRIPT), mode=mode, log=log) as client:
        (link,) = (await client.call_tool("move", {})).content
        assert isinstance(link, ResourceLink)
        assert str(link.uri) == "variable://note"


@pytest.mark.parametrize("mode", ERAS)
async def test_T4_4_a_transform_runs_with_the_rest_of_the_server(tmp_path: Path, log: Path, mode: str) -> None:
    name = contents.write(tmp_path / "cas", TRANSFORM.encode())
    entry: dict[str, Any] = {"tools_transform_cid": name, "prompts_transform_cid": "0" * 64, "auto_discover": False}
    async with served("--manifest", manifest(tmp_path, SCRIPT, **entry), mode=mode, log=log) as client:
        (tool,) = (await client.list_tools()).tools
        assert (tool.name, tool.description) == ("made", "Made of thing")
        assert text(await client.call_tool("made", {"message": "hello"})) == "hello"
        prompts = await client.list_prompts()
        (problem,) = (prompts.meta or {})["org.mcpd/problems"]
        assert "0" * 64 in problem
    assert problem in log.read_text()


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_comes_before_the_result(tmp_path: Path, log: Path, mode: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with served("--manifest", manifest(tmp_path, SCRIPT), mode=mode, log=log) as client:
        result = await client.call_tool("count", {"steps": 3}, progress_callback=on_progress)
        assert text(result) == "counted"
    # Several may be one, but the last one comes.
    assert seen[-1] == (3, 3, "step 3")
    assert seen == sorted(seen)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_silent_call_is_said_to_be_running(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(scripts_harness, "PROGRAM", impatient("mcpd.servers.scripts"))
    source = "import time\ndef wait() -> str:\n    time.sleep(0.5)\n    return 'waited'\n"
    heard: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async with served("--manifest", manifest(tmp_path, source), mode=mode, log=log) as client:
        assert text(await client.call_tool("wait", {}, progress_callback=on_progress)) == "waited"
    assert heard
    assert all(message.startswith("still running after ") for message in heard)


@pytest.mark.parametrize("mode", ERAS)
async def test_null_is_taken_where_the_schema_offers_it(tmp_path: Path, log: Path, mode: str) -> None:
    source = "def show(x: int = None, y: int = 2) -> str:\n    return repr((x, y))\n"
    async with served("--manifest", manifest(tmp_path, source), mode=mode, log=log) as client:
        (tool,) = (await client.list_tools()).tools
        assert {"type": "null"} in tool.input_schema["properties"]["x"]["anyOf"]
        assert text(await client.call_tool("show", {"x": None})) == "(None, 2)"
        assert (await client.call_tool("show", {"y": None})).is_error


async def test_T13_4_calls_run_side_by_side(tmp_path: Path, log: Path) -> None:
    async with served("--manifest", manifest(tmp_path, SCRIPT), mode="legacy", log=log) as client:
        results = await asyncio.gather(*(client.call_tool("echo", {"message": str(n)}) for n in range(20)))
        assert [text(result) for result in results] == [str(n) for n in range(20)]


def test_the_list_of_a_shell_script_is_described(tmp_path: Path) -> None:
    path = tmp_path / "hello.sh"
    path.write_text('#!/bin/sh\n# Greets.\necho "hello $1"\n')
    found = described(path)
    assert [tool["name"] for tool in found["tools"]] == ["hello"]
    assert (found["resources"], found["prompts"], found["problems"]) == ([], [], [])


@pytest.mark.parametrize("mode", ERAS)
async def test_a_shell_script_is_served_alone(tmp_path: Path, log: Path, mode: str) -> None:
    path = tmp_path / "hello.sh"
    path.write_text('#!/bin/sh\n# Greets.\necho "hello $1"\n')
    async with served(path, mode=mode, log=log) as client:
        assert text(await client.call_tool("hello", {"args": "'a b'"})).strip() == "hello a b"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_of_the_entry_finds_its_arguments_on_stdin(tmp_path: Path, log: Path, mode: str) -> None:
    schema = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    script = '#!/bin/sh\nprintf "%s|" "$MCP_TOOL" "$@"\ncat\n'
    file = manifest(
        tmp_path, script, suffix=".sh", tools={"thing": {"inputSchema": schema}, "more": {"inputSchema": schema}}
    )
    async with served("--manifest", file, mode=mode, log=log) as client:
        assert text(await client.call_tool("thing", {"n": 5, "x": "y"})) == 'thing|--n=5|{"n": 5, "x": "y"}'
        assert text(await client.call_tool("more", {"n": 5})) == 'more|more|--n=5|{"n": 5}'


def test_a_description_holds_what_is_wrong(tmp_path: Path) -> None:
    entry: dict[str, Any] = {
        "auto_discover": False,
        "tools": {"gone": {}},
        "resources": {"bad": {"uri": "x"}},
        "prompts": {"bad": {}},
    }
    name = contents.write(tmp_path / "cas", b"def generate_tools(name, context): return [5]")
    found = described("--manifest", manifest(tmp_path, SCRIPT, tools_transform_cid=name, **entry))
    assert [tool["name"] for tool in found["tools"]] == ["gone"]
    assert [problem.partition(":")[0] for problem in found["problems"]] == [
        "tool gone", "tools_transform_cid", "resource bad", "prompt bad",
    ]  # fmt: skip


def test_a_syntax_error_is_described_with_its_line(tmp_path: Path) -> None:
    found = described("--manifest", manifest(tmp_path, "\ndef broken(:\n"))
    assert found["tools"] == []
    assert f"{tmp_path}/thing.py:2:" in found["problems"][0]


def test_describing_a_script_does_not_import_it(tmp_path: Path) -> None:
    trace = tmp_path / "imported"
    described("--manifest", manifest(tmp_path, f"open({str(trace)!r}, 'w')\n" + SCRIPT))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a script"),
        (["x.py", "--manifest", "y"], "name a script"),
        (["/none.py"], "/none.py: there is no such file"),
        (["/etc/hostname"], "/etc/hostname: a script is a file .py or .sh"),
        (["--manifest", "/none.json"], "/none.json"),
    ],
)
def test_what_cannot_be_served_is_told_at_the_start(arguments: list[str], says: str) -> None:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("how", ["--describe", ""])
@pytest.mark.parametrize(("name", "text"), [("bad.py", "\ndef broken(:\n"), ("bad.sh", "#!/bin/sh\nif true; then\n")])
def test_a_script_alone_that_cannot_be_read_is_not_served(tmp_path: Path, name: str, text: str, how: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    argv = command(*([how] if how else []), path)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"mcp-scripts: {path}:")
