# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of the audit trail by themselves."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import resource
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from mcpd.bridge import jsonrpc
from mcpd.bridge.callers import Caller
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.observe import audit
from mcpd.bridge.observe.audit import Audit, Journal, Lines, digest, output_for
from mcpd.bridge.observe.metrics import Metrics
from mcpd.bridge.observe.observer import Observer, is_tool_error
from mcpd.bridge.observe.watch import Outcome
from mcpd.bridge.upstream.call import Answer, Call
from mcpd.errors import InvalidArgument, McpdError
from tests.bridge.bridge_harness import records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcpd.bridge.observe.audit import Record

USER = Caller(7)
ARGUMENTS = jsonrpc.Raw(b'{"path":"/etc/hosts"}')


# ---------------------------------------------------------------------------------------- the parts


class Kept:
    """An output that can be held up."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.lost = 0
        self.may_write = threading.Event()
        self.may_write.set()
        self.error: OSError | None = None
        self.closed = False

    def entry(self, record: Record) -> bytes:
        return pickle.dumps((*record[:6], digest(record[6]), *record[7:]))

    def write(self, entries: Sequence[bytes], lost: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        assert self.may_write.wait(20)
        if self.error is not None:
            raise self.error
        self.records += [pickle.loads(entry) for entry in entries]
        self.lost += lost
        return 0

    def reopen(self) -> None:
        """Nothing."""

    def close(self) -> None:
        self.closed = True


def record(tool: str = "t", arguments: jsonrpc.Raw = ARGUMENTS) -> Record:
    return (time.monotonic(), Caller(7), "s", tool, "result", 0.25, arguments, 10, "r-1", b"1")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for all records even on a busy machine."""
    monkeypatch.setattr(audit, "FLUSH_TIMEOUT", 120)


async def test_a_slow_output_holds_nobody_up_and_what_is_too_much_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_WAITING", 100)
    kept = Kept()
    kept.may_write.clear()
    trail = Audit(kept)
    trail.take(record("first"), 0)
    trail._flush()
    for number in range(150):
        trail.take(record(str(number)), 0)
    assert trail.lost == 50
    kept.may_write.set()
    await trail.close()
    assert [each[3] for each in kept.records] == ["first", *map(str, range(100))]
    assert kept.lost == 50


async def test_records_that_come_while_others_are_written_are_written_next() -> None:
    kept = Kept()
    trail = Audit(kept)
    for number in range(10_000):
        trail.take(record(str(number)), 5000 if number % 7 == 0 else 100)
        if number == 3000:
            trail._flush()
        if number % 1000 == 0:
            await asyncio.sleep(0)
    await trail.close()
    assert [each[3] for each in kept.records] == list(map(str, range(10_000)))
    assert kept.lost == 0


async def test_many_large_arguments_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_HELD", 100_000)
    kept = Kept()
    kept.may_write.clear()
    trail = Audit(kept)
    trail.take(record(), 0)
    trail._flush()
    large = jsonrpc.Raw(b'"' + b"x" * 40_000 + b'"')
    for _ in range(10):
        trail.take(record(arguments=large), 40_002)
    assert sum(isinstance(each[6], jsonrpc.Raw) for each in trail._waiting) == 2
    kept.may_write.set()
    await trail.close()
    assert {each[6] for each in kept.records[1:]} == {(sha256(large).hexdigest(), 40_002)}


async def test_an_output_that_fails_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    kept.error = OSError("no space left")
    trail = Audit(kept)
    for expected in (1, 2):
        trail.take(record(), 0)
        trail._flush()
        await until(partial(lambda count: trail.lost == count, expected))
    assert caplog.text.count("no space left") == 1
    kept.error = None
    trail.take(record(), 0)
    await trail.close()
    assert (len(kept.records), kept.lost) == (1, 2)
    await until(lambda: kept.closed)


def test_lines_go_on_in_a_new_file_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    output = Lines(str(path))
    output.write([output.entry(record("old"))], 0)
    path.rename(tmp_path / "calls.1")
    output.reopen()
    output.write([output.entry(record("new"))], 3)
    output.close()
    assert [each["tool"] for each in records(tmp_path / "calls.1")] == ["old"]
    assert [each.get("tool", each.get("lost")) for each in records(path)] == [3, "new"]


