# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is installed, compared with what was recorded of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import IntegrityMismatch, InvalidManifest
from mcpd.install.health import Protocol
from mcpd.install.lockfile import LOCK_FILE, read_lock, record_protocol, write_lock
from mcpd.install.sources.base import LockedFile, Outcome
from mcpd.install.verification import LIST, MAX_SHOWN, record, verify
from mcpd.model import Entry, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENTRY = Entry.parse(
    {"id": "a", "source": {"type": "git", "url": "https://me:hush@h.test/x"}, "more": ["https://u:hush@h.test"]}, "test"
)
MANIFEST = Manifest.parse(
    {"id": "a", "transports": [{"type": "stdio", "command": "run"}], "origin": {"registry": "", "pinned": False}},
    "test",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A generation as it is after its activation."""
    root = tmp_path / "generation"
    (root / "lib/deep").mkdir(parents=True)
    (root / "lib/deep/code.py").write_text("code\n")
    (root / "lib.py").write_text("more\n")
    (root / "lib/manifest.json").write_text("not ours\n")
    (root / "run").symlink_to("lib/deep/code.py")
    (root / "-odd \nname%20\udcff").write_text("x")
    for path in (root, root / "lib", root / "lib/deep"):
        path.chmod(0o755)
    write_lock(root, ENTRY, Outcome(), registry="", verified="ours", content="1-x")
    record(root, MANIFEST)
    document = {**MANIFEST.to_json(), "scope": "user", "installDir": "/x", "config": {"key": 1}}
    (root / "manifest.json").write_text(json.dumps(document))
    record_protocol(root, Protocol("2025-11-25", modern=False))
    return root


def test_a_lock_file_that_cannot_be_read_is_not_written_over(root: Path) -> None:
    for text in ("{", "[]"):
        (root / LOCK_FILE).write_text(text)
        with pytest.raises(InvalidManifest):
            record_protocol(root, Protocol("2025-11-25", modern=True))
        assert (root / LOCK_FILE).read_text() == text


def test_what_was_installed_verifies_again_and_again(root: Path) -> None:
    assert verify(root) == []
    document = json.loads((root / "manifest.json").read_text())
    document |= {"config": {"key": 2}, "origin": {"registry": "", "pinned": True}}
    (root / "manifest.json").write_text(json.dumps(document, indent=3))
    assert verify(root) == []
    tree = read_lock(root)["tree"]
    assert tree["files"] == 4
    assert tree["bytes"] == len("code\nmore\nnot ours\nx")


CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "content": (lambda root: (root / "lib.py").write_text("evil\n"), ["changed: lib.py"]),
    "mode": (lambda root: (root / "lib.py").chmod(0o777), ["changed: lib.py"]),
    "directory-mode": (lambda root: (root / "lib").chmod(0o777), ["changed: lib"]),
    "missing": (lambda root: (root / "lib/deep/code.py").unlink(), ["missing: lib/deep/code.py"]),
    "added": (lambda root: (root / "lib/a.py").write_text(""), ["added: lib/a.py"]),
    "link": (
        lambda root: ((root / "run").unlink(), (root / "run").symlink_to("/usr/bin/env")),
        ["changed: run"],
    ),
    "file-for-link": (
        lambda root: ((root / "run").unlink(), (root / "run").write_text("code\n")),
        ["changed: run"],
    ),
    "pipe": (lambda root: ((root / "lib.py").unlink(), os.mkfifo(root / "lib.py")), ["changed: lib.py"]),
    "renamed": (
        lambda root: (root / "lib/deep").rename(root / "lib/deer"),
        ["missing: lib/deep", "missing: lib/deep/code.py", "added: lib/deer", "added: lib/deer/code.py"],
    ),
    "manifest": (
        lambda root: (root / "manifest.json").write_text(json.dumps({**MANIFEST.to_json(), "transports": []})),
        ["changed: manifest.json"],
    ),
    "broken-manifest": (lambda root: (root / "manifest.json").write_text("{"), ["changed: manifest.json"]),
    "no-manifest": (lambda root: (root / "manifest.json").unlink(), ["missing: manifest.json"]),
    "list": (
        lambda root: (root / LIST).write_text(""),
        [f"changed: {LIST}, so the other files could not be verified"],
    ),
    "no-list": (
        lambda root: (root / LIST).unlink(),
        [f"changed: {LIST}, so the other files could not be verified"],
    ),
    "link-for-list": (
        lambda root: ((root / LIST).rename(root.parent / "list"), (root / LIST).symlink_to(root.parent / "list")),
        [f"changed: {LIST}, so the other files could not be verified"],
    ),
    "pipe-for-list": (
        lambda root: ((root / LIST).unlink(), os.mkfifo(root / LIST)),
        [f"changed: {LIST}, so the other files could not be verified"],
    ),
    "odd-name": (
        lambda root: (root / "-odd \nname%20\udcff").write_text("y"),
        ["changed: '-odd \\nname%20\\udcff'"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_named(root: Path, change: str) -> None:
    CHANGES[change][0](root)
    assert verify(root) == CHANGES[change][1]


@pytest.mark.parametrize("lock", ["", "{", "[]", "{}", '{"tree": 1}', '{"tree": {"sha256": 1}}'])
def test_without_a_record_nothing_can_be_told(root: Path, lock: str) -> None:
    (root / LOCK_FILE).write_text(lock)
    with pytest.raises(IntegrityMismatch, match=r"\.mcpd-lock\.json is missing"):
        verify(root)
    (root / LOCK_FILE).unlink()
    os.mkfifo(root / LOCK_FILE)
    with pytest.raises(IntegrityMismatch):
        verify(root)


def test_many_differences_are_counted(root: Path) -> None:
    for number in range(MAX_SHOWN + 1200):
        (root / f"added{number:05}").write_text("")
    found = verify(root)
    assert len(found) == MAX_SHOWN + 1
    assert found[-1] == "and 1,200 more"


def test_a_package_cannot_bring_its_own_record(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    root = tmp_path / "generation"
    root.mkdir()
    for name in (LIST, LOCK_FILE):
        (root / name).symlink_to(victim)
    write_lock(root, ENTRY, Outcome(), registry="")
    record(root)
    assert victim.read_text() == "precious"
    assert verify(root) == []


def test_the_lock_file_tells_what_the_entry_was_without_credentials(tmp_path: Path) -> None:
    outcome = Outcome(resolved={"rev": "f" * 40}, files=(LockedFile("a", "1", "sha256:x"),))
    write_lock(tmp_path, ENTRY, outcome, registry="https://u:hush@registry.test", verified="ours", content="1-x")
    found = read_lock(tmp_path)
    assert "hush" not in (tmp_path / LOCK_FILE).read_text()
    assert found["entry"] == {**ENTRY.to_json(), "source": found["source"], "more": ["https://h.test"]}
    assert found["source"] == {"type": "git", "url": "https://h.test/x"}
    assert (found["registry"], found["verified"], found["content"]) == ("https://registry.test", "ours", "1-x")


names = st.binary(min_size=1, max_size=12).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in {b".", b".."}
)


@given(st.lists(names, max_size=12, unique=True), st.data())
def test_names_of_any_bytes_are_told_apart(
    tmp_path_factory: pytest.TempPathFactory, found: list[bytes], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("names")
    write_lock(root, ENTRY, Outcome(), registry="")
    for number, name in enumerate(found):
        path = os.path.join(os.fsencode(root), name)  # noqa: PTH118 - bytes
        if number % 3:
            with open(path, "wb") as file:  # noqa: PTH123 - bytes
                file.write(name)
        else:
            os.mkdir(path)  # noqa: PTH102 - bytes
    record(root)
    assert verify(root) == []
    files = [name for number, name in enumerate(found) if number % 3]
    if files:
        gone = data.draw(st.sampled_from(files))
        os.unlink(os.path.join(os.fsencode(root), gone))  # noqa: PTH108, PTH118 - bytes
        assert [line.partition(":")[0] for line in verify(root)] == ["missing"]
