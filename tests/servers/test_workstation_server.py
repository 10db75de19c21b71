# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``mcp-workstation`` with the SDK's client: what it offers, its codes, its limits and its ends."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from mcp.types import ImageContent

from mcpd.servers import notices
from mcpd.servers.workstation import workstation
from tests.mcp_results import first_text
from tests.servers.constants import impatient, with_constant
from tests.servers.failures import refused
from tests.servers.workstation_harness import ERAS, PROGRAM, Desk, gone

if TYPE_CHECKING:
    from pathlib import Path


GROUPS = {
    "filesystem": ["read", "write", "edit", "list", "tree", "search", "stat", "mkdir", "move", "delete"],
    "git": [
        "status", "log", "diff", "show", "branches", "current_branch", "add", "commit", "checkout", "stash", "blame"
    ],
    "ci": ["detect", "build", "test", "lint", "restore", "task", "diagnostics"],
}  # fmt: skip
NAMES = [f"{group}_{name}" for group, names in GROUPS.items() for name in names]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A root with a file."""
    made = Desk(tmp_path)
    (made.root / "file").write_text("file contents here")
    return made


@pytest.mark.parametrize("mode", ERAS)
async def test_tools_are_listed_with_their_schemas(desk: Desk, mode: str) -> None:
    async with desk.started(mode=mode) as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == NAMES
    read = next(tool for tool in tools if tool.name == "filesystem_read")
    assert read.input_schema["required"] == ["path"]
    assert read.input_schema["properties"]["path"]["type"] == "string"
    for tool in tools:
        assert tool.description
        assert tool.annotations is not None
        for schema in (tool.input_schema, tool.output_schema or {}):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            assert schema["additionalProperties"] is False
            assert "$ref" not in str(schema)


async def test_the_common_tools_take_little_of_a_conversation(desk: Desk) -> None:
    async with desk.started("--tools", "common") as client:
        listed = await client.list_tools()
        names = [tool.name for tool in listed.tools]
        assert len(names) == 15
        assert set(names) < set(NAMES)
        assert len(listed.model_dump_json(by_alias=True, exclude_none=True)) <= 24 * 1024
        assert not (await client.call_tool("filesystem_read", {"path": "file"})).is_error
        error = await refused(client, "git_blame", path="file")
    assert (error.code, "tools=all" in error.message) == (-32601, True)


@pytest.mark.parametrize("mode", ERAS)
async def test_the_call_of_the_seed(desk: Desk, mode: str) -> None:
    async with desk.started(mode=mode) as client:
        result = await client.call_tool("filesystem/read", {"path": str(desk.root / "file")})
    assert not result.is_error
    assert (len(result.content), first_text(result)) == (1, "file contents here")
    assert result.structured_content is not None
    assert result.structured_content["text"] == "file contents here"


@pytest.mark.parametrize("style", ["slash", "dot", "underscore"])
async def test_all_styles_of_names_are_understood_and_one_is_listed(desk: Desk, style: str) -> None:
    separator = {"slash": "/", "dot": ".", "underscore": "_"}[style]
    async with desk.started("--tool-name-style", style) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [
            name.replace("_", separator, 1) for name in NAMES
        ]
        for name in ("filesystem/read", "filesystem.read", "filesystem_read"):
            assert not (await client.call_tool(name, {"path": "file"})).is_error
        (desk.root / ".git").mkdir()
        assert (await refused(client, "git_current_branch", path=".")).code == -32603


@pytest.mark.parametrize("mode", ERAS)
async def test_the_codes_of_the_seed(desk: Desk, mode: str) -> None:
    async with desk.started(mode=mode) as client:
        unknown = await refused(client, "filesystem/format")
        invalid = await refused(client, "filesystem_read", path=5)
        failed = await refused(client, "filesystem_read", path="nothing")
        outside = await refused(client, "filesystem_read", path=str(desk.outside / "secret"))
    assert (unknown.code, unknown.message.split(":")[0]) == (-32601, "Method not found")
    assert (invalid.code, invalid.message.split(":")[0]) == (-32602, "Invalid params")
    assert (unknown.form, invalid.form) == ("json-rpc", "json-rpc")
    assert (failed.form, failed.code) == ("result", -32603)
    assert (outside.form, outside.code) == ("result", -32603)
    assert "filesystem/format" in unknown.message
    assert "path" in invalid.message
    assert failed.message == f"{desk.root}/nothing does not exist"
    assert str(desk.root) in outside.message
    assert failed.data == {"tool": "filesystem_read", "error": "NotFound"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "the argument 'path' is missing"),
        ({"path": "file", "paht": 1}, "there is no argument 'paht'; there are path, "),
        ({"path": ["file"]}, r'path: ["file"] does not fit {"type": "string"}'),
        ({"path": "file", "start_line": 0}, r'start_line: 0 does not fit {"minimum": 1}'),
        ({"path": "file", "encoding": "rot13"}, "encoding: "),
        ({"path": ""}, "not empty"),
    ],
)
async def test_arguments_are_checked_first_and_the_message_names_them(
    desk: Desk, arguments: dict[str, Any], says: str
) -> None:
    async with desk.started() as client:
        error = await refused(client, "filesystem_read", **arguments)
    assert error.code == -32602
    assert says in error.message


async def test_an_argument_that_is_null_is_left_out(desk: Desk) -> None:
    async with desk.started() as client:
        assert not (await client.call_tool("filesystem_read", {"path": "file", "start_line": None})).is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_errors_as_results(desk: Desk, mode: str) -> None:
    async with desk.started("--error-mapping", "tool-result", mode=mode) as client:
        for name, arguments, code in (
            ("filesystem/format", {}, -32601),
            ("filesystem_read", {}, -32602),
            ("filesystem_read", {"path": "nothing"}, -32603),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert result.structured_content is None
            assert result.meta is not None
            assert result.meta["org.mcpd/error"]["code"] == code


MAKEFILE = "all:\n\t@echo begun; touch begun; (setsid sleep 600 &); sleep 600\ntest:\n\t@echo fine\n"


@pytest.mark.parametrize("mode", ERAS)
async def test_errors_are_of_json_rpc_alone_where_that_is_configured(desk: Desk, mode: str) -> None:
    async with desk.started("--error-mapping", "json-rpc", mode=mode) as client:
        failures = [
            await refused(client, "filesystem/format"),
            await refused(client, "filesystem_read"),
            await refused(client, "filesystem_read", path="nothing"),
        ]
    assert [(each.form, each.code, each.message.split(":")[0]) for each in failures] == [
        ("json-rpc", -32601, "Method not found"),
        ("json-rpc", -32602, "Invalid params"),
        ("json-rpc", -32603, "Internal error"),
    ]


@pytest.mark.parametrize("mapping", ["mcp", "json-rpc", "tool-result"])
async def test_a_call_that_takes_too_long(desk: Desk, mapping: str) -> None:
    (desk.root / "Makefile").write_text(MAKEFILE)
    async with desk.started("--error-mapping", mapping) as client:
        error = await refused(client, "ci_build", path=".", timeout_seconds=1)
        assert error.code == -32000
        assert error.message == "Tool execution timeout after 1 s"
        assert "begun" in error.data["output"]
        await gone(str(desk.directory), but="--state")
        assert not (await client.call_tool("ci_test", {"path": "."})).is_error


async def test_timeout_seconds_has_an_end(desk: Desk) -> None:
    (desk.root / "Makefile").write_text(MAKEFILE)
    async with desk.started("--call-timeout", "60") as client:
        error = await refused(client, "ci_test", path=".", timeout_seconds=61)
    assert error.code == -32602
    assert "60 at most" in error.message


async def test_a_cancelled_call_ends_what_it_runs(desk: Desk) -> None:
    (desk.root / "Makefile").write_text(MAKEFILE)
    async with desk.started() as client:
        task = asyncio.create_task(client.call_tool("ci_build", {"path": ".", "timeout_seconds": 600}))
        await until((desk.root / "begun").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(str(desk.directory), but="--state")
        await until(lambda: any(line.get("error") == "Cancelled" for line in desk.audit))


async def test_progress_of_a_build(desk: Desk) -> None:
    (desk.root / "Makefile").write_text("all:\n\t@for i in 1 2 3 4 5; do echo line $$i; sleep 0.1; done\n")
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with desk.started() as client:
        result = await client.call_tool("ci_build", {"path": "."}, progress_callback=on_progress)
    assert not result.is_error
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})
    assert any("line" in (message or "") for _, message in told)


def test_what_is_promised_in_seconds_comes_in_time() -> None:
    # Clients that get progress at least every ten seconds stay; a refused call is in the audit log within one.
    assert notices.SILENCE <= 10
    assert workstation.SUMMARY <= 1


async def test_a_silent_build_is_said_to_be_running(desk: Desk) -> None:
    (desk.root / "Makefile").write_text("all:\n\t@while ! test -e go; do sleep 0.01; done; echo built\n")
    desk.program = impatient("mcpd.servers.workstation")
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))
        if len(told) == 3:
            (desk.root / "go").touch()

    async with desk.started() as client:
        result = await client.call_tool("ci_build", {"path": "."}, progress_callback=on_progress)
    assert not result.is_error
    assert [message for _, message in told[:3]] == ["still running after 0 s"] * 3
    assert any("built" in (message or "") for _, message in told)
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})


async def test_too_many_calls_are_refused_with_when_to_try_again(desk: Desk) -> None:
    async with desk.started("--rate", "2") as client:
        results = await asyncio.gather(*(client.call_tool("filesystem_read", {"path": "file"}) for _ in range(12)))
        errors = [(each.meta or {})["org.mcpd/error"] for each in results if each.is_error]
        assert 5 <= len(errors) <= 6
        for error in errors:
            assert error["code"] == -32005
            assert 0 < error["retry_after"] <= 0.5
        await asyncio.sleep(max(error["retry_after"] for error in errors))
        assert not (await client.call_tool("filesystem_read", {"path": "file"})).is_error
        # In time, though no other call follows.
        await until(lambda: len(errors) == sum(line["calls"] for line in desk.audit if line["event"] == "held_back"))
    (line, *_) = (line for line in desk.audit if line["event"] == "held_back")
    assert (line["ok"], line["error"], "arguments_sha256" in line) == (False, "LimitsExceeded", False)


async def test_calls_that_came_too_fast_are_recorded_when_the_client_leaves(desk: Desk) -> None:
    desk.program = with_constant("mcpd.servers.workstation", "mcpd.servers.workstation.workstation", "SUMMARY", 3600.0)
    async with desk.started("--rate", "0.01") as client:
        assert not (await client.call_tool("filesystem_read", {"path": "file"})).is_error
        for _ in range(3):
            assert (await refused(client, "filesystem_read", path="file")).code == -32005
    assert [(line["event"], line.get("calls")) for line in desk.audit] == [("end", None), ("held_back", 3)]


async def test_every_call_is_recorded(desk: Desk) -> None:
    async with desk.started() as client:
        await client.call_tool("filesystem_read", {"path": "file"})
        await client.call_tool("filesystem_write", {"path": "new", "content": "s3cret"})
        await refused(client, "filesystem_read", path="../outside/secret")
        await refused(client, "nonsense\n\x1b[31m", path="x")
    lines = desk.audit
    assert [(line["event"], line["tool"], line.get("ok")) for line in lines] == [
        ("end", "filesystem_read", True),
        ("begin", "filesystem_write", None),
        ("end", "filesystem_write", True),
        ("end", "filesystem_read", False),
        ("end", "nonsense\\n\\x1b[31m", False),
    ]
    assert [line["path"] for line in lines] == [
        f"{desk.root}/file", f"{desk.root}/new", f"{desk.root}/new", "../outside/secret", "x"
    ]  # fmt: skip
    assert "s3cret" not in (desk.state / "audit.jsonl").read_text()
    assert len(lines[0]["arguments_sha256"]) == 64
    assert (desk.state / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    assert desk.log.count("tools/call") == 4


async def test_what_cannot_be_recorded_is_not_done(desk: Desk) -> None:
    desk.state.mkdir()
    os.mkfifo(desk.state / "audit.jsonl")
    async with desk.started() as client:
        error = await refused(client, "filesystem_write", path="new", content="x")
        assert "recorded" in error.message or "recording" in error.message
        assert not (desk.root / "new").exists()
        assert (await refused(client, "filesystem_read", path="file")).code == -32603


async def test_without_roots_the_tools_name_the_setting(desk: Desk) -> None:
    program = desk.command("--root=x")
    program.args = [*PROGRAM, "--tools", "all", "--state", str(desk.state)]
    desk.command = lambda *_: program  # type: ignore[method-assign]
    async with desk.started() as client:
        assert len((await client.list_tools()).tools) == len(NAMES)
        for name in ("filesystem_list", "git_status", "ci_detect"):
            error = await refused(client, name)
            assert error.code == -32603
            assert "roots" in error.message
            assert "mcpctl config set workstation" in error.message


async def test_a_missing_root_costs_that_root_and_not_the_server(desk: Desk) -> None:
    gone = desk.directory / "gone"
    async with desk.started("--root", str(desk.root), "--root", str(gone)) as client:
        assert not (await client.call_tool("filesystem_write", {"path": "new", "content": "x"})).is_error
        error = await refused(client, "filesystem_list", path=str(gone))
    assert (desk.root / "new").read_text() == "x"
    assert f"the configured root {gone} was not there when the server started" in error.message
    assert str(gone) in desk.log
    async with desk.started("--root", str(gone)) as client:
        for tool in ("filesystem_list", "git_status", "ci_detect"):
            assert f"the configured root {gone} was not there" in (await refused(client, tool)).message


async def test_calls_side_by_side(desk: Desk) -> None:
    (desk.root / "Makefile").write_text("all:\n\t@while ! test -e go; do sleep 0.01; done; echo gone\n")
    for number in range(30):
        (desk.root / f"f{number}").write_text(f"{number}")
    async with desk.started() as client:
        build = asyncio.create_task(client.call_tool("ci_build", {"path": "."}))
        results = await asyncio.gather(
            *(client.call_tool("filesystem_read", {"path": f"f{number}"}) for number in range(30))
        )
        assert [first_text(each) for each in results] == [str(number) for number in range(30)]
        assert not build.done()
        await client.call_tool("filesystem_write", {"path": "go", "content": ""})
        assert not (await build).is_error


async def test_an_image_is_one(desk: Desk) -> None:
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    (desk.root / "pixel").write_bytes(pixel)
    async with desk.started() as client:
        result = await client.call_tool("filesystem_read", {"path": "pixel"})
    image = result.content[0]
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data) == pixel


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--root", "relative"], "relative: a directory is given as an absolute path"),
        (
            ["--root", "/srv/../etc"],
            "/srv/../etc: a directory is given as an absolute path, or one that begins with ~/, w",
        ),
        (["--root", "/"], "/ cannot be a root"),
        (["--rate", "0"], "rate is '0'; it can be from 0.001 to 10000"),
        (["--call-timeout", "7201"], "call_timeout is '7201'; it can be from 1 to 7200"),
        (["--allow-network=perhaps"], "allow_network is 'perhaps'; it can be true, false"),
        (["--tools", "some"], "tools is 'some'; it can be common, all"),
        (["--tool-name-style", "camel"], "tool_name_style is 'camel'; it can be underscore, slash, dot"),
        (["--error-mapping", "none"], "error_mapping is 'none'; it can be mcp, json-rpc, tool-result"),
    ],
)
async def test_what_cannot_be_configured_is_what_every_tool_says(desk: Desk, arguments: list[str], says: str) -> None:
    async with desk.started(*arguments) as client:
        for name in ("filesystem_list", "git_status", "ci_detect"):
            error = await refused(client, name)
            assert error.code == -32603
            assert says in error.message
    assert says in desk.log


async def test_nothing_that_is_shown_holds_the_record_of_calls(desk: Desk) -> None:
    for option, key in (("--root", "roots"), ("--toolchain", "toolchains")):
        for path in (desk.directory, desk.state / "home"):
            path.mkdir(parents=True, exist_ok=True)
            async with desk.started(f"{option}={path}") as client:
                error = await refused(client, "filesystem_list")
            assert f"{key}: {path} holds {desk.state}, where every call is recorded" in error.message


@pytest.mark.parametrize("arguments", [["--roots=/"], ["extra"], ["--root"]])
async def test_what_is_no_option(desk: Desk, arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        desk.command().command, *PROGRAM, *arguments, stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL, env=desk.environ,
    )  # fmt: skip
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert "usage: mcp-workstation" in stderr.decode()


async def until(condition: Any) -> None:
    """Wait until *condition* holds; the test's own limit is the end of patience."""
    while not condition():
        await asyncio.sleep(0.01)
