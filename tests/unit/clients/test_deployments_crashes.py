# SPDX-License-Identifier: LGPL-2.1-or-later
"""A deployment killed at any step leaves the client's old or new file, and a history that knows which."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from mcpd.errors import McpdError, NoSpace, NotFound
from tests.unit.clients import killed_deployment
from tests.unit.clients.deployment_parts import ENTRY, OTHER, User, family, strays
from tests.unit.clients.killed_deployment import SCENARIOS
from tests.unit.killed import kill_at_each_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

File: TypeAlias = tuple[bytes, int] | None


def file_of(user: User) -> File:
    path = user.file()
    return (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) if path.exists() else None


def told(user: User) -> list[tuple[int, tuple[str, ...], bool]]:
    return [(each.number, each.servers, each.undone_at is None) for each in user.deployments.history("cursor")]


def undo_all(user: User) -> None:
    for _ in range(12):
        try:
            user.undo(force=True)
        except NotFound:
            return
    pytest.fail("more deployments than are remembered")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_file(scenario: str, work: Path) -> None:
    runs = kill_at_each_step(killed_deployment, scenario, work)
    assert runs > 10

    prepare, change = SCENARIOS[scenario]
    before = prepare(work / "old")
    old, old_history = file_of(before), told(before)
    after = User(work / str(runs))
    new, new_history = file_of(after), told(after)
    needed = len(after.backups())
    seen = set()
    for number in range(1, runs + 1):
        user = User(work / str(number))
        found = file_of(user)
        assert found in (old, new), f"killed before step {number}"
        assert told(user) == (old_history if found == old else new_history), f"killed before step {number}"
        assert strays(user.home) == []
        seen.add(found)
        if found == old:
            assert user.file().parent.exists() is (old is not None)
            change(user)
            assert file_of(user) == new
            assert told(user) == new_history
            assert strays(user.root) == []
        assert len(user.backups()) <= needed + 3
        undo_all(user)
        assert (file_of(user) is None) is (scenario in ("deploy-new", "undo-new"))
        user.deploy({"last": ENTRY})
        assert strays(user.root) == []
    assert seen == {old, new}


AFTER = "mcpd.files.Staged.commit"
"""What comes after the client's file was replaced; the history itself is written by it, too."""


def kill_after_replacing(user: User, change: Callable[[], object]) -> None:
    """*change* the file of cursor as a process does that is killed when the file has just been replaced."""
    real = user.deployments._history.staged
    with pytest.MonkeyPatch.context() as patch:

        def staged(*args: Any) -> object:
            patch.setattr(AFTER, lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            return real(*args)

        patch.setattr(user.deployments._history, "staged", staged)
        with pytest.raises(KeyboardInterrupt):
            change()


@pytest.fixture
def killed(user: User) -> None:
    """A deployment of ``github`` that was killed when the file had just been replaced."""
    user.servers(mine=OTHER)
    kill_after_replacing(user, lambda: user.deploy({"github": ENTRY}))
    assert "github" in user.read()


@pytest.mark.usefixtures("killed")
def test_what_the_client_wrote_after_the_kill_stays_and_the_deployment_is_known(user: User) -> None:
    user.write({"mcpServers": {"mine": OTHER, "github": ENTRY}, "numStartups": 8})
    again = User(user.root)
    assert told(again) == [(1, ("github",), True)]
    assert again.deployments.drift(family())[0].status == "in-sync"
    again.undo(keep_edits=True)
    assert again.read() == {"mine": OTHER}


@pytest.mark.usefixtures("killed")
def test_what_the_client_reverted_after_the_kill_was_not_deployed(user: User) -> None:
    user.write({"mcpServers": {"mine": OTHER}, "numStartups": 8})
    again = User(user.root)
    assert told(again) == []
    assert again.read() == {"mine": OTHER}


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("content", [b"{", None], ids=["broken", "gone"])
def test_where_nobody_can_tell_what_was_there_is_remembered(user: User, content: bytes | None) -> None:
    if content is None:
        user.file().unlink()
    else:
        user.file().write_bytes(content)
    again = User(user.root)
    backup = again.deployments.history("cursor")[0].backup
    assert backup is not None
    assert b"mine" in backup.read_bytes()
    again.undo(force=True)
    assert again.read() == {"mine": OTHER}


@pytest.mark.parametrize("content", [b"{", None], ids=["broken", "gone"])
def test_where_nobody_can_tell_whether_it_was_undone_it_can_be_undone_again(user: User, content: bytes | None) -> None:
    path = user.servers(mine=OTHER)
    before = file_of(user)
    user.deploy({"github": ENTRY})
    user.write({"mcpServers": {"mine": OTHER, "github": ENTRY}, "numStartups": 8})
    kill_after_replacing(user, lambda: user.undo(force=True))
    assert file_of(user) == before
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    again = User(user.root)
    assert told(again) == [(1, ("github",), True)]
    again.undo(force=True)
    assert file_of(again) == before


@pytest.mark.usefixtures("killed")
def test_contents_that_are_gone_do_not_keep_the_history_from_being_read(user: User) -> None:
    for path in (user.state / "backups").iterdir():
        path.unlink()
    assert told(User(user.root)) == [(1, ("github",), True)]


@pytest.mark.usefixtures("killed")
def test_another_client_leaves_what_a_killed_deployment_needs(user: User) -> None:
    again = User(user.root)
    again.deploy({"time": OTHER}, "vscode")
    assert told(again) == [(1, ("github",), True)]
    assert again.deployments.managed("cursor", user.file()) == {"github": ENTRY}
    again.undo()
    assert again.read() == {"mine": OTHER}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a small file system here; other tests simulate one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_full_disk_leaves_the_old_file_or_is_enough(small: Path, scenario: str) -> None:
    prepare, change = SCENARIOS[scenario]
    user = prepare(small)
    old, history = file_of(user), told(user)
    filler = small / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    pages = filler.stat().st_size // 4096
    failed = 0
    for left in range(64):
        os.truncate(filler, (pages - left) * 4096)
        try:
            change(user)
        except NoSpace:
            failed += 1
            assert file_of(user) == old, f"{left} pages left"
            assert told(User(small)) == history
            assert strays(user.home) == []
        else:
            break
    assert failed >= 2
    assert file_of(user) != old
    assert strays(user.root) == []


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_any_write_that_fails_leaves_the_old_file(user: User, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user.servers(mine=OTHER)
    old = file_of(user)
    real = getattr(os, call)
    seen, said = set(), set()
    for failing in range(1, 60):
        left = failing

        def fail(*args: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(5, "Input/output error")
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            try:
                user.deploy({"github": ENTRY})
            except McpdError as error:
                said.add(error.message.rpartition(": ")[2])
            else:
                if left > 0:
                    break
        again = User(user.root)
        assert told(again) == ([] if file_of(user) == old else [(1, ("github",), True)])
        assert strays(user.home) == []
        seen.add(file_of(user) == old)
        if file_of(user) != old:
            user.undo()
            for path in user.state.glob("*.json"):
                path.unlink()
    assert failing > 4
    assert True in seen
    assert said == {"Input/output error"}
