# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the servers that use the SDK say to lines that hold no message they can read: every request is answered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.stdio_lines import MAX_LINE
from tests.servers.orchestration_harness import PROGRAM, Machine
from tests.servers.remote_harness import INITIALIZED, MODERN, PATIENCE, initialize, request
from tests.servers.scripts_harness import SCRIPT, command, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = ("mcp-orchestration", "mcp-scripts")
ERAS = ("legacy", "2026-07-28")
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602
HUGE = "1" * 4301
DEEP = "[" * 250 + "]" * 250
DEEPER = "[" * 100_000 + "]" * 100_000


@dataclass
class Process:
    """A running server and what it is asked, in bytes."""

    process: subprocess.Popen[bytes]
    log: Path
    era: str = ""
    fences: Iterator[int] = field(default_factory=count)

    def write(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it has ended:\n{self.log.read_text()}"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def greet(self, era: str) -> None:
        self.era = era
        if era == "legacy":
            self.write(dump(initialize()))
            assert "result" in self.read()
            self.write(dump(INITIALIZED))
        self.fence()

    def fence(self) -> None:
        """The next message is the answer to a request that is made now, so there is none before it."""
        identity = f"fence {next(self.fences)}"
        self.write(dump(request("prompts/list", identity, **({} if self.era == "legacy" else {"_meta": MODERN}))))
        found = self.read()
        assert found["id"] == identity
        assert "prompts" in found["result"]

    def end(self, last: bytes = b"") -> bytes:
        """What is still said after the *last* bytes, until the process has ended well and written its log."""
        said, _ = self.process.communicate(last, PATIENCE)
        assert self.process.returncode == 0
        return said

    def peak(self) -> int:
        """The most memory that it has had, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s*(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@contextmanager
def started(server: str, directory: Path) -> Iterator[Process]:
    log = directory / "log"
    if server == "mcp-scripts":
        words, environ = command("--manifest", manifest(directory, SCRIPT)), dict(os.environ)
    else:
        words, environ = [sys.executable, *PROGRAM], Machine(directory / "machine").environ
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environ, cwd=directory
        ) as process,
    ):
        try:
            yield Process(process, log)
        finally:
            process.kill()


def dump(message: object) -> bytes:
    return json.dumps(message).encode()


def asking(params: str, identity: str = "7", method: str = "tools/list") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{identity},"method":"{method}","params":{params}}}'.encode()


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with started(request.param, tmp_path_factory.mktemp("server")) as process:
        process.greet("legacy")
        yield process


# -------------------------------------------------------------------------------------------------- one by one

REFUSED: dict[str, tuple[bytes, object, int, str]] = {
    "half a surrogate pair in an argument": (
        asking(r'{"name":"x","arguments":{"client_id":"\ud800"}}'),
        7,
        INVALID_PARAMS,
        "params.arguments.client_id: half a surrogate pair",
    ),
    "one in a key": (asking(r'{"a":[{"\udfff":1}]}'), 7, INVALID_PARAMS, "half a surrogate pair"),
    "one in the method": (asking("{}", method=r"\ud800"), 7, INVALID_REQUEST, "method: half a surrogate pair"),
    "one in the id": (asking("{}", r'"\ud800"'), None, INVALID_REQUEST, "id: half a surrogate pair"),
    "an integer of 4301 digits": (asking(f'{{"a":[0,{HUGE}]}}'), 7, INVALID_PARAMS, "params.a.1: an integer of more"),
    "a negative one": (asking(f'{{"a":-{HUGE}}}'), 7, INVALID_PARAMS, "an integer of more than 4300 digits"),
    "one as id": (asking("{}", HUGE), None, INVALID_REQUEST, "id: an integer of more"),
    "nested": (asking(f'{{"a":{DEEP}}}', '"i"'), "i", INVALID_PARAMS, "params: nested deeper than 200 levels"),
    "nested more": (asking(f'{{"a":{DEEPER}}}', '"\\u0069"'), "i", INVALID_REQUEST, "nested deeper than 200 levels"),
    "nested before the id": (
        f'{{"method":"x","params":{{"id":1,"a":{DEEPER}}},"jsonrpc":"2.0", "id" : 7 }} '.encode(),
        7,
        INVALID_REQUEST,
        "nested deeper",
    ),
    "nested in an array": (DEEPER.encode(), None, INVALID_REQUEST, "nested deeper"),
    "nested without end": (b'{"id":7,"method":"x","params":' + b"[" * 100_000, None, PARSE_ERROR, "not closed"),
    "not UTF-8": (asking("{}").replace(b"tools", b"\xff"), 7, PARSE_ERROR, "not UTF-8 text (byte "),
    "bytes": (b"\x00\xff\xfe", None, PARSE_ERROR, "not UTF-8 text (byte 1)"),
    "no JSON": (b"hello", None, PARSE_ERROR, "Parse error: "),
    "half a message": (b'{"jsonrpc":"2.0","id":7,"method":"x"', None, PARSE_ERROR, "Parse error: "),
    "a byte order mark": (b"\xef\xbb\xbf" + asking("{}"), None, PARSE_ERROR, "Parse error: "),
    "a number": (b"5", None, INVALID_REQUEST, "a message has to be a JSON object"),
    "a string": (b'"x"', None, INVALID_REQUEST, "a message has to be a JSON object"),
    "null": (b"null", None, INVALID_REQUEST, "a message has to be a JSON object"),
    "an empty array": (b"[]", None, INVALID_REQUEST, "a message has to be a JSON object"),
    "an array": (b"[" + asking("{}") + b"]", 7, INVALID_REQUEST, "on a line of its own"),
    "a large array": (b"[" + b"{}," * 1000 + b"{}]", None, INVALID_REQUEST, "on a line of its own"),
    "an empty object": (b"{}", None, INVALID_REQUEST, 'jsonrpc has to be "2.0"'),
    "no version": (b'{"id":7,"method":"x"}', 7, INVALID_REQUEST, 'jsonrpc has to be "2.0"'),
    "no method": (b'{"jsonrpc":"2.0","id":7}', 7, INVALID_REQUEST, "method has to be a string"),
    "a method that is none": (b'{"jsonrpc":"2.0","method":1}', None, INVALID_REQUEST, "method has to be a string"),
    "params that are none": (asking("[]"), 7, INVALID_PARAMS, "params has to be an object"),
    "an id that is null": (asking("{}", "null"), None, INVALID_REQUEST, "the id has to be a string or an integer"),
    "a fraction as id": (asking("{}", "1.5"), None, INVALID_REQUEST, "the id has to be a string or an integer"),
    "a truth as id": (asking("{}", "true"), None, INVALID_REQUEST, "the id has to be a string or an integer"),
    "a request and an answer": (
        b'{"jsonrpc":"2.0","id":7,"method":"x","error":{"code":1,"message":"x"}}',
        7,
        INVALID_REQUEST,
        "either a request or an answer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_request_that_cannot_be_read_is_refused_with_its_id(server: Process, kind: str) -> None:
    line, identity, code, says = REFUSED[kind]
    server.write(line)
    found = server.read()
    assert (found["jsonrpc"], found["id"], found["error"]["code"]) == ("2.0", identity, code)
    assert says in found["error"]["message"]
    server.fence()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", SERVERS)
def test_lines_are_refused_before_and_after_the_greeting_of_both_eras(tmp_path: Path, name: str, era: str) -> None:
    lines = [line for line, *_ in REFUSED.values()]
    expected = [(identity, code) for _, identity, code, _ in REFUSED.values()]
    with started(name, tmp_path) as process:
        for greeted in (False, True):
            process.write(*lines)
            found = [process.read() for _ in lines]
            assert [(each["id"], each["error"]["code"]) for each in found] == expected
            if not greeted:
                process.greet(era)
        process.fence()
        assert process.end() == b""
        said = process.log.read_text()
        assert said.count(f"{name}: a message was refused: ") == 2 * len(lines)
        assert "Traceback" not in said


UNREAD: dict[str, bytes] = {
    "half a surrogate pair": rb'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"\ud800"}}',
    "nested": f'{{"jsonrpc":"2.0","method":"notifications/x","params":{{"a":{DEEPER}}}}}'.encode(),
    "nested before": f'{{"params":{{"a":{DEEPER}}},"method":"notifications/x"}}'.encode(),
    "not UTF-8": b'{"jsonrpc":"2.0","method":"notifications/\xff"}',
    "no version": b'{"method":"notifications/x"}',
    "params that are none": b'{"jsonrpc":"2.0","method":"notifications/x","params":[]}',
    "too large": b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"' + b"x" * MAX_LINE + b'"}}',
    "an answer": rb'{"jsonrpc":"2.0","id":1,"result":{"a":"\ud800"}}',
}


@pytest.mark.parametrize("name", SERVERS)
def test_notifications_that_cannot_be_read_are_lines_of_the_log(tmp_path: Path, name: str) -> None:
    with started(name, tmp_path) as process:
        process.greet("legacy")
        process.write(*UNREAD.values())
        process.fence()
        assert process.end() == b""
        assert process.log.read_text().count(f"{name}: a message was not read: ") == len(UNREAD)


def test_every_request_in_an_array_is_refused_and_nothing_else_in_it(server: Process) -> None:
    members = [request("tools/list", 1), {"jsonrpc": "2.0", "method": "notifications/x"}, 5, {"id": "b", "method": "x"}]
    server.write(dump(members))
    for identity in (1, None, "b"):
        found = server.read()
        assert (found["id"], found["error"]["code"]) == (identity, INVALID_REQUEST)
        assert "on a line of its own" in found["error"]["message"]
    server.fence()


def test_blank_lines_and_harmless_ones_get_no_answer(server: Process) -> None:
    nothing = b'{"jsonrpc":"2.0","id":null,"method":"notifications/initialized"}'
    server.write(b"", b"  \r", nothing, b'{"jsonrpc":"2.0","method":"x"}', b'{"jsonrpc":"2.0","id":1,"result":{}}')
    server.fence()


# ---------------------------------------------------------------------------------------------------- large ones


def test_a_line_of_the_limit_is_read_and_one_above_it_refused(server: Process) -> None:
    line = asking('{"a":""}', method="x")
    server.write(line.replace(b'""', b'"%s"' % (b"x" * (MAX_LINE - len(line)))))
    assert server.read()["error"]["code"] == -32601
    server.write(line.replace(b'""', b'"%s"' % (b"x" * (MAX_LINE - len(line) + 1))))
    found = server.read()
    assert (found["id"], found["error"]["code"]) == (7, INVALID_REQUEST)
    assert str(MAX_LINE) in found["error"]["message"]
    server.fence()


@pytest.mark.parametrize(
    ("before", "after", "identity"),
    [
        (b'{"id":7,"params":"', b'"}', 7),
        (b'{"method":"x","params":{"id":1,"a":"', b'"},"jsonrpc":"2.0","id":"a,\\"id\\":1}"}', 'a,"id":1}'),
        (b'{"method":"x","params":{"a":"', b'","id":1}}', None),
        (b"", b"x", None),
    ],
    ids=["first", "last", "of something else", "none"],
)
def test_of_a_line_that_is_too_large_the_id_is_found_at_either_end(
    server: Process, before: bytes, after: bytes, identity: object
) -> None:
    server.write(before + b"x" * MAX_LINE + after)
    found = server.read()
    assert (found["id"], found["error"]["code"]) == (identity, INVALID_REQUEST)
    server.fence()


def test_a_line_that_is_too_large_is_not_held(tmp_path: Path) -> None:
    with started("mcp-orchestration", tmp_path) as process:
        process.greet("legacy")
        before = process.peak()
        assert process.process.stdin is not None
        for _ in range(16):
            process.process.stdin.write(b"x" * MAX_LINE)
        process.write(b"")
        assert process.read()["error"]["code"] == INVALID_REQUEST
        process.fence()
        assert process.peak() - before < 3 * MAX_LINE


# ------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("name", SERVERS)
def test_what_comes_last_is_answered_before_the_end(tmp_path: Path, name: str) -> None:
    with started(name, tmp_path) as process:
        process.greet("legacy")
        lines = (b"no JSON", dump(request("tools/list", 1)), asking('{"a":"\\ud800"}', "2"))
        found = {message["id"]: message for message in map(json.loads, process.end(b"\n".join(lines)).splitlines())}
        assert found.keys() == {None, 1, 2}
        assert "tools" in found[1]["result"]


def test_no_process_that_is_started_later_reads_what_the_client_sends(tmp_path: Path) -> None:
    with started("mcp-orchestration", tmp_path) as process:
        process.greet("legacy")
        assert Path(f"/proc/{process.process.pid}/fd/0").readlink() == Path(os.devnull)


# ------------------------------------------------------------------------------------------------------ anything

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
IDS = st.integers() | TEXTS
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
HOLE = "a hole for what cannot be read"


def is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode())
    except ValueError:
        return False
    return True


@st.composite
def refused(draw: st.DrawFn) -> tuple[object, bytes]:
    """The id and line of a request whose parameters cannot be read, in whatever order its members come."""
    at: object = HOLE
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.sampled_from([[at], [draw(VALUES), at], {"a": at}, {"id": draw(VALUES), "b": at}]))
    identity = draw(IDS)
    members = {"jsonrpc": "2.0", "id": identity, "method": draw(TEXTS), "params": {"x": at, "id": draw(VALUES)}}
    text = json.dumps(dict(draw(st.permutations(list(members.items())))), ensure_ascii=draw(st.booleans()))
    what = draw(st.sampled_from([r'"\ud800"', r'"a\udc00\ud800"', r'{"\ude00":1}', HUGE, DEEP, DEEPER]))
    return identity, text.replace(json.dumps(HOLE), what).encode()


@given(lines=st.lists(st.binary(min_size=1).map(lambda line: line.replace(b"\n", b"")), max_size=8))
def test_whatever_is_no_json_is_a_parse_error_each(server: Process, lines: list[bytes]) -> None:
    garbage = [line for line in lines if not is_json(line)]
    server.write(*garbage)
    for line in garbage:
        if line and not line.isspace():
            found = server.read()
            assert (found["id"], found["error"]["code"]) == (None, PARSE_ERROR)
    server.fence()


@given(requests=st.lists(refused(), min_size=1, max_size=4))
def test_whatever_cannot_be_read_in_a_request_its_id_is_found(
    server: Process, requests: list[tuple[object, bytes]]
) -> None:
    server.write(*(line for _, line in requests))
    for identity, _ in requests:
        found = server.read()
        assert found["id"] == identity
        assert found["error"]["code"] in {INVALID_REQUEST, INVALID_PARAMS}
    server.fence()


@given(
    message=st.fixed_dictionaries(
        {"id": IDS | VALUES, "method": st.sampled_from(["tools/list", "tools/call", "x"]) | VALUES},
        optional={"jsonrpc": st.just("2.0") | VALUES, "params": VALUES, "more": VALUES},
    )
)
def test_whatever_has_an_id_and_a_method_has_one_answer(server: Process, message: dict[str, Any]) -> None:
    identity = message["id"]
    server.write(dump({"jsonrpc": "2.0", **message}))
    found = server.read()
    proper = isinstance(identity, str | int) and not isinstance(identity, bool)
    assert found["id"] == (identity if proper else None)
    assert ("result" in found) != ("error" in found)
    server.fence()
