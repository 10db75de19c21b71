# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inspection of scripts that are hard to parse: in another process, with limits on time and memory."""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd import bounded
from mcpd.errors import InvalidManifest, LimitExceeded, McpdError
from mcpd.files import read_file
from mcpd.paths import Scope
from mcpd.scripts import contents, servers, syntax
from mcpd.scripts.inspection import MAX_SCRIPT, Inspection, inspect
from mcpd.store import Store
from tests.unit.scripts.script_parts import listed, put, write

if TYPE_CHECKING:
    from mcpd.paths import Paths

pytestmark = pytest.mark.process

HARD = b"f(a=f'" + b"{a}" * 87281 + b"' x)"
"""The parser of some versions of Python takes seconds for this."""
TOO_LONG = "1: reading the script takes too long"
TOO_DEEP = "1: the script is nested too deeply"
LARGE = 32 * 1024
SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


def large(text: bytes) -> bytes:
    return text + b"\n#" + b" " * LARGE + b"\n"


@pytest.fixture
def other_parser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Takes the place of the program that reads large scripts."""
    program = tmp_path / "parser.py"
    monkeypatch.setattr(syntax, "__file__", str(program))
    return program


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the time that a busy machine needs."""
    for name in ("CPU_SECONDS", "WALL_SECONDS"):
        monkeypatch.setattr(bounded, name, 200)


# ---------------------------------------------------------------------------------------- large scripts


@pytest.mark.parametrize(
    "text",
    [
        b'"""\n  Does it.\n\nMore.\n"""\n__version__ = "1.2"\n',
        b'"""\tIn\tcolumns \x07."""\n',
        b'# -*- coding: latin-1 -*-\n"""Sm\xf8rrebr\xf8d."""\n',
        b"# coding: martian\n",
        b"# coding: utf-7\nx = '+2AA-'\n",
        b"a = 1\n\nif a\n    pass\n",
        b'"""\xff"""\n',
        b"x = 1\n\0",
        b"(a,\n" * 2000,
        b'x = "\\d"\n',
        b"",
    ],
)
def test_a_large_script_is_inspected_like_a_small_one(text: bytes) -> None:
    assert inspect(large(text), "python") == inspect(text, "python")


def test_a_large_script_is_not_parsed_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: bytes) -> Any:
        raise AssertionError("parsed in the process that serves everybody")

    monkeypatch.setattr(syntax, "read", never)
    assert inspect(large(b'"""Does it."""'), "python") == Inspection("Does it.")


# ---------------------------------------------------------------------------------------- limits


def test_a_script_that_takes_too_long_is_broken_and_is_not_read_again(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "WALL_SECONDS", 0.3)
    paths.user.scripts.mkdir(parents=True)
    (paths.user.scripts / "hard.py").write_bytes(HARD)
    put(paths.user.scripts, "easy.py")
    found = listed(user)
    assert found["hard"].problem == f"{paths.user.scripts}/hard.py:{TOO_LONG}"
    assert found["easy"].problem == ""

    def never(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(servers, "inspect", never)
    assert listed(Store(paths, Scope.USER))["hard"].problem == found["hard"].problem


@pytest.mark.skipif(not Path("/bin/dash").exists(), reason="the shell that takes long is not here")
def test_a_script_whose_shell_takes_too_long_is_broken() -> None:
    assert inspect(b"#!/bin/dash\n" + b"<<A " * 65000, "shell").problem == TOO_LONG


def test_lack_of_memory_is_distinguished_from_deep_nesting(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    deep, wide = large(b"(a,\n" * 2000), b"a;" * 100_000
    assert [inspect(each, "python").problem for each in (deep, wide)] == [TOO_DEEP, ""]
    monkeypatch.setattr(bounded, "MEMORY", 48 << 20)
    assert [inspect(each, "python").problem for each in (deep, wide)] == [TOO_DEEP, TOO_LONG]


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="bash is not here")
def test_a_shell_without_memory_reports_no_syntax_error(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MEMORY", 16 << 20)
    assert inspect(b"#!/bin/bash\n" + b"a;" * 120_000, "shell").problem == TOO_LONG


@pytest.mark.skipif(not Path("/bin/dash").exists(), reason="dash is not here")
def test_a_shell_that_crashes_on_a_script_means_deep_nesting(patient: None) -> None:
    assert inspect(b"#!/bin/dash\n" + b"{ " * 120_000, "shell").problem == TOO_DEEP


def test_a_bounded_program_returns_its_exit_status_and_output() -> None:
    program = [sys.executable, "-I", "-S", "-c", "import sys; sys.exit(len(sys.stdin.read()) >> 12)"]
    assert bounded.run(program, b"x" * MAX_SCRIPT) == (MAX_SCRIPT >> 12, b"")
    # One that does not read all of it has said what it has to say.
    assert bounded.run(["/bin/sh", "-c", "echo done"], b"x" * MAX_SCRIPT) == (0, b"done\n")


def test_a_program_that_exceeds_a_limit_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "WALL_SECONDS", 0.3)
    started: list[int] = []
    real = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda pid: (started.append(pid), real(pid))[1])
    with pytest.raises(LimitExceeded):
        bounded.run(SLEEP, b"")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_the_output_of_a_program_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "OUTPUT", 4096)
    with pytest.raises(LimitExceeded):
        bounded.run(["/bin/sh", "-c", "cat && exec head -c 8192 /dev/zero"], b"")


