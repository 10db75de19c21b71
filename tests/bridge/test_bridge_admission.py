# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who is let in, and as whom: one user, or everybody who got through to the system's socket."""

from __future__ import annotations

import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.bridge.callers import Caller, Everybody, OneUser
from mcpd.bridge.http import listeners
from mcpd.bridge.http.gate import Gate, Peer
from mcpd.bridge.http.tokens import TokenFile, Tokens, load_token, write_token
from mcpd.errors import InvalidConfig, NotAuthorized, NotFound, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable


def bearer(token: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + token.encode()}


def test_a_users_bridge_serves_that_user_alone(tmp_path: Path) -> None:
    token = load_token(tmp_path / "token")
    gate = Gate(OneUser(1000, TokenFile(tmp_path / "token")))
    assert gate.identify({}, Peer(1000)) == gate.identify(bearer(token), Peer(None)) == Caller(1000)
    for uid in (0, 1001):
        with pytest.raises(NotAuthorized, match=str(uid)):
            gate.identify(bearer(token), Peer(uid))
    with pytest.raises(NotFound):
        gate.admission.own_token(1000, renew=False)


def test_each_uid_is_a_caller_of_its_own_with_its_own_token(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")
    gate = Gate(Everybody(tokens))
    alice, bob = (gate.admission.own_token(uid, renew=False) for uid in (1000, 1001))
    assert gate.admission.own_token(1000, renew=False) == alice
    assert gate.identify({}, Peer(1000)) == gate.identify(bearer(alice), Peer(None)) == Caller(1000)
    assert gate.identify({}, Peer(1001)) == gate.identify(bearer(bob), Peer(None)) == Caller(1001)
    # On a unix socket the kernel is believed, whatever is shown beside it.
    assert gate.identify(bearer(alice), Peer(1001)) == Caller(1001)
    assert stat.S_IMODE((tmp_path / "tokens").stat().st_mode) == 0o700
    for uid in ("1000", "1001"):
        assert stat.S_IMODE((tmp_path / "tokens" / uid).stat().st_mode) == 0o600


def forgeries(token: str) -> list[str]:
    secret = token.partition(".")[2]
    return ["", secret, f"1001.{secret}", f"01000.{secret}", f"../tokens/1000.{secret}", f"{token}x", token[:-1],
            f"-1.{secret}", f"1000.{'x' * 43}", f"99999999999.{secret}", "1000.", "\xb9000." + secret]  # fmt: skip


def test_a_token_that_was_not_handed_out_opens_nothing(tmp_path: Path) -> None:
    gate = Gate(Everybody(Tokens(tmp_path)))
    token = gate.admission.own_token(1000, renew=False)
    gate.admission.own_token(1001, renew=False)
    for forged in forgeries(token):
        with pytest.raises(Unauthenticated, match="mcpctl token --system"):
            gate.identify(bearer(forged), Peer(None))
    assert gate.identify(bearer(token), Peer(None)) == Caller(1000)


def test_users_of_a_container_are_not_taken_for_nobody(tmp_path: Path) -> None:
    gate = Gate(Everybody(Tokens(tmp_path)))
    for uid in (65534, -1):
        with pytest.raises(NotAuthorized, match="stands for unknown users"):
            gate.identify({}, Peer(uid))


def test_a_new_token_holds_at_once_and_the_old_one_no_more(tmp_path: Path) -> None:
    system, user = Gate(Everybody(Tokens(tmp_path / "all"))), Gate(OneUser(7, TokenFile(tmp_path / "one")))
    before = system.admission.own_token(7, renew=False)
    assert system.identify(bearer(before), Peer(None)) == Caller(7)
    after = system.admission.own_token(7, renew=True)
    with pytest.raises(Unauthenticated):
        system.identify(bearer(before), Peer(None))
    assert system.identify(bearer(after), Peer(None)) == Caller(7)
    assert [file.name for file in (tmp_path / "all").iterdir()] == ["7"]
    before = load_token(tmp_path / "one")
    assert user.identify(bearer(before), Peer(None)) == Caller(7)
    write_token(tmp_path / "one")
    with pytest.raises(Unauthenticated):
        user.identify(bearer(before), Peer(None))


@pytest.mark.parametrize("spoil", [lambda file: file.chmod(0o644), lambda file: file.write_text(""), Path.unlink])
def test_a_token_file_that_cannot_be_trusted_opens_nothing(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    gate = Gate(Everybody(Tokens(tmp_path)))
    token = gate.admission.own_token(7, renew=False)
    assert gate.identify(bearer(token), Peer(None)) == Caller(7)
    spoil(tmp_path / "7")
    with pytest.raises(Unauthenticated):
        gate.identify(bearer(token), Peer(None))
    with pytest.raises(Unauthenticated):
        gate.identify(bearer(""), Peer(None))


def test_whoever_makes_the_token_at_the_same_time_gets_the_same_one(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / str(number)
        together = threading.Barrier(4)

        def make(path: Path = path, together: threading.Barrier = together) -> str:
            together.wait()
            return load_token(path)

        with ThreadPoolExecutor(4) as threads:
            found = [made.result() for made in [threads.submit(make) for _ in range(4)]]
        assert len(set(found)) == 1
        assert path.read_text() == f"{found[0]}\n"
    assert len(list(tmp_path.iterdir())) == 20


# ---------------------------------------------------------------------------------------- passed sockets


def pass_on(monkeypatch: pytest.MonkeyPatch, fd: int, name: str = "web") -> None:
    """As if the service manager had passed *fd*, whose number it would have chosen."""
    monkeypatch.setattr(listeners, "passed_fds", lambda: {name: [os.dup(fd)]})


def opened(family: socket.AddressFamily, kind: socket.SocketKind, address: object, *, listen: bool) -> socket.socket:
    found = socket.socket(family, kind)
    found.bind(address)  # type: ignore[arg-type]
    if listen:
        found.listen()
    return found


STREAM, UNIX, IPV4 = socket.SOCK_STREAM, socket.AF_UNIX, socket.AF_INET


@pytest.mark.parametrize(
    ("family", "kind", "address", "listens", "hint"),
    [
        (UNIX, STREAM, "path", False, "does not listen"),
        (UNIX, socket.SOCK_SEQPACKET, "path", True, "does not listen for streams"),
        (UNIX, socket.SOCK_DGRAM, "path", False, "does not listen for streams"),
        (IPV4, socket.SOCK_DGRAM, ("127.0.0.1", 0), False, "does not listen for streams"),
        (IPV4, STREAM, ("0.0.0.0", 0), True, "not on loopback"),
    ],
)
def test_a_passed_socket_that_cannot_be_served_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: socket.AddressFamily, kind: socket.SocketKind,
    address: object, listens: bool, hint: str,
) -> None:  # fmt: skip
    where = str(tmp_path / "sock") if address == "path" else address
    with opened(family, kind, where, listen=listens) as given:
        pass_on(monkeypatch, given.fileno())
        with pytest.raises(InvalidConfig, match=f"web.*{hint}"):
            listeners.passed_listeners()


def test_a_passed_descriptor_that_is_no_socket_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        pass_on(monkeypatch, file.fileno())
        with pytest.raises(InvalidConfig, match=r"\(web\).*not a socket"):
            listeners.passed_listeners()


def test_passed_listeners_of_both_kinds_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        opened(UNIX, STREAM, str(tmp_path / "sock"), listen=True) as one,
        opened(IPV4, STREAM, ("127.0.0.1", 0), listen=True) as two,
    ):
        monkeypatch.setattr(listeners, "passed_fds", lambda: {"a": [os.dup(one.fileno()), os.dup(two.fileno())]})
        taken = listeners.passed_listeners()
        assert [each.getsockname() for each in taken] == [str(tmp_path / "sock"), two.getsockname()]
        for each in taken:
            each.close()


def test_the_systems_own_socket_is_for_its_group_alone(tmp_path: Path) -> None:
    import grp

    group = grp.getgrgid(os.getgid())
    path = tmp_path / "bridge.sock"
    with listeners.unix_listener(path, group.gr_name):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, group.gr_gid)
    with pytest.raises(InvalidConfig, match="groupadd -r no-such-group"):
        listeners.unix_listener(tmp_path / "other.sock", "no-such-group")
