# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd/journal.py against a real datagram socket that takes the journal's place."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest

from mcpd import journal
from mcpd.errors import InvalidArgument
from mcpd.runtime.exec import stderr as exec_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


class Journal:
    """journald's end of its socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listen()

    def listen(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(self.path))
        self.sock.settimeout(120)

    def restart(self) -> None:
        self.sock.close()
        self.path.unlink()
        self.listen()

    def receive(self) -> dict[str, bytes]:
        data, fds, flags, _ = socket.recv_fds(self.sock, 1 << 20, 4)
        assert not flags & socket.MSG_TRUNC
        if fds:
            assert data == b""
            (fd,) = fds
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == seals
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            os.close(fd)
        return parse(data)

    def drain(self) -> list[dict[str, bytes]]:
        found = []
        self.sock.settimeout(0)
        while True:
            try:
                found.append(self.receive())
            except BlockingIOError:
                self.sock.settimeout(120)
                return found


def parse(data: bytes) -> dict[str, bytes]:
    """The fields of an entry, read as journald reads them; a name that comes twice is a fault."""
    fields: dict[str, bytes] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, separator, value = line.partition(b"=")
        if not separator:
            (length,) = struct.unpack_from("<Q", rest)
            value, end, rest = rest[8 : 8 + length], rest[8 + length : 9 + length], rest[9 + length :]
            assert end == b"\n"
        assert name.decode() not in fields
        fields[name.decode()] = value
        data = rest
    return fields


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "socket")
    yield made
    made.sock.close()


@pytest.fixture
def log(listener: Journal) -> Iterator[logging.Logger]:
    handler = journal.JournalHandler("mcpd-test", str(listener.path))
    logger = logging.getLogger("mcpd.test")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    logger.propagate = True
    handler.close()


@pytest.fixture
def root_logging() -> Iterator[None]:
    """Put the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    for handler in handlers:
        root.removeHandler(handler)
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def test_a_record_is_one_entry_with_fields(listener: Journal, log: logging.Logger) -> None:
    log.warning("Job %d of %s failed", 7, "x", extra={"MESSAGE_ID": journal.JOB_FINISHED, "MCP_JOB_ID": 7})
    entry = listener.receive()
    line = entry.pop("CODE_LINE")
    assert line.isdigit()
    assert entry == {
        "MESSAGE": b"Job 7 of x failed",
        "PRIORITY": b"4",
        "SYSLOG_IDENTIFIER": b"mcpd-test",
        "LOGGER": b"mcpd.test",
        "CODE_FILE": __file__.encode(),
        "CODE_FUNC": b"test_a_record_is_one_entry_with_fields",
        "MESSAGE_ID": journal.JOB_FINISHED.encode(),
        "MCP_JOB_ID": b"7",
    }


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, b"2"), (logging.ERROR, b"3"), (30, b"4"), (25, b"5"), (logging.INFO, b"6"), (10, b"7")],
)
def test_levels_become_priorities(listener: Journal, log: logging.Logger, level: int, priority: bytes) -> None:
    log.log(level, "x")
    assert listener.receive()["PRIORITY"] == priority


def test_what_comes_from_outside_cannot_become_a_field(listener: Journal, log: logging.Logger) -> None:
    hostile = "x\nPRIORITY=0\n_UID=0\nMESSAGE\n\x01\0\0\0\0\0\0\0y\n"
    log.info("refused %s", hostile, extra={"MCP_SERVER_ID": hostile})
    entry = listener.receive()
    assert entry["MESSAGE"] == f"refused {hostile}".encode()
    assert entry["MCP_SERVER_ID"] == hostile.encode()
    assert entry["PRIORITY"] == b"6"
    assert "_UID" not in entry


@pytest.mark.parametrize("name", ["_UID", "mcp_id", "1X", "X" * 65, "A B", "A=B", "A\nB", "ÄÖ", ""])
def test_only_the_names_of_fields_become_fields(listener: Journal, log: logging.Logger, name: str) -> None:
    known = set(listener_entry(listener, log, {}))
    assert set(listener_entry(listener, log, {name: "x"})) == known


