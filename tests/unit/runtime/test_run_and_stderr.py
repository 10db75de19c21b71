# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import LimitExceeded, SpawnFailed, TimedOut
from mcpd.runtime.exec import stderr
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.run import run
from mcpd.runtime.sandbox import build_spec
from tests.sandbox.world import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.runtime.launch import LaunchSpec

pytestmark = pytest.mark.process


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[object]:
    before = open_descriptors()

    def make(*argv: str) -> LaunchSpec:
        return build_spec("x", argv, tmp_path, [tmp_path], [], False, {})

    yield make
    assert open_descriptors() <= before
    assert Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text() == ""


async def test_run_collects_output_and_status(spec) -> None:  # type: ignore[no-untyped-def]
    lines: list[str] = []
    command = spec("sh", "-c", "echo one; echo two; echo oops >&2; printf three; exit 4")
    done = await run(PlainLauncher(), command, timeout=120, on_line=lines.append)
    assert (done.code, done.stdout, done.stderr_tail) == (4, b"one\ntwo\nthree", "oops\n")
    assert lines == ["one", "two", "three"]


async def test_a_command_has_an_empty_stdin(spec) -> None:  # type: ignore[no-untyped-def]
    assert (await run(PlainLauncher(), spec("cat"), timeout=120)).code == 0


async def test_run_ends_with_its_program_and_takes_along_what_that_leaves(spec) -> None:  # type: ignore[no-untyped-def]
    left = "import os, time; os.fork() or (os.setsid(), time.sleep(600)); print('done', flush=True)"
    done = await run(PlainLauncher(), spec("python3", "-c", left), timeout=120)
    assert (done.code, done.stdout) == (0, b"done\n")


async def test_run_ends_though_a_process_outside_has_its_output(spec, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    give = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('outside'); socket.send_fds(s, [b'.'], [1])"
        "; print('given', flush=True); s.recv(1)"
    )
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(str(tmp_path / "outside"))
        outside.listen()
        running = asyncio.create_task(run(PlainLauncher(), spec("python3", "-c", give), timeout=120))
        peer, _ = await asyncio.to_thread(outside.accept)
        with peer:
            _, fds, _, _ = socket.recv_fds(peer, 1, 1)
            peer.send(b".")
            done = await running
    os.close(fds[0])
    assert (done.code, done.stdout) == (0, b"given\n")


async def test_run_that_takes_too_long_is_stopped(spec) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TimedOut, match=r"build:x: sleep did not finish within 0.2 s"):
        await run(PlainLauncher(), spec("sleep", "600"), timeout=0.2)


async def test_run_that_says_too_much_is_stopped(spec) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LimitExceeded, match="100000 bytes"):
        await run(PlainLauncher(), spec("yes"), timeout=120, limit=100_000)


async def test_run_of_a_missing_command_names_it(spec) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SpawnFailed, match="absent"):
        await run(PlainLauncher(), spec("absent"), timeout=120)


async def test_cancelled_run_leaves_nothing(spec) -> None:  # type: ignore[no-untyped-def]
    began = asyncio.Event()
    command = spec("sh", "-c", "echo up; sleep 600")
    running = asyncio.create_task(run(PlainLauncher(), command, timeout=600, on_line=lambda _: began.set()))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = tmp_path / "journal"
    monkeypatch.setattr(stderr, "JOURNAL", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.setblocking(False)
        yield sock


def test_journal_gets_each_line_with_the_servers_id(journal: socket.socket) -> None:
    given = stderr.Stderr("my.server")
    os.write(given.writer, b"first\nMESSAGE=second \xff\n\nend")
    os.close(given.writer)
    assert given.tail() == "first\nMESSAGE=second \ufffd\n\nend"
    head = b"PRIORITY=6\nSYSLOG_IDENTIFIER=mcp-server\nMCP_SERVER_ID=my.server\nMESSAGE="
    entries = [journal.recv(65536) for _ in range(3)]
    assert entries == [head + b"first\n", head + b"MESSAGE=second \xff\n", head + b"end\n"]
    given.close()


def test_journal_is_spared_a_flood(journal: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    given = stderr.Stderr("s")
    received: list[bytes] = []
    for start in range(0, 3000, 5):
        os.write(given.writer, b"".join(b"line %d\n" % n for n in range(start, start + 5)))
        assert given.pump()
        received += _drain(journal)
    assert len(received) == 1000
    now[0] += 1
    os.write(given.writer, b"after\n")
    given.pump()
    told, after = _drain(journal)
    assert b"2000 lines of stderr were dropped" in told
    assert after.endswith(b"MESSAGE=after\n")
    os.close(given.writer)
    given.close()


def test_journal_is_spared_long_lines_too(journal: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    given = stderr.Stderr("s")
    received: list[bytes] = []
    for _ in range(100):
        os.write(given.writer, b"x" * 16_000 + b"\n")
        assert given.pump()
        received += _drain(journal)
    assert len(received) == 1024 * 1024 // 16_000
    now[0] += 1
    os.write(given.writer, b"after\n")
    given.pump()
    assert b"35 lines of stderr were dropped" in _drain(journal)[0]
    os.close(given.writer)
    given.close()


def test_endless_line_is_cut(journal: socket.socket) -> None:
    given = stderr.Stderr("s")
    os.write(given.writer, b"x" * 40_000)
    os.close(given.writer)
    assert len(given.tail()) == 40_000
    assert [len(entry.partition(b"MESSAGE=")[2]) for entry in _drain(journal)] == [16385, 16385, 7233]
    given.close()


def _drain(sock: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(sock.recv(1 << 20))
        except BlockingIOError:
            return found


def test_without_a_journal_lines_go_to_our_own_stderr(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stderr, "JOURNAL", str(tmp_path / "none"))
    taken = stderr.Stderr("x")
    os.write(taken.writer, b"one\ntw")
    os.close(taken.writer)
    assert taken.tail() == "one\ntw"
    taken.close()
    assert capfd.readouterr().err == "x: one\nx: tw\n"


def test_a_stderr_that_nobody_reads_holds_no_server_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stderr, "JOURNAL", str(tmp_path / "none"))
    kept = os.dup(2)
    read, write = os.pipe()
    taken = stderr.Stderr("x")
    try:
        os.dup2(write, 2)
        for _ in range(40):
            os.write(taken.writer, b"y" * 4000 + b"\n")
            assert taken.pump()
    finally:
        os.dup2(kept, 2)
        for fd in (kept, read, write, taken.writer):
            os.close(fd)
    assert taken.tail().count("\n") >= 16
    taken.close()
