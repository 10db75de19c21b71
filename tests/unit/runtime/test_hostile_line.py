# SPDX-License-Identifier: LGPL-2.1-or-later
"""What mcpd-exec does with a leash whose holder does not keep to the protocol: refuse it, and start nothing."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.runtime.exec import wire
from mcpd.runtime.launchers import exec_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


def line(marker: Path, **changes: Any) -> bytes:
    """A launch line that makes the file *marker*."""
    whole = {"v": 1, "id": "x", "argv": ["/usr/bin/touch", str(marker)], "cwd": "/", "env": {}, "permissions": [],
             "fds": [], "mounts": [], "manifest": None, "confined": False}  # fmt: skip
    return json.dumps({key: value for key, value in (whole | changes).items() if value is not ...}).encode() + b"\n"


def answer_to(talk: Callable[[socket.socket], object], *user: str) -> dict[str, Any]:
    """Return the first answer of a fresh mcpd-exec, for the mcpd of *user*, after *talk* has had its leash."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [*exec_command(), *user], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        theirs.close()
        ours.settimeout(120)
        with suppress(BrokenPipeError, ConnectionResetError):  # It has had enough before it was told everything.
            talk(ours)
        data = b""
        with suppress(ConnectionResetError):
            while chunk := ours.recv(65536):
                data += chunk
        ours.close()
        process.wait(20)
    answer: dict[str, Any] = json.loads(data.partition(b"\n")[0])
    return answer


def said(data: bytes, fds: tuple[int, ...] = (), *, end: bool = False) -> Callable[[socket.socket], None]:
    def talk(leash: socket.socket) -> None:
        if fds:
            socket.send_fds(leash, [data[:8]], fds)
        leash.sendall(data[8:] if fds else data)
        if end:
            leash.shutdown(socket.SHUT_WR)

    return talk


def test_a_proper_line_starts_the_program(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    assert "started" in answer_to(said(line(marker)))
    assert marker.exists()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_unit_of_the_system_takes_pipes_only(tmp_path: Path, number: int) -> None:
    marker, ours = tmp_path / "marker", pwd.getpwuid(os.getuid()).pw_name
    sock, peer = socket.socketpair()
    with sock, peer, (tmp_path / "file").open("w") as file:
        for fd in (sock.fileno(), file.fileno()):
            error = answer_to(said(line(marker, fds=[number]), (fd,)), ours)["error"]
            assert f"descriptor {number} of x is neither a pipe nor /dev/null" in error["message"]
    assert not marker.exists()


HOSTILE = {
    "nothing": lambda _: said(b"", end=True),
    "half a line": lambda marker: said(line(marker)[:-20], end=True),
    "no newline": lambda marker: said(line(marker)[:-1], end=True),
    "ten megabytes": lambda _: said(b"x" * 10_000_000),
    "a line over the limit": lambda marker: said(line(marker, env={"A": "x" * wire.MAX_LINE})),
    "not UTF-8": lambda _: said(b"\xff\xfe\n"),
    "not JSON": lambda _: said(b"launch!\n"),
    "no object": lambda _: said(b"[]\n"),
    "a number": lambda _: said(b"1\n"),
    "deep nesting": lambda _: said(b"[" * 500_000 + b"\n"),
    "another protocol": lambda marker: said(line(marker, v=2)),
    "no arguments": lambda marker: said(line(marker, argv=[])),
    "arguments that are no list": lambda marker: said(line(marker, argv=f"/usr/bin/touch {marker}")),
    "an argument that is no text": lambda marker: said(line(marker, argv=["/usr/bin/touch", 1])),
    "no id": lambda marker: said(line(marker, id=...)),
    "an id that adds a field to the journal": lambda marker: said(line(marker, id="x\nPRIORITY=0")),
    "NUL in a text": lambda marker: said(line(marker, cwd="/\0--bind\0/\0/")),
    "NUL in a variable": lambda marker: said(line(marker, env={"A": "\0--bind\0/\0/"})),
    "a short mount": lambda marker: said(line(marker, mounts=[["bind", "/"]])),
    "a bus that is no object": lambda marker: said(line(marker, bus=[])),
    "descriptors that did not come": lambda marker: said(line(marker, fds=[0, 1])),
    "descriptors nobody announced": lambda marker: said(line(marker), (0, 1)),
    "another number": lambda marker: said(line(marker, fds=[7]), (0,)),
    "a number twice": lambda marker: said(line(marker, fds=[0, 0]), (0, 0)),
    "numbers that are none": lambda marker: said(line(marker, fds=[[0]]), (0,)),
    "too many descriptors": lambda marker: said(line(marker), (0,) * 100),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_line_is_refused_and_nothing_is_started(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "marker"
    answer = answer_to(HOSTILE[kind](marker))
    assert answer["error"]["name"] == "SpawnFailed"
    assert not marker.exists()


def test_descriptors_that_come_in_drops_do_not_add_up(tmp_path: Path) -> None:
    def drops(leash: socket.socket) -> None:
        for _ in range(2000):
            socket.send_fds(leash, [b" "], [0, 1, 2, 0])
        leash.sendall(line(tmp_path / "marker"))

    assert "descriptors" in answer_to(drops)["error"]["message"]
    assert not (tmp_path / "marker").exists()


def test_silence_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINE_TIMEOUT", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(wire.Refusal, match="within"):
        wire.receive(theirs)


def test_slow_line_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINE_TIMEOUT", 0.3)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        dripping = subprocess.Popen(
            ["/bin/sh", "-c", "while printf x; do sleep 0.05; done"], stdout=ours.fileno(), stderr=subprocess.DEVNULL
        )
        with pytest.raises(wire.Refusal, match="within"):
            wire.receive(theirs)
        theirs.close()
        ours.close()
        dripping.wait(20)


def test_refusal_does_not_repeat_what_it_refuses() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b'{"env":{"KEY":"s3cr3t\xff"}}\n')
        with pytest.raises(wire.Refusal) as refused:
            wire.receive(theirs)
    assert "s3cr3t" not in str(refused.value)
