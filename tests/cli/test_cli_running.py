# SPDX-License-Identifier: LGPL-2.1-or-later
"""run, ps, stop, logs, tools and call: servers as processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.cli.commands import logs, tools
from mcpd.cli.main import main
from mcpd.errors import ConfigMissing, NotAuthorized, NotSupported, SystemInstanceOnly
from tests.cli.fake import fake_mcpd
from tests.preloaded import process_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

ECHO = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)\nprint('end of input', flush=True)"

SERVER = r"""
import json, sys

def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

ADD = {"name": "add", "description": "Adds\nnumbers", "inputSchema": {"type": "object", "required": ["a"],
       "properties": {"a": {"type": "number"}, "label": {"type": ["string", "null"]}, "any": {},
                                      "more": {"type": "array"}}}}
for line in sys.stdin:
    m = json.loads(line)
    method, number = m.get("method"), m.get("id")
    if method == "initialize":
        assert m["params"]["protocolVersion"] == "2025-11-25", m
        say({"method": "notifications/message", "params": {"level": "info", "data": "hello"}})
        say({"id": 7, "method": "ping"})
        assert json.loads(sys.stdin.readline())["result"] == {}
        say({"id": 8, "method": "roots/list"})
        assert json.loads(sys.stdin.readline())["error"]["code"] == -32601
        say({"id": number, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}})
    elif method == "tools/list":
        if "cursor" in m["params"]:
            names = ["fail", "deny", "die", "noise", "picture", "hang", "late/too.late", "a.b", "a_b"]
            say({"id": number, "result": {"tools": [{"name": n, "inputSchema": {}} for n in names]}})
        else:
            say({"id": number, "result": {"tools": [ADD], "nextCursor": "2"}})
    elif method == "tools/call":
        name, arguments = m["params"]["name"], m["params"]["arguments"]
        if name == "add":
            say({"id": number, "result": {"content": [{"type": "text", "text": json.dumps(arguments)}], "extra": 1}})
        elif name == "fail":
            say({"id": number, "result": {"content": [{"type": "text", "text": "no such city"}], "isError": True}})
        elif name == "deny":
            say({"id": number, "error": {"code": -32602, "message": "bad \x1b[31margument"}})
        elif name == "late/too.late":
            say({"id": number, "error": {"code": -32000, "message": "timeout", "data": {"output": "begun\n\x1b[31m"}}})
        elif name == "picture":
            say({"id": number, "result": {"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA"}]}})
        elif name == "noise":
            print("starting up...", flush=True)
            print("[1, 2]", flush=True)
            say({"id": number, "result": {"content": [{"type": "text", "text": "started"}]}})
        elif name == "die":
            sys.exit(3)
