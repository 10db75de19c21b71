# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scripts that take all they can get, on a real machine: they are stopped, it is told, and others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.script_parts import HELLO, ScriptRig, eventually, marked, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOSTILE = """\
import os, subprocess, sys, time

MARK = "{mark}"


def fine() -> str:
    return "fine"


def loop() -> str:
    while True: pass


def hang() -> str:
    subprocess.run(["sleep", MARK])


def fork() -> str:
    for _ in range(300):
        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", MARK])
    time.sleep(60)


def daemon() -> str:
    subprocess.Popen(["sleep", MARK], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return "left one behind"


def flood() -> str:
    for _ in range(1024):
        sys.stdout.write("x" * (1 << 20) + "\\n")
    return "printed"


def gigabyte() -> str:
    return "x" * (1 << 30)


def hog() -> str:
    held = []
    for _ in range(64):
        held.append(b"x" * (1 << 27))
    return "held"


def die() -> str:
    os.kill(os.getpid(), 9)


def kill() -> str:
    ended = 0
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid != os.getpid():
            try:
                os.kill(pid, 9)
                ended += 1
            except OSError:
                pass
    return str(ended)


def leave() -> str:
    os._exit(0)
"""
NUMBER = "8640{}.25"
LIMITS = {"callTimeout": 4, "processes": 40, "memory": 256 << 20, "output": 1 << 20}
ENDINGS = {
    "loop": "The call ran for more than 4 s and was stopped.",
    "hang": "The call ran for more than 4 s and was stopped.",
    "fork": "The call started more than 40 processes and was stopped.",
    "gigabyte": "The call used more than 256 MiB of memory.",
    "hog": "The call used more than 256 MiB of memory.",
    "flood": "The call wrote more than 1048576 bytes and was stopped.",
    "die": "The call was killed by signal SIGKILL.",
    "leave": "The call ended with status 0 and without a result; see 'mcpctl logs hostile'.",
}


@pytest.fixture
def rig(machine: ScriptRig) -> Iterator[ScriptRig]:
    """The machine, whose scripts and entries end with the test."""
    yield machine
    machine.forget()


def starts(rig: ScriptRig) -> int:
    """How often mcpd started the hostile server."""
    return rig.log("mcpd").read_text().count(": hostile started")


@pytest.fixture
def hostile(rig: ScriptRig, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Calls a function of a hostile script; afterwards nothing of it runs, and it and others answer as ever."""
    workers, mark = request.param, NUMBER.format(request.param)
    rig.put("hostile.py", HOSTILE.format(mark=mark))
    rig.put("other.py", HELLO)
    rig.enter(hostile={"runtime": {**LIMITS, "workers": workers}})
    before = starts(rig)
    other, client = rig.client("other"), rig.client("hostile")
    assert text_of(client.call("fine")) == "fine"

    def call(function: str) -> Any:
        result = client.call(function)
        assert text_of(other.call("greet", name="you")) == "Hello you!"
        assert text_of(client.call("fine")) == "fine"
        eventually(lambda: marked(mark) == [], "nothing of it runs any more")
        return result

    yield call
    # The server is the one it was, too.
    assert starts(rig) == before + 1
    assert sum(path.stat().st_size for path in rig.home.rglob("*.log")) < 1 << 20


on_both = pytest.mark.parametrize("hostile", [0, 2], indirect=True)


@on_both
@pytest.mark.parametrize("function", sorted(ENDINGS))
def test_T12_5_T13_2_T5_5_what_a_call_does_to_excess_is_stopped_and_told(
    hostile: Callable[[str], Any], function: str
) -> None:
    found = hostile(function)
    assert (found["isError"], text_of(found)) == (True, ENDINGS[function])


@on_both
def test_what_a_call_leaves_running_is_ended_with_it(hostile: Callable[[str], Any]) -> None:
    assert text_of(hostile("daemon")) == "left one behind"


def test_a_call_that_kills_all_it_can_see_ends_itself_at_most(rig: ScriptRig) -> None:
    rig.put("killer.py", HOSTILE.format(mark="0"))
    rig.put("other.py", HELLO)
    client, other = rig.client("killer"), rig.client("other")
    pid = rig.programs["mcpd"].pid
    client.post("tools/call", name="kill", arguments={})
    assert text_of(other.call("greet", name="you")) == "Hello you!"
    eventually(lambda: "fine" in client.post("tools/call", name="fine", arguments={}).text, "it is served again")
    assert rig.programs["mcpd"].poll() is None
    assert rig.programs["mcpd"].pid == pid


def test_T13_2_a_shell_script_that_prints_without_end_is_stopped(rig: ScriptRig) -> None:
    mark = "86407.25"
    rig.put("flood.sh", f"#!/bin/sh\nsleep {mark} &\nexec yes\n")
    rig.enter(flood={"runtime": LIMITS})
    client = rig.client("flood")
    found = client.call("flood")
    assert found["isError"] is True
    assert f"more than {1 << 20} bytes" in text_of(found)
    eventually(lambda: marked(mark) == [], "nothing of it runs any more")


def test_T12_5_a_call_that_its_client_cancels_is_ended(rig: ScriptRig) -> None:
    mark = "86408.25"
    rig.put("hanging.py", HOSTILE.format(mark=mark))
    client = rig.client("hanging")
    with rig.in_call("hanging", "hang", client=client):
        eventually(lambda: marked(mark), "it runs")
        told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert client.http.post(client.path, json=told, headers=client.headers).status_code == 202
        eventually(lambda: marked(mark) == [], "it is ended")
    assert text_of(client.call("fine")) == "fine"
