# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd/notify.py against a real datagram socket, as the service manager has it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd import notify

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


class Manager:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(address)
        self.sock.settimeout(120)

    def receive(self) -> tuple[dict[str, str], list[int]]:
        message, fds, flags, _ = socket.recv_fds(self.sock, 4096, 16)
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        return dict(line.split("=", 1) for line in message.decode().split("\n")), fds

    def is_empty(self) -> bool:
        self.sock.settimeout(0)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.sock.settimeout(120)
        return False

    def fill(self) -> int:
        """Send until there is no room; the number of messages in the queue."""
        count = 0
        while True:
            # The sender's own buffer may be what is full first, so until a new one finds no room.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sent = 0
                with suppress(BlockingIOError):
                    while True:
                        sock.sendto(b"FILLER=1", self.sock.getsockname())
                        sent += 1
            if not sent:
                return count
            count += sent


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    made = Manager(address)
    yield made
    made.sock.close()


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def is_same(one: int, other: int) -> bool:
    return os.path.samestat(os.fstat(one), os.fstat(other))


def test_lines_go_as_one_datagram(manager: Manager) -> None:
    assert notify.notify("READY=1", "STATUS=serving")
    assert manager.receive() == ({"READY": "1", "STATUS": "serving"}, [])


def test_an_abstract_socket_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"mcpd-test-{os.getpid()}"
    manager = Manager("\0" + name)
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
    with manager.sock:
        assert notify.notify("READY=1")
        assert manager.receive() == ({"READY": "1"}, [])


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "/nowhere/notify"])
def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify.notify("READY=1")


def test_a_value_cannot_bring_a_line_of_its_own(manager: Manager) -> None:
    notify.notify("STATUS=refused: x\nMAINPID=1\r\nFDSTORE=1")
    assert manager.receive() == ({"STATUS": "refused: x MAINPID=1 FDSTORE=1"}, [])


def test_reloading_says_since_when(manager: Manager) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert notify.reloading()
    message, _ = manager.receive()
    assert message["RELOADING"] == "1"
    assert before <= int(message["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_a_descriptor_is_stored_and_removed_by_name(manager: Manager) -> None:
    with pipe() as (reader, _):
        assert notify.store_fd("session-7", reader)
        message, fds = manager.receive()
        assert message == {"FDSTORE": "1", "FDNAME": "session-7", "FDPOLL": "0"}
        assert is_same(fds[0], reader)
        os.close(fds[0])
    assert notify.remove_fd("session-7")
    assert manager.receive() == ({"FDSTOREREMOVE": "1", "FDNAME": "session-7"}, [])


@pytest.mark.parametrize("name", ["", "a:b", "ä", "a\nb", "x" * 256])
def test_a_name_that_would_be_replaced_is_refused(manager: Manager, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a stored descriptor"):
        notify.store_fd(name, 0)
    assert manager.is_empty()


def test_a_service_manager_that_takes_nothing_is_given_up(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_TIMEOUT", 0.01)
    fillers = manager.fill()
    with pipe() as (reader, _):
        assert not notify.store_fd("session-1", reader)
    for _ in range(fillers):
        manager.receive()
    assert manager.is_empty()
    assert notify.notify("READY=1")


@pytest.mark.parametrize(
    ("usec", "pid", "interval"),
    [
        (None, None, None),
        ("60000000", None, 30.0),
        pytest.param("60000000", str(os.getpid()), 30.0, id="its own"),
        ("60000000", "1", None),
        ("0", None, None),
        ("soon", None, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often(
    monkeypatch: pytest.MonkeyPatch, usec: str | None, pid: str | None, interval: float | None
) -> None:
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert notify.watchdog_interval() == interval


PASSED = """
import json, os
os.environ["LISTEN_PID"] = os.environ["LISTEN_PID"] or str(os.getpid())
from mcpd.notify import passed_fds
found = passed_fds()
left = [name for name in os.environ if name.startswith("LISTEN_")]
inheritable = [fd for fds in found.values() for fd in fds if os.get_inheritable(fd)]
print(json.dumps([found, passed_fds(), left, inheritable]))
"""


def passed(count: str, names: str | None, pid: str = "") -> str:
    """What a process says that got two descriptors, as the first after the standard ones, and these variables."""
    environ = os.environ | {"LISTEN_PID": pid, "LISTEN_FDS": count, "PYTHONPATH": str(Path(__file__).parents[2])}
    if names is not None:
        environ["LISTEN_FDNAMES"] = names
    shell = f"exec 3</dev/null 4</dev/null; exec {sys.executable} -c '{PASSED}'"
    return subprocess.run(["bash", "-c", shell], env=environ, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("count", "names", "found"),
    [
        ("2", "spawn:session-1", '{"spawn": [3], "session-1": [4]}'),
        ("2", "session:session", '{"session": [3, 4]}'),
        ("2", "spawn:", '{"spawn": [3], "unknown": [4]}'),
        ("2", None, '{"unknown": [3, 4]}'),
        ("2", "one", '{"unknown": [3, 4]}'),
        ("1", "", '{"unknown": [3]}'),
        ("0", "", "{}"),
        ("-1", "", "{}"),
        ("two", "", "{}"),
    ],
)
def test_passed_descriptors_come_once_by_name(count: str, names: str | None, found: str) -> None:
    assert passed(count, names) == f"[{found}, {{}}, [], []]"


def test_descriptors_for_another_process_are_not_taken() -> None:
    environ = {"pid": "1", "names": "a:b"}
    assert passed("2", **environ) == "[{}, {}, [], []]"