"""


async def test_run_joins_client_and_server(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.program = [sys.executable, "-c", ECHO]
    process = await mcpctl.start("run", "calculator")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"hello\n")
    assert await process.stdout.readline() == b"HELLO\n"
    process.stdin.close()  # the server, not mcpctl, must see this
    assert await process.stdout.readline() == b"end of input\n"
    assert await process.stdout.read() == b""
    assert await process.wait() == 0


async def test_run_returns_what_the_server_returned(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.program = ["sh", "-c", "echo out; echo err >&2; exit 7"]
    ended = await mcpctl("spawn", "calculator")
    assert (ended.code, ended.out, ended.err) == (7, "out\n", "err\n")
    mcpd.program = ["sh", "-c", "kill -KILL $$"]
    assert (await mcpctl("run", "calculator")).code == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_run_forwards_signals_as_stop(mcpctl: Mcpctl, mcpd: FakeMcpd, number: signal.Signals) -> None:
    mcpd.program = ["sh", "-c", "trap 'echo stopping; exit 5' TERM; echo ready; while :; do sleep 0.05; done"]
    process = await mcpctl.start("run", "calculator")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    await _until(lambda: _catches(process.pid, signal.SIGHUP))
    process.send_signal(number)
    assert await process.stdout.read() == b"stopping\n"
    assert await process.wait() == 5


async def test_run_passes_its_environment(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.program = ["sh", "-c", 'printf %s "$API_KEY"']
    environ = {"API_KEY": "grüß\n'$(id)'", "BYTES": b"\xff".decode(errors="surrogateescape")}
    ended = await mcpctl("run", "calculator", environ=environ)
    assert ended.out == environ["API_KEY"]
    assert "BYTES" not in mcpd.calls[0][4]["environment"]


async def test_run_of_root_falls_back_to_its_own_server(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    mcpd.program = ["echo", "mine"]
    for scope, code in (([], 0), (["--user"], 0), (["--system"], 1)):
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mcpd.cli.main", *scope, "run", "calculator",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=mcpctl.environ | {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path}/absent"},
        )  # fmt: skip
        out, err = await done.communicate()
        assert (done.returncode, out) == (code, b"" if code else b"mine\n"), err


async def test_run_without_a_standard_output(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    script = 'exec "$0" -m mcpd.cli.main --user run calculator >&-'
    done = await asyncio.create_subprocess_exec(
        "sh", "-c", script, sys.executable, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=mcpctl.environ
    )
    _, err = await done.communicate()
    assert (done.returncode, mcpd.calls) == (2, [])
    assert err.startswith(b"mcpctl: standard output is closed")


async def test_run_of_an_unknown_or_unconfigured_server(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert (await mcpctl("run", "nope;reboot")).code == 4
    mcpd.errors["Spawn"] = ConfigMissing("calculator needs api_key; set it with 'mcpctl secret set calculator api_key'")
    ended = await mcpctl("run", "calculator")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"mcpctl: {mcpd.errors['Spawn'].message}\n"


async def test_run_asks_the_system_bus_for_a_system_server(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    mcpd.errors["Spawn"] = SystemInstanceOnly("calculator runs in the system instance only")
    address = f"unix:path={tmp_path}/system-bus"
    argv = ["dbus-daemon", "--session", "--nofork", "--print-address", "--address", address]
    bus = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    assert bus.stdout is not None
    await bus.stdout.readline()
    system = await fake_mcpd(address)
    system.program = ["echo", "from the system"]
    ended = await mcpctl("run", "calculator", environ={"DBUS_SYSTEM_BUS_ADDRESS": address, "SECRET": "x"})
    await system.close()
    bus.terminate()
    await bus.wait()
    assert (ended.code, ended.out) == (0, "from the system\n")
    assert "environment" not in system.calls[0][4]


async def test_run_outlives_mcpd_as_its_server_does(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    """A server that lives on when mcpd is restarted keeps its client."""
    mcpd.program = [sys.executable, "-c", ECHO]
    process = await mcpctl.start("run", "calculator")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"before\n")
    assert await process.stdout.readline() == b"BEFORE\n"
    await _until(lambda: _holds_pidfd(process.pid))
    mcpd.connection.close()
    process.stdin.write(b"after\n")
    assert await process.stdout.readline() == b"AFTER\n"
    process.stdin.close()
    assert await process.stdout.read() == b"end of input\n"
    assert await process.wait() == 1  # nobody is left who knows the exit code


async def test_ps_and_stop(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert (await mcpctl("ps")).err == "No servers are running.\n"
    mcpd.program = ["sleep", "60"]
    running = [await mcpctl.start("run", "calculator") for _ in range(2)]
    await _spawned(mcpd, 2)
    listed = await mcpctl("ps")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [["1", "calculator"], ["2", "calculator"]]
    as_json = json.loads((await mcpctl("ps", "--json")).out)["sessions"]
    assert [(session["session"], session["server-id"]) for session in as_json] == [(1, "calculator"), (2, "calculator")]
    assert (await mcpctl("stop", "1")).out == "Stopped calculator (session 1).\n"
    assert (await mcpctl("stop", "1")).code == 4
    assert (await mcpctl("stop", "calculator")).out == "Stopped calculator (session 2).\n"
    assert (await mcpctl("stop", "nope")).code == 4
    assert [await process.wait() for process in running] == [128 + signal.SIGTERM] * 2


async def test_logs_becomes_journalctl(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    if not any(place.is_dir() for place in logs._JOURNALS) or not logs._SOCKET.is_socket():
        ended = await mcpctl("logs", "calculator")
        assert (ended.code, "no journal" in ended.err) == (1, True)
        return
    program = tmp_path / "bin/journalctl"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    ended = await mcpctl("logs", "calculator", "-n", "5", "-f", "--since", "today", environ={"PATH": path})
    matches = f"<--quiet>\n<_UID={os.getuid()}>\n<MCP_SERVER_ID=calculator>\n"
    assert ended.out == f"{matches}<-n>\n<5>\n<-f>\n<--since=today>\n"
    program.write_text("#!/bin/sh\n")
    assert (await mcpctl("logs", "nope", environ={"PATH": path})).code == 4
    program.write_text("#!/bin/sh\necho something\n")
    ended = await mcpctl("logs", "nope", environ={"PATH": path})
    assert (ended.code, ended.out, "Server nope no longer exists" in ended.err) == (0, "something\n", True)


@pytest.mark.parametrize("has_socket", [False, True])
def test_logs_asks_for_a_journal_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, has_socket: bool
) -> None:
    monkeypatch.setattr(logs, "_JOURNALS", (tmp_path,))
    monkeypatch.setattr(logs, "_SOCKET", tmp_path / "socket")
    monkeypatch.setattr(logs, "_MACHINE_ID", tmp_path / "machine-id")
    monkeypatch.setattr(shutil, "which", lambda _name: "/bin/true")
    monkeypatch.setattr(logs, "_any", lambda _argv: False)
    monkeypatch.setattr(os, "execv", lambda program, _argv: sys.exit(program))
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    with socket.socket(socket.AF_UNIX) as journal:
        if has_socket:
            journal.bind(str(tmp_path / "socket"))
            with pytest.raises(SystemExit, match="/bin/true"):
                main(["--user", "logs", "calculator"])
        else:
            assert main(["--user", "logs", "calculator"]) == 1
            assert "no journal; look in the output of mcpd for lines that begin" in capsys.readouterr().err


def test_logs_believes_nobody_where_mcpd_has_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_WRITERS", ("root", "no-such-user"))
    with pytest.raises(NotSupported, match="no user 'no-such-user'"):
        list(logs._users(system=True))


async def test_run_says_that_a_server_was_not_stopped(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.errors["Stop"] = NotAuthorized("calculator is not yours")
    mcpd.program = [sys.executable, "-c", ECHO]
    process = await mcpctl.start("run", "calculator")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"hello\n")
    assert await process.stdout.readline() == b"HELLO\n"
    await _until(lambda: _catches(process.pid, signal.SIGHUP))
    process.send_signal(signal.SIGTERM)
    assert await process.stderr.readline() == b"mcpctl: the server was not stopped: calculator is not yours\n"
    process.stdin.close()
    assert await process.wait() == 0


async def test_tools_of_all_pages(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.program = [sys.executable, "-c", SERVER]
    listed = await mcpctl("tools", "calculator")
    assert listed.out.splitlines()[1].split() == ["add", "a", "[label]", "[any]", "[more]", "Adds"]
    found = json.loads((await mcpctl("tools", "calculator", "--json")).out)["tools"]
    names = ["add", "fail", "deny", "die", "noise", "picture", "hang", "late/too.late", "a.b", "a_b"]
    assert [tool["name"] for tool in found] == names


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["a=1.5", "label=2", "any=[1]", "other=text"], {"a": 1.5, "label": "2", "any": [1], "other": "text"}),
        (['{"a": 1, "label": null}'], {"a": 1, "label": None}),
        (["a=1", "label=$(id)'\"\\"], {"a": 1, "label": "$(id)'\"\\"}),
        ([], {}),
        (["a=1", "--timeout", "60", "label=x", "any=2"], {"a": 1, "label": "x", "any": 2}),
        (["--timeout", "60", "--", "a=1"], {"a": 1}),
    ],
)
async def test_call_types_arguments_by_the_schema(
    mcpctl: Mcpctl, mcpd: FakeMcpd, words: list[str], sent: dict[str, Any]
) -> None:
    mcpd.program = [sys.executable, "-c", SERVER]
    ended = await mcpctl("call", "calculator", "add", *words)
    assert (ended.code, json.loads(ended.out)) == (0, sent)


async def test_call_json_is_the_whole_result(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.program = [sys.executable, "-c", SERVER]
    ended = await mcpctl("call", "--json", "calculator", "add", "a=1")
    assert json.loads(ended.out) == {"content": [{"type": "text", "text": '{"a": 1}'}], "extra": 1}
    assert (await mcpctl("call", "calculator", "add", "--json", "a=1")).out == ended.out
    for words in (["--jsn"], ["--json", "a=1", "-x"]):
        ended = await mcpctl("call", "calculator", "add", *words)
        assert (ended.code, f"unrecognized arguments: {words[-1]}\n" in ended.err) == (2, True)
        assert ended.err.startswith("usage: mcpctl call "), "of the command that it was given to"
    ended = await mcpctl("call", "calculator")
    assert (ended.code, ended.err.endswith("the following arguments are required: TOOL\n")) == (2, True)


@pytest.mark.parametrize(("text", "out"), [("a\n", "a\n"), ("a", "a\n"), ("a\n\n", "a\n\n"), ("", "\n")])
def test_call_adds_no_empty_line(text: str, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    tools._print_result({"content": [{"type": "text", "text": text}]})
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["fail"], 1, "no such city\n", ""),
        (["picture"], 0, "[image, image/png, 3 bytes]\n", ""),
        (["deny"], 1, "", "tools/call: bad \ufffd[31margument (JSON-RPC error -32602)"),
        (["die"], 1, "", "exited without answering; 'mcpctl logs calculator' may show why"),
        (["noise"], 0, "started\n", "something other than a message to its standard output: b'starting up"),
        (["hang", "--timeout", "1"], 1, "", "did not answer within 1 s"),
        (["zzz"], 4, "", "has no tool 'zzz'; 'mcpctl tools calculator' lists its tools"),
        (
            ["picturr"],
            4,
            "",
            "has no tool 'picturr'; 'mcpctl tools calculator' lists its tools; did you mean 'picture'?",
        ),
        (["a/b"], 4, "", "did you mean 'a"),
        (
            ["late/too.late"],
            1,
            "",
            "begun\n\ufffd[31m\nmcpctl: calculator: tools/call: timeout",
        ),
        (["late_too_late"], 1, "", "tools/call: timeout"),
        (["add", "a=one"], 2, "", "a is of type number; 'one' is not"),
        (["add", "more=a,b"], 2, "", "more is of type array; 'a,b' is not; write it as JSON"),
        (["add", "a=1", "a=2"], 2, "", "the argument 'a' is specified twice"),
        (["add", "a"], 2, "", "neither KEY=VALUE nor a JSON object"),
        (["add", "{"], 2, "", "not valid JSON"),
    ],
)
async def test_call_says_what_went_wrong(
    mcpctl: Mcpctl, mcpd: FakeMcpd, words: list[str], code: int, out: str, err: str
) -> None:
    mcpd.program = [sys.executable, "-c", SERVER]
    ended = await mcpctl("call", "calculator", *words)
    assert (ended.code, ended.out) == (code, out)
    assert err in ended.err


async def test_a_server_that_ends_at_once(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.program = ["false"]
    ended = await mcpctl("tools", "calculator")
    assert (ended.code, ended.err) == (
        1, "mcpctl: calculator exited without answering; 'mcpctl logs calculator' may show why\n"
    )  # fmt: skip


async def _spawned(mcpd: FakeMcpd, count: int) -> None:
    async with asyncio.timeout(120):
        while len(mcpd.processes) < count:
            mcpd.spawned.clear()
            await mcpd.spawned.wait()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{process_of(pid)}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _holds_pidfd(pid: int) -> bool:
    return any("pidfd" in str(fd.readlink()) for fd in Path(f"/proc/{process_of(pid)}/fd").iterdir())