def listener_entry(listener: Journal, log: logging.Logger, extra: dict[str, object]) -> dict[str, bytes]:
    log.info("x", extra=extra)
    return listener.receive()


def test_own_fields_are_not_replaced_and_empty_ones_left_out(listener: Journal, log: logging.Logger) -> None:
    entry = listener_entry(listener, log, {"PRIORITY": 0, "MESSAGE": "y", "CALLER_UID": None, "RAW": b"\xff\0"})
    assert (entry["PRIORITY"], entry["MESSAGE"], entry["RAW"]) == (b"6", b"x", b"\xff\0")
    assert "CALLER_UID" not in entry


def test_text_that_is_no_unicode_is_logged(listener: Journal, log: logging.Logger) -> None:
    record = log.makeRecord(log.name, logging.INFO, "file.py", 1, "file %s", (os.fsdecode(b"\xff"),), None)
    # Not through the logger: the report of the test would have the text, and cannot be sent to another process then.
    log.handlers[0].handle(record)
    assert listener.receive()["MESSAGE"] == b"file \\udcff"


def test_an_exception_is_in_the_message_and_named(listener: Journal, log: logging.Logger) -> None:
    try:
        raise KeyError("thing")
    except LookupError:
        log.exception("Fault")
    entry = listener.receive()
    assert entry["EXCEPTION"] == b"KeyError"
    assert entry["MESSAGE"].startswith(b"Fault\nTraceback (most recent call last):\n")
    assert entry["MESSAGE"].endswith(b"KeyError: 'thing'")


def test_a_large_entry_goes_as_a_sealed_memfd(listener: Journal, log: logging.Logger) -> None:
    fds = len(list(Path("/proc/self/fd").iterdir()))
    text = "x" * (20 << 20)
    log.info("%s", text)
    assert listener.receive()["MESSAGE"] == text.encode()
    assert len(list(Path("/proc/self/fd").iterdir())) <= fds + 1


def test_a_journal_that_does_not_read_holds_nobody_up_and_is_told_of_the_loss(
    listener: Journal, log: logging.Logger
) -> None:
    for number in range(5000):
        log.info("message %d", number)
    kept = listener.drain()
    assert 0 < len(kept) < 5000
    log.info("afterwards")
    loss, after = listener.receive(), listener.receive()
    lost = 5000 - len(kept)
    assert loss["MESSAGE"] == f"{lost} log messages were lost because the journal was not reading".encode()
    assert loss["PRIORITY"] == b"4"
    assert after["MESSAGE"] == b"afterwards"
    log.info("once more")
    assert listener.receive()["MESSAGE"] == b"once more"


