# SPDX-License-Identifier: LGPL-2.1-or-later
"""Framing and messages by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.bridge import jsonrpc
from mcpd.bridge.callers import Caller
from mcpd.bridge.exchange import QUEUE_LIMIT, EventQueue, Exchange, event
from mcpd.bridge.handshake.serve import Handshake
from mcpd.bridge.http.post import Post
from mcpd.bridge.parts import Options, Parts
from mcpd.bridge.tasks import Tasks
from mcpd.bridge.upstream.commands import Command, CommandSource, from_file
from mcpd.bridge.upstream.pipes import LineReader, Pipe
from mcpd.bridge.upstream.source import Listed, ServerInfo
from mcpd.errors import InvalidConfig, InvalidRequest, McpdError, NotSupported, ParseError, SpawnFailed
from mcpd.runtime import bundled
from mcpd.settings import BridgeSettings
from tests.bridge.bridge_harness import descendants

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# ---------------------------------------------------------------------------------------- lines


def read(pieces: list[bytes], limit: int) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    lines: list[bytes] = []
    oversized: list[tuple[bytes, bytes]] = []
    reader = LineReader(
        lambda line: lines.append(line.removesuffix(b"\n")), lambda *ends: oversized.append(ends), limit
    )
    for piece in pieces:
        done = reader.feed(piece)
        while not done:
            done = reader.go_on()
    return lines, oversized


LINES = st.binary(max_size=30) | st.integers(200, 700).map(lambda size: bytes(range(65, 91)) * (size // 26))


@given(st.lists(LINES, max_size=12), st.integers(256, 400), st.lists(st.integers(0, 4000), max_size=20))
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], limit: int, cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    expected = [line for whole in lines for line in whole.split(b"\n") if line]
    marks = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in itertools.pairwise(marks)]
    found, oversized = read(pieces, limit)
    assert found == [line for line in expected if len(line) <= limit]
    assert [(line[:256], line[-256:]) for line in expected if len(line) > limit] == oversized


def test_a_line_of_64_mib_is_read_in_linear_time() -> None:
    copied = 0

    class Counted(bytes):
        def find(self, *args: Any) -> int:
            nonlocal copied
            copied += len(self)
            return super().find(*args)

    piece = Counted(b"x" * 65536)
    lines, oversized = read([*[piece] * 1024, b"\n"], 1 << 26)
    assert [len(line) for line in lines] == [1 << 26]
    assert not oversized
    assert copied == 1 << 26


async def test_a_pipe_writes_what_the_reader_takes_in_order() -> None:
    theirs_in, stdin = os.pipe()
    stdout, theirs_out = os.pipe()
    loop = asyncio.get_running_loop()
    closed = loop.create_future()
    drained = loop.create_future()
    reader = LineReader(lambda _line: None, lambda *_ends: None, 100)
    pipe = Pipe(stdin, stdout, reader, lambda: closed.set_result(None))
    sent = b"".join(b"%06d\n" % number for number in range(100_000))
    for start in range(0, len(sent), 7001):
        assert pipe.write(sent[start : start + 7001])
    assert pipe.backlog > 0
    pipe.when_drained(lambda: drained.set_result(None))

    def slowly() -> bytes:
        found = b""
        while len(found) < len(sent):
            found += os.read(theirs_in, 4096)
        return found

    assert await asyncio.to_thread(slowly) == sent
    await drained
    assert pipe.backlog == 0
    os.close(theirs_in)
    assert not pipe.write(b"nobody reads this")
    await closed
    os.close(theirs_out)


# ---------------------------------------------------------------------------------------- messages

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
plain_objects = st.dictionaries(st.text(), json_values, max_size=5)


@given(plain_objects, st.one_of(st.none(), plain_objects), st.booleans(), st.sampled_from([None, 0, 4]))
def test_a_token_changes_nothing_else(
    params: dict[str, Any], meta: dict[str, Any] | None, ascii_only: bool, indent: int | None
) -> None:
    try:
        original: dict[str, Any] = {**params, **({} if meta is None else {"_meta": meta})}
        body = json.dumps({"params": original}, ensure_ascii=ascii_only, indent=indent).encode()
        message = jsonrpc.parse_body(body)
    except (UnicodeEncodeError, ParseError):
        return
    assert isinstance(message, dict)
    token = jsonrpc.take_token(message, b"77", always=True)
    changed = json.loads(bytes(message["params"]))
    given = original.get("_meta")
    if given is None or isinstance(given, dict):
        assert changed.pop("_meta") == {**(given or {}), "progressToken": 77}
        asked = (given or {}).get("progressToken")
        assert (json.loads(token) if token else None) == asked
        assert changed == {key: value for key, value in original.items() if key != "_meta"}
    else:
        assert changed == original


@pytest.mark.parametrize(
    "params", [b'{"\\u005fmeta":{"progressToken":5}}', b'{"_met\\u0061":{"progress\\u0054oken":5}}']
)
def test_a_token_cannot_be_smuggled_in_by_escapes(params: bytes) -> None:
    message = {"params": jsonrpc.Raw(params)}
    assert jsonrpc.take_token(message, b"77", always=False) == b"5"
    assert json.loads(bytes(message["params"])) == {"_meta": {"progressToken": 77}}


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    for parse in (jsonrpc.parse_body, jsonrpc.parse_line):
        with contextlib.suppress(ParseError, InvalidRequest):
            parse(data)
    jsonrpc.id_of_broken(data)


@given(plain_objects)
def test_any_object_is_classified_or_refused(members: dict[str, Any]) -> None:
    with contextlib.suppress(McpdError):
        message = jsonrpc.parse_body(json.dumps({"jsonrpc": "2.0", **members}).encode())
        assert isinstance(message, dict)
        jsonrpc.classify(message)


def test_the_id_of_a_broken_response_is_found_at_either_end() -> None:
    assert jsonrpc.id_of_broken(b'{"jsonrpc":"2.0","id":12,"result":{"x":Na') == b"12"
    assert jsonrpc.id_of_broken(b'xx}}, "jsonrpc": "2.0", "id": 34 }\n') == b"34"
    assert jsonrpc.id_of_broken(b'{"result":{"id":5}') == b""


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    assert event(b'{"a":\r\n1}') == b'event: message\ndata: {"a":  1}\n\n'


# ---------------------------------------------------------------------------------------- queues and settings


async def test_a_full_queue_takes_no_more_and_its_end_is_seen() -> None:
    queue = EventQueue()
    message = b"x" * 65536
    taken = sum(queue.push(message) for _ in range(100))
    assert QUEUE_LIMIT // 65536 <= taken <= QUEUE_LIMIT // 65536 + 1
    assert len(queue.take()) > QUEUE_LIMIT
    assert queue.push(message)
    queue.end()
    assert not queue.push(message)
    queue.take()
    await queue.wait()
    assert queue.ended


def test_the_options_have_the_defaults_of_the_settings() -> None:
    settings_, options = BridgeSettings(), Options()
    for name in ("idle_timeout", "call_timeout", "max_body", "max_line", "max_sessions"):
        assert getattr(options, name) == getattr(settings_, name), name


def test_importing_the_bridge_does_not_import_the_sdk() -> None:
    import subprocess
    import sys

    code = (
        "import sys, mcpd.bridge.main, mcpd.bridge.http.server\n"
        "print([name for name in ('mcp', 'pydantic', 'dbus_next', 'starlette') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------------------------------- faults


class FaultySource:
    """Fails in a way that nobody foresaw."""

    async def describe(self, server: str) -> ServerInfo:
        return ServerInfo(server)

    async def start(self, server: str, caller: Caller, environment: Any) -> Any:
        raise RuntimeError(f"secret of {server}")

    def known(self, server: str) -> ServerInfo | None:
        return None

    def listen(self, listener: Callable[[], None]) -> None:
        pass

    async def authorize(self, server: str, caller: Caller) -> None:
        pass

    async def listing(self) -> list[Listed]:
        return []

    async def tools(self, server: str) -> list[jsonrpc.Raw]:
        return []

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_fault_of_the_bridge_is_answered_and_logged(method: str, caplog: pytest.LogCaptureFixture) -> None:
    handshake = Handshake(Parts(FaultySource(), Options(max_sessions=1), Tasks()))
    body = json.dumps({"jsonrpc": "2.0", "id": "i", "method": method, "params": {}}).encode()
    for _ in range(3):
        exchange = Exchange(takes_json=True, takes_events=True)
        replied = asyncio.Event()
        exchange.on_reply = lambda _exchange, heard=replied: heard.set()
        handshake.post(Post("s", Caller(1), "", "", {}), body, exchange)
        async with asyncio.timeout(120):
            await replied.wait()
        answer = json.loads(exchange.body)
        assert (exchange.status, answer["id"], answer["error"]["code"]) == (500, "i", -32603)
        assert "secret" not in answer["error"]["message"]
    assert "secret of s" in caplog.text
    assert len(handshake.sessions) == 0
    await handshake.sessions.close()


@pytest.mark.parametrize("missing", ["pipe2", "pidfd_open"])
async def test_without_descriptors_a_command_is_not_started_and_nothing_leaks(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    source = CommandSource({"s": Command(("/bin/cat",))})
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setattr(os, missing, full)
    with pytest.raises(SpawnFailed, match="starting '/bin/cat' for server s: Too many open files"):
        await source.start("s", Caller(1), {})
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert not descendants(os.getpid())


def test_servers_that_are_switched_off_in_a_file_are_left_out(tmp_path: Path) -> None:
    entries = {
        "on": {},
        "also": {"enabled": True, "disabled": False},
        "off": {"disabled": True},
        "out": {"enabled": False},
    }
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {name: {"command": "x", **more} for name, more in entries.items()}}))
    assert set(from_file(file)) == {"on", "also"}


async def test_what_cannot_be_reached_from_here_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bundled, "NEEDED", ("no_such_library_here",))
    monkeypatch.setattr(bundled, "PYTHON", tmp_path / "python")
    file = tmp_path / "servers.json"
    entries = {"far": {"url": "https://far.example/mcp"}, "near": {"command": "/bin/cat"}}
    file.write_text(json.dumps({"mcpServers": entries}))
    source = CommandSource(from_file(file))
    assert (
        f"{file}: mcpServers.far: far is a remote server, and mcpd-remote, which reaches it, is not installed"
        in caplog.text
    )
    assert [each.id for each in await source.listing()] == ["far", "near"]
    with pytest.raises(NotSupported, match="mcpd-remote, which reaches it, is not installed; install"):
        await source.start("far", Caller(1), {})
    await (await source.start("near", Caller(1), {})).stop()


def test_an_entry_without_a_way_to_a_server_says_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"s": {"args": []}}}))
    with pytest.raises(InvalidConfig, match=r'mcpServers\.s: there is neither a "command" nor a "url"'):
        from_file(file)