def test_a_pipe_that_nobody_reads_costs_records_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mcpd.bridge.observe.audit.PATIENCE", 0.05)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    output = Lines(str(fifo))
    lost = output.write([output.entry(record(str(number))) for number in range(2000)], 0)
    assert 0 < lost < 2000
    data = b""
    with suppress(BlockingIOError):
        while True:
            data += os.read(reader, 65536)
    assert len([json.loads(line) for line in data.splitlines()]) == 2000 - lost
    os.close(reader)
    output.close()


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    output = Lines(str(path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        for _ in range(2):
            with pytest.raises(OSError, match="large"):
                output.write([output.entry(record("first"))], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert output.write([output.entry(record("second"))], 1) == 0
    output.close()
    torn, lost, second = path.read_text().splitlines()
    assert len(torn) == 100
    assert json.loads(lost)["lost"] == 1
    assert json.loads(second)["tool"] == "second"


async def test_a_caller_does_not_choose_what_the_trail_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_HELD", 10_000)
    kept = Kept()
    trail = Audit(kept)
    params = jsonrpc.Raw(b'{"name":"harmless","arguments":{"x":"%b"},"name":"danger"}' % (b"y" * 9000))
    for _ in range(3):
        made = list(record("harmless"))
        made[6] = audit.Unread(params)
        trail.take(tuple(made), len(memoryview(params)))  # type: ignore[arg-type]
    await trail.close()
    assert [each[3] for each in kept.records] == ["danger"] * 3


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(McpdError, match="link"):
        Lines(str(tmp_path / "link"))
    assert not (tmp_path / "elsewhere").exists()


def test_the_journal_gets_fields_that_nothing_can_forge(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        output = Journal("mcpd-bridge", str(tmp_path / "journal"))
        evil = "x\nPRIORITY=0\nCALLER_UID=0"
        output.write([output.entry(record()), output.entry(record(evil))], 2)
        output.close()
        gap, plain, forged = (journal.recv(65536) for _ in range(3))
    assert b"MCP_AUDIT_LOST=2\n" in gap
    fields = dict(line.split(b"=", 1) for line in plain.splitlines())
    assert fields[b"CALLER_UID"] == b"7"
    assert fields[b"MCP_CALL_SERVER"] == b"s"
    assert fields[b"MCP_CALL_TOOL"] == b"t"
    assert fields[b"MCP_CALL_OUTCOME"] == b"result"
    assert fields[b"MCP_CALL_DURATION_USEC"] == b"250000"
    assert abs(int(fields[b"MCP_CALL_ENDED_USEC"]) / 1e6 - time.time()) < 60
    assert fields[b"MCP_CALL_ARGUMENTS_SHA256"].decode() == sha256(ARGUMENTS).hexdigest()
    assert fields[b"MCP_REQUEST_ID"] == b"r-1"
    assert fields[b"SYSLOG_IDENTIFIER"] == b"mcpd-bridge"
    assert b"MCP_CALL_TOOL\n" + len(evil).to_bytes(8, "little") + evil.encode() + b"\n" in forged
    assert forged.count(b"\nPRIORITY=") == 2  # its own, and the one inside the field with a length
    assert b"MESSAGE=uid 7 called 'x\\nPRIORITY=0\\nCALLER_UID=0' of server s" in forged


def test_what_is_no_target_is_refused() -> None:
    assert output_for("off") is None
    with pytest.raises(InvalidArgument, match="relative/file"):
        output_for("relative/file")


# ---------------------------------------------------------------------------------------- the observer


def a_call(params: bytes | None, method: str = "tools/call", caller: Caller | None = USER) -> Call:
    sink = Exchange(takes_json=True, takes_events=True)
    sink.caller = caller
    raw = None if params is None else jsonrpc.Raw(params)
    return Call(sink, b"1", method, raw, b"", time.monotonic(), 30, None)


@pytest.mark.parametrize(
    ("params", "tool", "arguments"),
    [
        (b'{"arguments":{"a":1},"name":"n"}', "n", b'{"a":1}'),
        (b'{"name":"n"}', "n", b""),
        (b'{"name":"n","arguments":[1, 2]}', "n", b"[1, 2]"),
        (b'{"name":7,"arguments":{"a":1}}', "7", b'{"a":1}'),
        (b'{"name":"a","name":"b","arguments":1,"arguments":2}', "b", b"2"),
        # What cannot be read at all is recorded as a whole.
        (b'{"name":"\\ud83d","arguments":{}}', "", b'{"name":"\\ud83d","arguments":{}}'),
        (b"{}", "", b""),
        (None, "", b""),
    ],
)
async def test_odd_params_are_recorded_too(params: bytes | None, tool: str, arguments: bytes) -> None:
    kept = Kept()
    observer = Observer(Metrics(), kept)
    observer.ended("s", a_call(params), Outcome.RESULT, b'{"result":{}}')
    await observer.close()
    (found,) = kept.records
    assert found[3] == tool
    assert found[6] == (sha256(arguments).hexdigest() if arguments else "", len(arguments))


async def test_the_server_that_calls_is_named_and_the_bridge_is_not_recorded() -> None:
    kept = Kept()
    observer = Observer(Metrics(), kept)
    observer.ended("s", a_call(b'{"name":"n"}', caller=Caller(7, "caller")), Outcome.RESULT, b"{}")
    observer.ended("s", a_call(b'{"name":"n"}', caller=None), Outcome.RESULT, b"{}")
    observer.ended("s", Call(Answer(), b"1", "tools/call", None, b"", 0.0, 1, None), Outcome.RESULT, b"{}")
    await observer.close()
    assert [each[1] for each in kept.records] == [Caller(7, "caller")]


def test_only_a_result_itself_says_that_it_is_an_error() -> None:
    yes = (b'{"result":{"content":[],"isError":true}}', b'{"result":{"isError" : true,"content":[]},"id":1}',
           b'{"result":{"a":{"isError":false},"isError": true}}',
           b'{"result":{"content":"%b","isError":true},"id":1}' % (b"x" * 100_000))  # fmt: skip
    no = (b'{"result":{"content":[],"isError":false}}', b'{"result":{"content":"\\"isError\\":true"}}',
          b'{"result":{"structuredContent":{"isError":true}}}', b'{"result":{"isError":"true"}}',
          b'{"result":{"structuredContent":{"isError":true},"isError":false},"id":1}', b"{}",
          b'{"result":{"content":"%b"},"id":1}' % (b"x" * 100_000))  # fmt: skip
    assert [is_tool_error(response, len(response)) for response in (*yes, *no)] == [True] * len(yes) + [False] * len(no)
