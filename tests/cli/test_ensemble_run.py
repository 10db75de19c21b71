# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl ensemble run and resume: what is sent to the server, and what is made of what it says."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.servers.ensembles.schemas import Execution
from tests.cli.ensemble_files import INSTANCE, REVIEW, SCRIPTS, artifact, ensemble
from tests.cli.test_cli_client_runtime import WITHOUT

if TYPE_CHECKING:
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

REPOSITORY = Path(__file__).parents[2]
RUN = "review/20260131-120000-000"
SERVER = r"""
import json, sys

def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def told(method, **params):
    say({"method": f"notifications/{method}", "params": params})

log = open(sys.argv[1], "a")
level = None
for line in sys.stdin:
    log.write(line)
    log.flush()
    m = json.loads(line)
    method, number, params = m.get("method"), m.get("id"), m.get("params", {})
    if method == "initialize":
        say({"id": number, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}})
    elif method == "logging/setLevel":
        level = params["level"]
        say({"id": number, "result": {}})
    elif method == "tools/call":
        given = params["arguments"]
        text = given.get("input", "")
        token = params.get("_meta", {}).get("progressToken")
        if token is not None:
            told("progress", progressToken=token, progress=1, total=2, message="reader: success\x1b[31m (0.1 s)")
        if level:
            told("message", level="info", logger="review",
                 data={"event": "agent_completed", "agent": "reader", "status": "success", "response": "half\x1b[2J"})
        if text == "hang":
            continue
        result = {"ensemble": "review", "status": "completed", "artifact_id": "review/20260131-120000-000",
                  "artifact": "llm-orc://artifact/x", "deliverable": f"did {text}\x1b[0m\n",
                  "results": {"reader": {"status": "success", "response": "r", "seconds": 2.3}},
                  "seconds": 2.32, "tokens": 12, "cost_usd": 0.0015}
        if text == "partly":
            result["status"] = "completed_with_errors"
            result["results"]["checker"] = {"status": "failed", "seconds": 0.1, "error": "no\x1b[31m such script"}
        if text == "failed":
            result |= {"status": "failed", "error": "too dear", "fault": {"error": "LimitExceeded"}}
            del result["deliverable"]
        if given.get("artifact_id", "")[-1:] in {"6", "7"}:
            result["results"]["reader"]["reused"] = True
        if given.get("artifact_id", "").endswith("6"):
            result["results"]["checker"] = {"status": "success", "seconds": 0.1, "response": "c"}
        if text == "long":
            result |= {"cut": True, "not_kept": "the disk is\x1b[31m full",
                       "plexus": {"sent": False, "error": "it has\x1b[31m not answered"}}
        if text == "refused" or given.get("artifact_id") == "review/20260131-120000-009":
            data = {"error": "NotFound"}
            say({"id": number, "error": {"code": -32602, "message": "there is no such thing", "data": data}})
        elif given.get("artifact_id") == "review/20260131-120000-008":
            data = {"error": "InvalidConfig"}
            say({"id": number, "error": {"code": -32602, "message": "it is wrong", "data": data}})
        elif text == "odd":
            say({"id": number, "result": {"content": [{"type": "text", "text": "it is \x1b[2Jodd"}], "isError": True}})
        else:
            content = [{"type": "text", "text": json.dumps(result)}]
            say({"id": number, "result": {"content": content, "structuredContent": result,
                                          "isError": result["status"] == "failed"}})
log.write("end of input\n")
"""