def test_a_journal_that_is_slow_for_a_moment_loses_nothing(
    listener: Journal, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SEND_TIMEOUT", 10)
    reading = threading.Event()
    entries: list[dict[str, bytes]] = []

    def read() -> None:
        while len(entries) < 2000:
            reading.set()
            entries.append(listener.receive())

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait()
    for number in range(2000):
        log.info("message %d", number)
    reader.join()
    assert [entry["MESSAGE"] for entry in entries] == [b"message %d" % number for number in range(2000)]


def test_a_journal_started_anew_is_found(listener: Journal, log: logging.Logger) -> None:
    assert listener_entry(listener, log, {})["MESSAGE"] == b"x"
    listener.restart()
    assert listener_entry(listener, log, {})["MESSAGE"] == b"x"


def test_without_a_journal_there_are_lines(
    listener: Journal, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    listener.sock.close()
    listener.path.unlink()
    log.error("one\n<0>two")
    assert capsys.readouterr().err == "ERROR mcpd.test: one\n<0>two\n"
    listener.listen()
    assert listener_entry(listener, log, {})["MESSAGE"] == b"x"


PROGRAM = """
import logging, os, socket, sys
from mcpd import journal
status = os.fstat(2)
if sys.argv[1] == "ours":
    os.environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
journal.SOCKET = sys.argv[2]
switch = journal.configure("info", identifier="x")
logging.getLogger("a").warning("one\\n<0>two")
logging.getLogger("a").debug("unseen")
print(switch.target, switch.level)
"""


def run(whose: str, address: Path | str, **environ: str) -> tuple[str, str]:
    """Standard output and error of a program that logs."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, whose, str(address)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_the_journal_is_used_where_standard_error_goes_there(listener: Journal) -> None:
    assert run("ours", listener.path) == ("journal info\n", "")
    assert listener.receive()["MESSAGE"] == b"one\n<0>two"


def test_a_variable_of_another_process_does_not_count(listener: Journal) -> None:
    assert run("others", listener.path, JOURNAL_STREAM="8:1") == ("console info\n", "WARNING a: one\n<0>two\n")
    assert listener.drain() == []


def test_each_line_for_the_journals_stream_has_its_priority(tmp_path: Path) -> None:
    assert run("ours", tmp_path / "none") == ("journal info\n", "<4>WARNING a: one\n<4><0>two\n")


@pytest.mark.usefixtures("root_logging")
def test_the_level_is_switched_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    switch = journal.configure("error", identifier="x")
    assert (switch.level, switch.target, switch.identifier) == ("err", "console", "x")
    log = logging.getLogger("mcpd.switched")
    log.warning("one")
    switch.level = "debug"
    log.debug("two")
    switch.level = "notice"
    log.info("three")
    log.log(journal.NOTICE, "four")
    assert capsys.readouterr().err == "DEBUG mcpd.switched: two\nNOTICE mcpd.switched: four\n"
    for wrong in ("loud", "", "7"):
        with pytest.raises(InvalidArgument, match=r"unknown log level .*; use one of emerg, alert"):
            switch.level = wrong
    assert switch.level == "notice"


@pytest.mark.usefixtures("root_logging")
def test_the_target_is_switched_while_it_runs(
    listener: Journal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal, "SOCKET", str(listener.path))
    switch = journal.configure("info", identifier="x")
    switch.target = "journal"
    logging.getLogger("a").info("one")
    switch.target = "console"
    logging.getLogger("a").info("two")
    assert [entry["MESSAGE"] for entry in listener.drain()] == [b"one"]
    assert capsys.readouterr().err == "INFO a: two\n"
    with pytest.raises(InvalidArgument, match="unknown log target 'kmsg'; use one of journal, console"):
        switch.target = "kmsg"
    assert switch.target == "console"


IDS = {
    getattr(journal, name)
    for name in ("SESSION_STARTED", "SESSION_ENDED", "JOB_FINISHED", "POLKIT_DECISION", "LEASH_REFUSED",
                 "TOOL_CALLED", "CALLS_NOT_RECORDED")
}  # fmt: skip
CATALOG = Path(__file__).parents[2] / "systemd/mcpd.catalog"


def test_message_ids_are_ids_of_their_own() -> None:
    assert len(IDS) == 7
    assert all(re.fullmatch("[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", value) for value in IDS)
    assert exec_stderr.LEASH_REFUSED == journal.LEASH_REFUSED


def test_every_message_id_is_explained_in_the_catalog() -> None:
    entries = CATALOG.read_text().split("\n-- ")[1:]
    assert {entry[:32] for entry in entries} == IDS
    for entry in entries:
        head, _, body = entry.partition("\n\n")
        assert re.search(r"^Subject: \S", head, re.MULTILINE)
        assert len(body.split()) > 10


@pytest.mark.skipif(which("journalctl") is None, reason="journalctl is not installed")
def test_journalctl_takes_the_catalog(tmp_path: Path) -> None:
    places = {"usr/lib/systemd/catalog": CATALOG, "var/lib/systemd/catalog": None}
    for place, file in places.items():
        (tmp_path / place).mkdir(parents=True)
        if file is not None:
            (tmp_path / place / file.name).write_bytes(file.read_bytes())
    subprocess.run(["journalctl", f"--root={tmp_path}", "--update-catalog"], check=True)
    listed = subprocess.run(
        ["journalctl", f"--root={tmp_path}", "--list-catalog"], capture_output=True, text=True, check=True
    )
    assert {line.split()[0] for line in listed.stdout.splitlines()} == IDS
