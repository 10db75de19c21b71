# SPDX-License-Identifier: LGPL-2.1-or-later
"""Projects and packages made to be too deep, too many, too large, or to be misread in a message."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import BuildFailed, InvalidManifest
from mcpd.install import trees
from mcpd.install.pipeline import resolve_transports, seal
from mcpd.install.sources import base
from mcpd.install.sources.base import Outcome, read_project_file
from mcpd.install.sources.npm import declared_commands, parse_lock
from mcpd.install.sources.project import required_by
from mcpd.install.sources.pypi import PythonProject
from mcpd.install.trees import Pinned, copy_tree, pin, tree_bytes
from mcpd.install.workbench import tree_size
from mcpd.model import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

GIB = 1024**3


@pytest.fixture(autouse=True)
def swept(tmp_path: Path) -> Iterator[None]:
    """pytest cannot remove deep trees itself."""
    yield
    subprocess.run(["rm", "-rf", tmp_path], check=True)


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """A file that is read whole does not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + GIB, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sparse(path: Path, size: int = 3 * GIB) -> None:
    path.touch()
    os.truncate(path, size)


def nest(root: Path, depth: int) -> None:
    root.mkdir()
    current = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=current)
        following = os.open("a", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = following
    os.close(current)


@contextmanager
def pinned(source: Path) -> Iterator[Pinned]:
    found = pin(source)
    try:
        yield found
    finally:
        os.close(found.fd)


def size(source: Path) -> int:
    with pinned(source) as one:
        return tree_bytes(one)


def copy(source: Path) -> Path:
    target = source.with_name("target")
    target.mkdir()
    with pinned(source) as one:
        copy_tree(one, target, stop=threading.Event(), progress=lambda _: None)
    return target


@pytest.mark.parametrize("depth", [trees.MAX_DEPTH + 1, 1500])
def test_a_tree_that_is_too_deep_is_refused(tmp_path: Path, depth: int) -> None:
    nest(tmp_path / "src", depth)
    for check in (size, copy, seal):
        with pytest.raises(InvalidManifest, match="128 nested directories"):
            check(tmp_path / "src")


def test_a_tree_may_be_as_deep_as_the_limit(tmp_path: Path) -> None:
    nest(tmp_path / "src", trees.MAX_DEPTH)
    deepest = tmp_path / "src" / "/".join("a" * trees.MAX_DEPTH)
    (deepest / "file").write_text("x")
    assert size(tmp_path / "src") == 1
    target = copy(tmp_path / "src")
    assert (target / deepest.relative_to(tmp_path / "src") / "file").read_text() == "x"
    seal(target)


def test_a_tree_of_too_many_entries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_ENTRIES", 10)
    source = tmp_path / "src"
    for name in ("one/.git", "two"):
        (source / name).mkdir(parents=True)
    for number in range(8):
        (source / f"two/{number}").touch()
        (source / f"one/.git/{number}").touch()
    assert size(source) == 0
    (source / "three").touch()
    for check in (size, copy, seal):
        with pytest.raises(InvalidManifest, match="more than 10 files"):
            check(source)


def test_the_holes_of_a_file_count(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    sparse(tmp_path / "src/1")
    assert size(tmp_path / "src") == 3 * GIB
    sparse(tmp_path / "src/0", GIB + 1)
    sparse(tmp_path / "src/2", 5 * GIB)
    with pytest.raises(InvalidManifest, match="larger than 4 GiB"):
        size(tmp_path / "src")
    (tmp_path / "src/0").unlink()
    (tmp_path / "src/1").unlink()
    with pytest.raises(InvalidManifest, match="larger than 4 GiB"):
        copy(tmp_path / "src")
    assert (tmp_path / "target").is_dir()
    assert list((tmp_path / "target").iterdir()) == []
    sparse(tmp_path / "src/3", 12 * GIB)
    with pytest.raises(InvalidManifest, match="larger than 16 GiB"):
        seal(tmp_path / "src")


@pytest.mark.parametrize("name", ["a\nwarning: fine", "\x1b[2Jclear", "bad\udcff", "x" * 250])
def test_a_message_shows_hostile_names_harmlessly(tmp_path: Path, name: str) -> None:
    source = tmp_path / "src"
    source.mkdir()
    os.mkfifo(source / name)
    for check in (copy, seal):
        with pytest.raises(InvalidManifest, match="neither a file") as caught:
            check(source)
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 350 + len(str(tmp_path))
    (source / name).unlink()
    (tmp_path / "target").rmdir()
    (source / "link").symlink_to(f"../{name}")
    for check in (copy, seal):
        with pytest.raises(InvalidManifest, match="leads outside") as caught:
            check(source)
        assert caught.value.message.isprintable()


def test_names_that_are_odd_but_harmless_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    names = ["a\nb", "README", "readme", "bad\udcff", "-rf", "~tmp"]
    for name in names:
        (source / name).write_text(ascii(name))
    target = copy(source)
    seal(target)
    assert {path.name: path.read_text() for path in target.iterdir()} == {name: ascii(name) for name in names}


def test_hard_links_become_files_of_their_own(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (tmp_path / "outside").write_text("x")
    (tmp_path / "outside").chmod(0o600)
    os.link(tmp_path / "outside", source / "linked")
    seal(copy(source))
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("name", "limit"), [("requirements.txt", "1 MiB"), ("pyproject.toml", "0.25 MiB")])
def test_a_huge_file_of_a_python_project_is_not_read(tmp_path: Path, name: str, limit: str) -> None:
    sparse(tmp_path / name)
    with pytest.raises(InvalidManifest, match=f"the project's {name} is larger than {limit}"):
        PythonProject.read(tmp_path)


def test_a_huge_file_of_requirements_that_is_included_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more.txt\n")
    sparse(tmp_path / "more.txt")
    with pytest.raises(InvalidManifest, match=r"the project's more\.txt is larger"):
        PythonProject.read(tmp_path)


def test_requirements_do_not_multiply(tmp_path: Path) -> None:
    for number in range(8):
        following = f"-r {number + 1}.txt\n" if number < 7 else "requests\n"
        (tmp_path / f"{number}.txt").write_text(following * 100)
    (tmp_path / "0.txt").rename(tmp_path / "requirements.txt")
    with pytest.raises(InvalidManifest, match="more than 32 files"):
        PythonProject.read(tmp_path)
    (tmp_path / "requirements.txt").write_text("a\n" * 10_001)
    with pytest.raises(InvalidManifest, match="more than 10,000 requirements"):
        PythonProject.read(tmp_path)


def test_a_huge_package_json_is_not_read(tmp_path: Path) -> None:
    sparse(tmp_path / "package.json")
    assert declared_commands(tmp_path) == []
    document = {"id": "x", "name": "x", "transports": [{"type": "stdio", "command": "nothing-of-that-name"}]}
    with pytest.raises(InvalidManifest, match="nothing-of-that-name"):
        resolve_transports(Entry.parse(document, "test"), Outcome(), tmp_path)
    with pytest.raises(InvalidManifest, match=r"the project's package\.json is larger than 1 MiB"):
        read_project_file(tmp_path / "package.json")
    with pytest.raises(InvalidManifest, match="larger than 8 MiB"):
        read_project_file(tmp_path / "package.json", base.MAX_LOCK)


def test_a_wheel_of_too_many_files_is_not_listed(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", "Name: x\nRequires-Dist: other\n")
    assert required_by(wheel) == ["other"]
    data = bytearray(wheel.read_bytes())
    data[-10:-6] = (2 * GIB).to_bytes(4, "little")
    wheel.write_bytes(data)
    with pytest.raises(BuildFailed, match="too many files"):
        required_by(wheel)
    data[-6:-2] = b"PK\x05\x06"
    wheel.write_bytes(data)
    with pytest.raises(BuildFailed, match="too many files"):
        required_by(wheel)
    with zipfile.ZipFile(wheel, "w") as archive:
        for number in range(70_000):
            archive.writestr(f"x-1.dist-info/{number}", b"")
    with pytest.raises(BuildFailed, match="too many files"):
        required_by(wheel)


def test_a_package_lock_cannot_write_into_messages() -> None:
    item = {"version": "1", "resolved": "git+ssh://\nfine", "integrity": ""}
    for path, name in (("node_modules/x\ny", ""), ("node_modules/x", "\x1b[2Jy"), ("node_modules/x", "x" * 5000)):
        lock = {"packages": {path: {**item, "name": name}}}
        with pytest.raises(InvalidManifest) as caught:
            parse_lock(json.dumps(lock).encode(), [])
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 600


def test_the_size_of_a_deep_tree_is_counted(tmp_path: Path) -> None:
    nest(tmp_path / "src", 1500)
    (tmp_path / "src" / "file").write_text("four")
    (tmp_path / "src" / "a" / "link").symlink_to("/usr")
    assert tree_size(tmp_path / "src") == len("four") + len("/usr")
