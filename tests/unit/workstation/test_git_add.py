# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_add."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation.git.committing import ADD, AddResult
from mcpd.servers.workstation.git.guards import named
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture
def made(bench: Workbench) -> MadeRepository:
    repository = MadeRepository.make(bench.root / "project")
    repository.commit(files={"kept": "1\n", "gone": "1\n", "changed": "1\n", ".gitignore": "ignored\n"})
    (repository.path / "gone").unlink()
    repository.write("changed", "2\n")
    repository.write("new", "3\n")
    return repository


@pytest.fixture
def empty(bench: Workbench) -> MadeRepository:
    return MadeRepository.make(bench.root / "project")


async def added(bench: Workbench, **arguments: Any) -> dict[str, str]:
    answer = await bench.call(ADD, path="project", **arguments)
    assert isinstance(answer.result, AddResult)
    return {change.path: change.status for change in answer.result.staged}


async def test_paths_are_staged_and_nothing_else(bench: Workbench, made: MadeRepository) -> None:
    assert await added(bench, paths=["new", "gone"]) == {"new": "added", "gone": "deleted"}
    assert made.status() == [" M changed", "D  gone", "A  new"]


async def test_all_stages_new_changed_and_deleted_files(bench: Workbench, made: MadeRepository) -> None:
    assert await added(bench, all=True) == {"new": "added", "gone": "deleted", "changed": "modified"}


async def test_update_leaves_new_files_out(bench: Workbench, made: MadeRepository) -> None:
    assert await added(bench, update=True) == {"gone": "deleted", "changed": "modified"}
    assert "?? new" in made.status()


async def test_an_absolute_path_and_one_below_the_repository_do(bench: Workbench, made: MadeRepository) -> None:
    made.write("deep/er/file", "x")
    assert await added(bench, paths=[str(made.path / "deep")]) == {"deep/er/file": "added"}
    answer = await bench.call(ADD, path="project/deep/er", paths=["new"])
    assert isinstance(answer.result, AddResult)
    assert [change.path for change in answer.result.staged] == ["new"]


async def test_intent_to_add_stages_no_content(bench: Workbench, made: MadeRepository) -> None:
    assert await added(bench, paths=["new"], intent_to_add=True) == {"new": "added"}
    assert made.git("diff", "--cached", "--name-only") == ""


async def test_an_ignored_file_takes_force(bench: Workbench, made: MadeRepository) -> None:
    made.write("ignored", "x")
    with pytest.raises(InvalidArgument, match="ignored by one of your"):
        await added(bench, paths=["ignored"])
    assert await added(bench, paths=["ignored"], force=True) == {"ignored": "added"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "nothing to add"),
        ({"all": True, "update": True}, "exclude each other"),
        ({"paths": [""]}, "not empty"),
        ({"paths": ["a/../b"]}, r"'\.\.'"),
        ({"paths": [".git/config"]}, r"'\.git' is refused"),
        ({"paths": ["/etc/passwd"]}, "not in the working tree"),
        ({"paths": ["new"], "other": 1}, "other"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    bench: Workbench, made: MadeRepository, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await added(bench, **arguments)


async def test_a_missing_file_is_named(bench: Workbench, made: MadeRepository) -> None:
    with pytest.raises(NotFound, match="pathspec 'nowhere' did not match any files"):
        await added(bench, paths=["nowhere"])


@pytest.mark.parametrize("name", ["*", ":(glob)**", ":!new", "-A", "--force", "a\nb", "a\tb", "ünï", "sp ace", '"q"'])
async def test_a_path_is_taken_literally(bench: Workbench, made: MadeRepository, name: str) -> None:
    with pytest.raises(McpdError):
        await added(bench, paths=[f"{name}.absent"])
    made.write(name, "x")
    assert await added(bench, paths=[name]) == {name: "added"}


@given(st.lists(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1), max_size=4))
async def test_any_name_can_be_added(bench: Workbench, empty: MadeRepository, names: list[str]) -> None:
    names = [name for name in names if len(name.encode()) < 200 and name not in {".", "..", ".git"}]
    for name in names:
        empty.write(name, "x")
    if names:
        assert set(await added(bench, paths=names)) == set(names)
    for name in set(names):
        (empty.path / name).unlink()
    (empty.path / ".git" / "index").unlink(missing_ok=True)


async def test_a_name_that_is_no_utf_8_is_staged_with_all(bench: Workbench, made: MadeRepository) -> None:
    Path(os.fsdecode(os.fsencode(made.path) + b"/\xff\xfe")).write_text("x")
    assert (await added(bench, all=True))["\ufffd\ufffd"] == "added"


async def test_no_repository_is_found_above_the_root(bench: Workbench, tmp_path: Path) -> None:
    MadeRepository.make(tmp_path)
    (bench.root / "plain").mkdir()
    with pytest.raises(NotFound, match="no git repository, looking up to the root"):
        await bench.call(ADD, path="plain", all=True)


async def test_a_repository_outside_is_refused(bench: Workbench) -> None:
    MadeRepository.make(bench.outside)
    with pytest.raises(NotAuthorized):
        await bench.call(ADD, path=str(bench.outside), all=True)


async def test_a_bare_repository_has_nothing_to_add(bench: Workbench) -> None:
    MadeRepository.make(bench.root / "bare", "--bare")
    with pytest.raises(InvalidArgument, match="bare"):
        await bench.call(ADD, path="bare", all=True)


async def test_a_file_outside_that_a_symlink_leads_to_is_not_read(bench: Workbench, made: MadeRepository) -> None:
    (made.path / "link").symlink_to(bench.outside / "secret")
    (made.path / "way").symlink_to(bench.outside)
    assert await added(bench, paths=["link"]) == {"link": "added"}
    assert "nobody" not in made.git("show", ":link")
    with pytest.raises(InvalidArgument, match="beyond a symbolic link"):
        await added(bench, paths=["way/secret"])


async def test_only_the_commit_of_a_submodule_is_staged(bench: Workbench) -> None:
    source = MadeRepository.make(bench.root / "source")
    first = source.commit(files={"a": "1\n"})
    made = MadeRepository.make(bench.root / "project")
    made.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source.path), "sub ünï")
    made.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source.path), "other")
    made.commit()
    submodule = MadeRepository(made.path / "sub ünï")
    submodule.write("a", "2\n")
    made.write("file", "x")
    assert await added(bench, all=True) == {"file": "added"}
    submodule.git("-c", "user.name=x", "-c", "user.email=y", "commit", "--quiet", "-am", "Next")
    assert await added(bench, paths=["sub ünï", "other"]) == {"sub ünï": "modified"}
    assert made.git("rev-parse", ":sub ünï") == submodule.head() != first


async def test_a_submodule_that_is_gone_is_staged_as_that(bench: Workbench, made: MadeRepository) -> None:
    MadeRepository.make(made.path / "sub").commit()
    made.git("-c", "advice.addEmbeddedRepo=false", "add", "sub")
    made.git("commit", "--quiet", "-m", "Submodule")
    shutil.rmtree(made.path / "sub")
    assert await added(bench, paths=["new"], intent_to_add=True) == {"new": "added"}
    assert (await added(bench, all=True))["sub"] == "deleted"


def test_names_of_submodules_are_found_in_any_spelling() -> None:
    text = b'[submodule "a"]\npath=x\n'
    text += b'[ SubModule "b \\"q\\" \\\\"]\n[submodule.C]\n#[submodule "d"]\n[submodule\t"e"] path=x'
    assert named(text) == {"a", 'b "q" \\', "c", "d", "e"}
