# SPDX-License-Identifier: LGPL-2.1-or-later
"""Removal of trees of others, and recovery from leftovers at start."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mcpd.files import remove_tree
from tests.unit.store.store_trees import install, names_in

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.paths import Paths
    from mcpd.store import Store

pytestmark = pytest.mark.process

ONE = "com.example.one"


def nest(root: Path, depth: int, name: str = "a") -> None:
    """Make *depth* directories in each other below *root*, by a path of any length, with a file in the last one."""
    root.mkdir(parents=True, exist_ok=True)
    current = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        following = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = following
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)


@pytest.fixture(autouse=True)
def swept(tmp_path: Path) -> Iterator[None]:
    """pytest cannot remove deep trees itself."""
    yield
    subprocess.run(["rm", "-rf", tmp_path], check=True)


def test_a_tree_deeper_than_python_recurses_and_longer_than_a_path_is_removed(tmp_path: Path) -> None:
    nest(tmp_path / "tree", 1500, "directory")
    nest(tmp_path / "tree/beside", 3)
    nest(tmp_path / "tree/directory/directory/beside", 3)
    remove_tree(tmp_path / "tree")
    assert names_in(tmp_path) == []


def test_the_targets_of_links_in_a_removed_tree_stay(tmp_path: Path) -> None:
    nest(tmp_path / "outside", 2)
    nest(tmp_path / "tree", 2)
    (tmp_path / "tree/link").symlink_to("../outside")
    (tmp_path / "tree/a/link").symlink_to(tmp_path / "outside")
    (tmp_path / "top").symlink_to("outside")
    os.mkfifo(tmp_path / "tree/pipe")
    for name in ("tree", "top", "missing", "missing/too"):
        remove_tree(tmp_path / name)
    assert names_in(tmp_path) == ["outside"]
    assert (tmp_path / "outside/a/a/file").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, to whom permissions mean something")
def test_directories_without_permissions_are_removed(tmp_path: Path) -> None:
    nest(tmp_path / "tree", 3)
    for path in (tmp_path / "tree/a/a/a", tmp_path / "tree/a/a", tmp_path / "tree/a", tmp_path / "tree"):
        path.chmod(0)
        os.chown(path, 65534, 65534)
    script = f"from pathlib import Path; from mcpd.files import remove_tree; remove_tree(Path({str(tmp_path)!r}))"
    drop = f"import os; os.setgid(65534); os.setuid(65534); {script.replace(repr(str(tmp_path)), repr('tree'))}"
    tmp_path.chmod(0o777)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", f"import mcpd.files; {drop}"], cwd=tmp_path, env=environment, check=True)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("leftover", [".1.0123456789ab~tmp", "1"])
def test_a_deep_leftover_of_an_installation_is_removed_at_the_next_start(
    user: Store, paths: Paths, leftover: str
) -> None:
    generation = paths.user.generations / ONE
    nest(generation / leftover, 1300)
    (generation / ".1~building").touch()
    user.recover()
    assert not generation.exists()


@pytest.mark.parametrize("fault", [RecursionError("too deep"), PermissionError(1, "immutable")])
def test_a_leftover_that_cannot_be_removed_stops_no_other_cleanup(
    user: Store,
    paths: Paths,
    fault: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(user)
    generations = paths.user.generations
    for server_id in ("aaa", "zzz"):
        nest(generations / server_id / ".1.0123456789ab~tmp", 1)
    stuck = [generations / "aaa/.1.0123456789ab~tmp", paths.user.installed / ".drop.aab.0123~removed"]
    for name in (".drop.aab.0123~removed", ".drop.zzy.0123~removed"):
        (paths.user.installed / name).symlink_to("nowhere")

    def remove(path: Path) -> None:
        if path in stuck:
            raise fault
        remove_tree(path)

    monkeypatch.setattr("mcpd.store.generations.remove_tree", remove)
    monkeypatch.setattr("mcpd.store.lifecycle.remove_tree", remove)
    user.recover()
    assert [server.id for server in user.list()] == [ONE]
    assert names_in(generations) == [".lock", "aaa", ONE]
    assert [name for name in names_in(paths.user.installed) if "~" in name] == [".drop.aab.0123~removed"]
    assert all(any(str(path) in message for message in _messages(caplog)) for path in stuck)


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    records: list[logging.LogRecord] = caplog.records
    return [record.getMessage() for record in records]


def test_the_tools_of_a_generation_that_is_gone_are_removed(user: Store, paths: Paths) -> None:
    install(user)
    user.set_tools(ONE, [{"name": "kept"}])
    mine, gone = paths.user.generations / ONE, paths.user.generations / "gone"
    (mine / "7.tools.json").write_text("{}")
    gone.mkdir()
    (gone / "1.tools.json").write_text("{}")
    user.recover()
    assert not gone.exists()
    assert names_in(mine) == ["1", "1.tools.json"]
    assert user.tools(ONE) == [{"name": "kept"}]