class Asked:
    """What the server was asked."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def lines(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    @property
    def call(self) -> dict[str, Any]:
        """The parameters of the tool call."""
        called = [json.loads(line) for line in self.lines if '"tools/call"' in line]
        assert len(called) == 1
        params: dict[str, Any] = called[0]["params"]
        return params

    async def holds(self, text: str) -> None:
        """Wait until it was sent *text*."""
        async with asyncio.timeout(120):
            while not any(text in line for line in self.lines):
                await asyncio.sleep(0.01)


@pytest.fixture
def asked(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> Asked:
    """The server llm-orc on the test's mcpd, and an ensemble of the user's own."""
    log = tmp_path / "asked"
    mcpd.servers["llm-orc"] = mcpd.servers["calculator"] | {"id": "llm-orc"}
    mcpd.program = [sys.executable, "-c", SERVER, str(log)]
    ensemble(Path(mcpctl.environ["HOME"]) / ".config/llm-orc", REVIEW)
    return Asked(log)


async def test_a_run_prints_what_it_delivers_and_nothing_else(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "run", "review", "this")
    assert (ended.code, ended.out) == (0, "did this\x1b[0m\n")
    assert ended.err == (
        f"review: reader: success\ufffd[31m (0.1 s)\nreview: completed in 2.3 s, 1 agent, 12 tokens, $0.0015, {RUN}\n"
    )
    assert asked.call["name"] == "invoke"
    assert asked.call["arguments"] == {
        "ensemble_name": "user/review", "input": "this", "output_format": "json", "streaming": True
    }  # fmt: skip
    assert "progressToken" in asked.call["_meta"]


@pytest.mark.parametrize(
    ("argv", "stdin", "given"),
    [
        ([], b"from a pipe\n", "from a pipe\n"),
        (["-"], b"from a pipe", "from a pipe"),
        (["--input-file", "-"], b"from a pipe", "from a pipe"),
        (["-q", "late"], b"ignored", "late"),
        (["--", "-1"], b"", "-1"),
        (["--input-file", "/etc/hostname"], b"", None),
    ],
)
async def test_the_input_comes_from_where_it_is_said(
    mcpctl: Mcpctl, asked: Asked, argv: list[str], stdin: bytes, given: str | None
) -> None:
    ended = await mcpctl("ensemble", "run", "review", *argv, stdin=stdin)
    assert ended.code == 0, ended.err
    assert asked.call["arguments"]["input"] == (Path("/etc/hostname").read_text() if given is None else given)


@pytest.mark.parametrize(
    ("argv", "stdin", "said"),
    [
        ([], b"", "needs input"),
        ([], b" \n", "needs input"),
        ([], b"x" * (1024 * 1024 + 1), "standard input is larger than 1048576 bytes"),
        ([], b"\xff", "standard input is not UTF-8 text"),
        (["a", "--input-file", "b"], b"", "not allowed with"),
    ],
    ids=["nothing", "blank", "long", "binary", "both"],
)
async def test_no_run_begins_with_a_wrong_input(
    mcpctl: Mcpctl, asked: Asked, argv: list[str], stdin: bytes, said: str
) -> None:
    ended = await mcpctl("ensemble", "run", "review", *argv, stdin=stdin)
    assert (ended.code, ended.out, said in ended.err) == (2, "", True), ended
    assert asked.lines == []


async def test_an_ensemble_that_needs_no_input_gets_none(mcpctl: Mcpctl, asked: Asked) -> None:
    base = Path(mcpctl.environ["HOME"]) / ".config/llm-orc"
    ensemble(base, SCRIPTS.format(name="alone"), "alone")
    assert (await mcpctl("ensemble", "run", "alone")).code == 0
    assert asked.call["arguments"]["input"] == ""


async def test_quiet_asks_for_no_progress(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "run", "review", "this", "--quiet")
    assert (ended.code, ended.err) == (0, "")
    assert asked.call["arguments"]["streaming"] is False
    assert "_meta" not in asked.call


async def test_verbose_shows_responses_as_they_come(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "run", "review", "-v", "this")
    assert "--- reader\nhalf\ufffd[2J\n" in ended.err
    assert '"logging/setLevel"' in asked.lines[2]


async def test_json_is_the_whole_result(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "run", "review", "this", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["artifact_id"], found["results"]["reader"]["response"]) == (0, RUN, "r")


@pytest.mark.parametrize("text", ["this", "partly", "failed", "long"])
async def test_the_server_of_these_tests_says_what_the_real_one_does(mcpctl: Mcpctl, asked: Asked, text: str) -> None:
    ended = await mcpctl("ensemble", "run", "review", text, "--json")
    assert Execution.model_validate_json(ended.out).ensemble == "review"


async def test_what_is_not_there_of_a_result_is_said_also_to_the_quiet(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "run", "review", "long", "-q")
    assert ended.code == 0
    assert ended.err == (
        f"warning: responses are truncated here; see execution.json of {RUN} for all of them\n"
        "warning: the run was only partly stored: the disk is\ufffd[31m full\n"
        "warning: the run was not reported to Plexus: it has\ufffd[31m not answered\n"
    )


async def test_what_failed_is_an_exit_status(mcpctl: Mcpctl, asked: Asked) -> None:
    partly = await mcpctl("ensemble", "run", "review", "partly", "-q")
    assert (partly.code, partly.out) == (1, "did partly\x1b[0m\n")
    assert partly.err == "error: checker: no\ufffd[31m such script\n"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("failed", 1, "error: too dear\nreview: failed in 2.3 s"),
        ("refused", 4, "there is no such thing"),
        ("odd", 1, "mcpctl: llm-orc: it is \ufffd[2Jodd\n"),
    ],
)
async def test_what_could_not_be_run_is_said(mcpctl: Mcpctl, asked: Asked, text: str, code: int, said: str) -> None:
    ended = await mcpctl("ensemble", "run", "review", text)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err


async def test_an_interrupted_run_is_cancelled_and_can_be_recorded(mcpctl: Mcpctl, asked: Asked) -> None:
    process = await mcpctl.start("ensemble", "run", "review", "hang")
    await asked.holds('"tools/call"')
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130
    assert b"cancelling\nThe partial run is kept; 'mcpctl ensemble runs review' shows it.\n" in err
    cancelled, end = asked.lines[-2:]
    number = next(json.loads(line)["id"] for line in asked.lines if '"tools/call"' in line)
    assert json.loads(cancelled)["params"]["requestId"] == number
    assert end == "end of input"


async def test_a_run_that_takes_too_long_is_cancelled(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "run", "review", "hang", "--timeout", "3")
    assert (ended.code, "review was cancelled after 3 s; --timeout allows more" in ended.err) == (1, True)
    assert "notifications/cancelled" in asked.lines[-2]


async def test_the_time_of_a_run_begins_when_the_server_is_there(
    mcpctl: Mcpctl, mcpd: FakeMcpd, asked: Asked, tmp_path: Path
) -> None:
    late = "import time; time.sleep(3)\n" + SERVER
    mcpd.program = [sys.executable, "-c", late, str(asked.file)]
    ended = await mcpctl("ensemble", "run", "review", "this", "--timeout", "0.01")
    assert (ended.code, "llm-orc did not start within 0.01 s; --timeout allows more" in ended.err) == (1, True)
    assert not any("tools/call" in line for line in asked.lines)


async def test_only_configured_projects_are_run(mcpctl: Mcpctl, asked: Asked) -> None:
    work = Path(mcpctl.environ["HOME"]) / "it's work"
    ensemble(work / ".llm-orc", REVIEW)
    ended = await mcpctl("ensemble", "run", "review", "this", "--project", str(work))
    assert (ended.code, ended.out) == (1, "")
    command = ended.err.partition(f": mcpctl {INSTANCE}")[2]
    assert command == """config set llm-orc 'projects=["~/it'"'"'s work"]'\n"""
    run = artifact(work / ".llm-orc/artifacts", "20260131-120000-000")
    ended = await mcpctl("ensemble", "resume", run, "--project", str(work))
    assert (ended.code, f"the run {run} is in ~/it's work" in ended.err) == (1, True)
    ended = await mcpctl("ensemble", "resume", f"it's work/{run}", "--project", str(work))
    assert (ended.code, f"the run it's work/{run} is in ~/it's work" in ended.err) == (1, True)
    assert asked.lines == []


async def test_the_instance_that_may_not_use_a_project_is_named(mcpctl: Mcpctl, asked: Asked) -> None:
    work = Path(mcpctl.environ["HOME"]) / "work"
    ensemble(work / ".llm-orc", REVIEW)
    argv = ("--system", "ensemble", "run", "review", "this", "--project", str(work))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mcpd.cli.main", *argv,
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=mcpctl.environ,
    )  # fmt: skip
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert b"the system's llm-orc ('mcpctl --user ensemble' asks your own) may not use yet" in err
    assert err.endswith(b""": mcpctl --system config set llm-orc 'projects=["~/work"]'\n""")
    assert asked.lines == []


async def test_an_ensemble_that_cannot_be_run_has_a_way_out(mcpctl: Mcpctl, asked: Asked) -> None:
    ensemble(
        Path(mcpctl.environ["HOME"]) / ".config/llm-orc",
        REVIEW.replace("name: mock", "nmae: mock").replace("model:", "modle:"),
    )
    ended = await mcpctl("ensemble", "run", "review", "this")
    assert (ended.code, ended.out, asked.lines) == (1, "", [])
    assert ended.err.endswith("; to list all errors: mcpctl ensemble validate review\n")
    ended = await mcpctl("ensemble", "resume", "review/20260131-120000-008")
    assert (ended.code, ended.err.endswith("; to list all errors: mcpctl ensemble validate review\n")) == (1, True)


async def test_what_has_not_run_again_is_said(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "resume", "review/20260131-120000-007")
    assert "Nothing left to do: all responses were reused from the earlier run.\n" in ended.err
    assert "review: completed in 2.3 s, 1 agent (1 reused), " in ended.err
    ended = await mcpctl("ensemble", "resume", "review/20260131-120000-006")
    assert "\nreused: reader\nreview: completed in 2.3 s, 2 agents (1 reused), " in ended.err


async def test_a_run_is_continued(mcpctl: Mcpctl, asked: Asked) -> None:
    ended = await mcpctl("ensemble", "resume", RUN)
    assert (ended.code, ended.out) == (0, "did \x1b[0m\n")
    assert (asked.call["name"], asked.call["arguments"]["artifact_id"]) == ("resume_execution", RUN)
    assert (await mcpctl("ensemble", "resume", "review/20260131-120000-009")).code == 4
    wrong_ids = (
        "review",
        "../x/20260131-120000-000",
        "review/../../etc",
        f"{RUN}-1",
        f"a/../{RUN}",
        f"/{RUN}",
        RUN[6:],
    )
    for wrong in wrong_ids:
        assert (await mcpctl("ensemble", "resume", wrong)).code == 2


@pytest.mark.parametrize("run", ["review/latest", f"user/{RUN}", f"my project/{RUN}", "src/wörk/review/latest"])
async def test_every_form_of_an_id_is_passed_on(mcpctl: Mcpctl, asked: Asked, run: str) -> None:
    assert (await mcpctl("ensemble", "resume", run)).code == 0
    assert asked.call["arguments"]["artifact_id"] == run


async def test_without_the_server_it_is_said_where_it_comes_from(mcpctl: Mcpctl, mcpd: FakeMcpd, asked: Asked) -> None:
    del mcpd.servers["llm-orc"]
    ended = await mcpctl("ensemble", "run", "review", "this")
    assert (ended.code, "comes with the package mcpd-servers" in ended.err) == (4, True)
    assert (await mcpctl("ensemble", "run", "nope", "this")).code == 4


async def test_what_reads_ensembles_may_be_another_environment(mcpctl: Mcpctl, asked: Asked, tmp_path: Path) -> None:
    python, program = tmp_path / "python", tmp_path / "mcpctl.py"
    python.write_text(f'#!/bin/sh\nshift; exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    program.write_text(WITHOUT.format(repository=str(REPOSITORY), missing=("ruamel",), system=True, python=str(python)))
    for name, code, out in (("review", 0, b"did this\x1b[0m\n"), ("nope", 4, b"")):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(program), "--user", "ensemble", "run", name, "this",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=mcpctl.environ | {"PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        said, err = await process.communicate()
        assert (process.returncode, said) == (code, out), err
    assert b'there is no ensemble "nope"' in err


async def test_a_terminal_shows_a_bar_and_no_control_characters(mcpctl: Mcpctl, asked: Asked) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mcpd.cli.main", "--user", "ensemble", "run", "review", "this",
        stdin=theirs, stdout=theirs, stderr=theirs, env=mcpctl.environ | {"TERM": "xterm", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(theirs)
    seen = await asyncio.to_thread(_all_of, ours)
    os.close(ours)
    assert await process.wait() == 0
    assert "review: reader: success\ufffd[31m" in seen
    assert "50%" in seen
    assert "did this\ufffd[0m" in seen


def _all_of(descriptor: int) -> str:
    seen = b""
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:
            piece = b""
        if not piece:
            return seen.decode()
        seen += piece
