# SPDX-License-Identifier: LGPL-2.1-or-later
"""What belongs to git is not changed, whatever it is called and however the client has narrowed the roots."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import NotAuthorized
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.jail import Jail

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """A root."""
    with Workbench(tmp_path) as made:
        yield made


def git(*arguments: object) -> None:
    subprocess.run(["git", *map(str, arguments)], check=True, capture_output=True)


def assert_refused(jail: Jail, *paths: str) -> None:
    for path in paths:
        with pytest.raises(NotAuthorized, match="belongs to git; use the git tools"), jail.parent(jail.place(path)):
            pass


def assert_allowed(jail: Jail, *paths: str) -> None:
    for path in paths:
        with jail.parent(jail.place(path)):
            """It may be changed."""


@pytest.mark.parametrize("inner", [".git", ".git/hooks", ".git/refs/heads", "link", "link/heads"])
def test_a_root_of_the_client_within_dot_git_opens_nothing(bench: Workbench, inner: str) -> None:
    git("init", "-q", bench.root)
    (bench.root / "link").symlink_to(".git/refs")
    jail = bench.roots_found.narrowed([(bench.root / inner).as_uri()])
    assert len(jail.roots) == 1
    assert_refused(jail, "pre-commit", "config")


def test_a_root_of_the_client_beside_dot_git_is_changed(bench: Workbench) -> None:
    git("init", "-q", bench.root)
    (bench.root / "src" / "deep").mkdir(parents=True)
    assert_allowed(bench.roots_found.narrowed([(bench.root / "src").as_uri()]), "file", "deep/file")


def test_files_of_a_bare_repository_are_refused(bench: Workbench) -> None:
    git("init", "-q", "--bare", bench.root / "some" / "bare")
    jail = bench.jail
    assert_refused(
        jail, "some/bare/config", "some/bare/HEAD", "some/bare/hooks/pre-commit", "some/bare/refs/heads/main"
    )
    assert_allowed(jail, "some/file", "file")
    for inner in ("some/bare", "some/bare/hooks"):
        assert_refused(bench.roots_found.narrowed([(bench.root / inner).as_uri()]), "config", "pre-receive")


def test_files_of_a_bare_repository_that_is_a_root_are_refused(bench: Workbench) -> None:
    git("init", "-q", "--bare", bench.root)
    assert_refused(bench.jail, "config", "hooks/update", "new")


def test_separate_git_directories(bench: Workbench) -> None:
    git("init", "-q", "--separate-git-dir", bench.root / "kept", bench.root / "project")
    (bench.root / "link").symlink_to("kept/hooks")
    assert_refused(bench.jail, "kept/config", "link/pre-commit", "project/.git")
    assert_allowed(bench.jail, "project/file")


@pytest.mark.parametrize("last", ["HEAD", "objects", "refs"])
def test_no_repository_is_made_of_single_files(bench: Workbench, last: str) -> None:
    for name in {"HEAD", "objects", "refs"} - {last}:
        assert_allowed(bench.jail, name)
        (bench.root / name).mkdir()
    assert_refused(bench.jail, last)
    assert_allowed(bench.jail, "file")


def test_a_deep_directory(bench: Workbench) -> None:
    deep = "/".join("d" * 200)
    (bench.root / deep).mkdir(parents=True)
    assert_allowed(bench.jail, f"{deep}/file")