def test_a_program_inherits_no_descriptor_and_no_variable() -> None:
    ours = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        # As all that is run this way it reads first; until then it may not be bound yet.
        listing = "import os, resource, sys; sys.stdin.read(); print(len(os.listdir('/proc/self/fd')),"
        listing += (
            " os.getsid(0) == os.getpid(), resource.getrlimit(resource.RLIMIT_CORE), os.getcwd(), sorted(os.environ))"
        )
        ended, said = bounded.run([sys.executable, "-I", "-S", "-c", listing], b"")
    finally:
        os.close(ours)
    # The fourth is that of the listing. Python itself sets LC_CTYPE.
    assert (ended, said.replace(b"'LC_CTYPE', ", b"")) == (0, b"4 True (0, 0) / ['LC_ALL']\n")


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "import os; os.abort()"])
def test_a_parser_that_fails_makes_the_script_broken(other_parser: Path, program: str) -> None:
    other_parser.write_text(program)
    assert inspect(large(b""), "python").problem == TOO_LONG


def test_an_inspection_that_cannot_be_started_is_tried_again(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = large(b'"""Does it."""')
    put(paths.user.scripts, "x.py", text.decode())
    cid = contents.write(paths.user.contents, text)
    write(paths.user.mcps, {"c": {"definition_cid": cid}})
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(McpdError, match="nonexistent"):
            inspect(text, "python")
        found = listed(user)
        assert [("nonexistent" in found[each].problem) for each in "xc"] == [True, True]
    found = listed(user)
    assert [found[each].problem for each in "xc"] == ["", ""]


# ---------------------------------------------------------------------------------------- the cache


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("bound", ["_SLOW_READ", "_SAVE_INTERVAL"])
def test_an_interrupted_scan_continues_at_the_next_start(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    for name in "abc":
        put(paths.user.scripts, f"{name}.py", f'"""Is {name}."""\n')
    monkeypatch.setattr(servers, bound, -1.0)
    read: list[bytes] = []

    def killed(data: bytes, kind: Any) -> Inspection:
        read.append(data)
        if data.startswith(b'"""Is c.') and len(read) < 4:
            raise _Killed
        return inspect(data, kind)

    monkeypatch.setattr(servers, "inspect", killed)
    with pytest.raises(_Killed):
        user.list()
    assert len(read) == 3
    assert set(listed(Store(paths, Scope.USER))) == set("abc")
    assert len(read) == 4


# ---------------------------------------------------------------------------------------- faults of one script


def test_a_stream_that_looks_like_a_file_is_refused(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = tmp_path / "stream"
    os.mkfifo(stream)
    writer = os.open(stream, os.O_RDWR)
    monkeypatch.setattr(stat, "S_ISREG", lambda _: True)
    try:
        with pytest.raises(InvalidManifest, match="not a regular file"):
            read_file(stream)
        put(paths.user.scripts, "a.py")
        (paths.user.scripts / "s.py").symlink_to(stream)
        monkeypatch.setattr("mcpd.scripts.servers._may_be_script", lambda _: True)
        found = listed(user)
    finally:
        os.close(writer)
    assert found["a"].problem == ""
    assert "not a regular file" in found["s"].problem


def test_an_internal_error_hides_only_the_script_that_caused_it(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        put(paths.user.scripts, f"{name}.py", f"# {name}\n")
    stored = contents.write(paths.user.contents, b"# c\n")
    write(paths.user.mcps, {"c": {"definition_cid": stored}, "v": {"resources": {"a": {"uri": "b:c"}}}})

    def faulty(data: bytes, kind: Any) -> Inspection:
        if data != b"# a\n":
            raise LookupError("odd")
        return inspect(data, kind)

    with monkeypatch.context() as patch:
        patch.setattr(servers, "inspect", faulty)
        for _ in range(3):
            found = listed(user)
        assert user.edits() == user.edits()
    assert {key for key, each in found.items() if each.problem} == {"b", "c"}
    assert all("internal error" in found[key].problem for key in "bc")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert all(record.exc_info for record in errors)
    assert {each.problem for each in listed(user).values()} == {""}


def test_a_path_that_is_not_unicode_breaks_only_its_script(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "a.py")
    odd = os.fsencode(paths.user.scripts) + b"/\xff"
    Path(os.fsdecode(odd)).mkdir()
    Path(os.fsdecode(odd + b"/x.py")).touch()
    (paths.user.scripts / "x.py").symlink_to(os.fsdecode(odd + b"/x.py"))
    Path(os.fsdecode(odd + b".py")).touch()
    assert [each.problem == "" for _, each in sorted(listed(user).items())] == [False, True, False]


def test_a_listing_that_does_not_wait_has_no_scripts_before_the_first_scan(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(paths.user.scripts, "a.py")
    began, go_on = threading.Event(), threading.Event()

    def slow(data: bytes, kind: Any) -> Inspection:
        began.set()
        go_on.wait(2)
        return inspect(data, kind)

    monkeypatch.setattr(servers, "inspect", slow)
    thread = threading.Thread(target=user.edits)
    thread.start()
    try:
        assert began.wait(2)
        assert user.list(edits=False) == []
        assert not go_on.is_set()
    finally:
        go_on.set()
        thread.join()
    assert [each.id for each in user.list(edits=False)] == ["a"]
