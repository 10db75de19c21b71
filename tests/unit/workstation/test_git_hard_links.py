# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of a working tree that have another name outside: their text neither gets into a repository nor is it shown."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import NotAuthorized
from mcpd.servers.workstation.git.blame import BLAME, BlameResult
from mcpd.servers.workstation.git.committing import ADD, COMMIT
from mcpd.servers.workstation.git.diff import DIFF, DiffResult
from mcpd.servers.workstation.git.stashing import STASH
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.tool import Tool

pytestmark = pytest.mark.process

SECRET = "nobody's business"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture
def made(bench: Workbench) -> MadeRepository:
    """``tracked`` has become a hard link, and ``d/new``, which is not tracked, is one; ``plain`` has changed."""
    repository = MadeRepository.make(bench.root / "project")
    files: dict[str, str | bytes] = {"tracked": "1\n", "plain": "1\n", ".gitignore": "ignored\n"}
    repository.commit(files=files)
    linked(bench, repository, "tracked")
    linked(bench, repository, "d/new")
    repository.write("plain", "2\n")
    return repository


def linked(bench: Workbench, made: MadeRepository, name: str) -> None:
    path = made.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.hardlink_to(bench.outside / "secret")


def is_taken(made: MadeRepository) -> bool:
    """Whether any object of the repository has the text."""
    objects = made.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    blobs = [line.split()[0] for line in objects.splitlines() if line.endswith(" blob")]
    return any(SECRET in made.git("cat-file", "blob", blob) for blob in blobs)


REFUSED: list[tuple[Tool, dict[str, Any], str]] = [
    (ADD, {"paths": ["tracked"]}, "tracked"),
    (ADD, {"paths": ["plain", "d"]}, "d/new"),
    (ADD, {"paths": ["d/new"], "intent_to_add": True}, "d/new"),
    (ADD, {"all": True}, "d/new, tracked"),
    (ADD, {"update": True}, "tracked"),
    (COMMIT, {"message": "Take it", "all": True}, "tracked"),
    (COMMIT, {"message": "Take it", "paths": ["tracked"]}, "tracked"),
    (COMMIT, {"message": "Take it", "paths": ["."]}, "tracked"),
    (STASH, {"action": "push"}, "tracked"),
    (STASH, {"action": "push", "include_untracked": True}, "d/new, tracked"),
]


@pytest.mark.parametrize(("tool", "arguments", "named"), REFUSED, ids=lambda each: str(getattr(each, "name", each)))
async def test_none_is_taken_in(
    bench: Workbench, made: MadeRepository, tool: Tool, arguments: dict[str, Any], named: str
) -> None:
    before = (made.status(), made.head())
    with pytest.raises(NotAuthorized, match=f"hard links in .*project: {named};.*allow_hard_links"):
        await bench.call(tool, path="project", **arguments)
    assert not is_taken(made)
    assert (made.status(), made.head()) == before
    assert (made.path / "tracked").read_text() == (bench.outside / "secret").read_text()


@pytest.mark.parametrize(("tool", "arguments", "named"), REFUSED, ids=lambda each: str(getattr(each, "name", each)))
async def test_allow_hard_links_takes_them_in(
    bench: Workbench, made: MadeRepository, tool: Tool, arguments: dict[str, Any], named: str
) -> None:
    with Workbench.of(bench, allow_hard_links=True) as other:
        await other.call(tool, path="project", **arguments)
    assert is_taken(made) or "intent_to_add" in arguments


async def test_an_ignored_one_is_not_taken_in_by_force(bench: Workbench, made: MadeRepository) -> None:
    linked(bench, made, "d/ignored")
    (made.path / "d" / "new").unlink()
    with pytest.raises(NotAuthorized, match="d/ignored"):
        await bench.call(ADD, path="project", paths=["d"], force=True)
    made.write("d/other", "1\n")
    await bench.call(ADD, path="project", paths=["d"])
    assert made.git("diff", "--cached", "--name-only") == "d/other"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
async def test_none_is_taken_in_that_git_takes_for_unchanged(bench: Workbench, made: MadeRepository, flag: str) -> None:
    made.git("update-index", flag, "tracked")
    for tool, arguments in ((COMMIT, {"message": "Take it", "paths": ["."]}), (STASH, {"action": "push"})):
        with suppress(NotAuthorized):
            await bench.call(tool, path="project", **arguments)
    assert not is_taken(made)
    assert SECRET not in (await shown(bench))[1]


async def test_other_files_are_taken_in_beside_them(bench: Workbench, made: MadeRepository) -> None:
    await bench.call(ADD, path="project", paths=["plain"])
    await bench.call(COMMIT, path="project", message="Plain")
    assert made.status() == [" M tracked", "?? d/new"]


async def test_what_has_not_changed_is_in_nobodys_way(bench: Workbench) -> None:
    made = MadeRepository.make(bench.root / "project")
    made.commit(files={"same": "1\n", "plain": "1\n"})
    (bench.root / "copy").hardlink_to(made.path / "same")
    made.write("plain", "2\n")
    await bench.call(ADD, path="project", all=True)
    await bench.call(COMMIT, path="project", message="Plain", all=True)
    made.write("plain", "3\n")
    await bench.call(STASH, path="project", action="push")
    assert made.status() == []


async def shown(bench: Workbench, **arguments: Any) -> tuple[DiffResult, str]:
    answer = await bench.call(DIFF, path="project", **arguments)
    assert isinstance(answer.result, DiffResult)
    return answer.result, answer.content[0]["text"]


@pytest.mark.parametrize("arguments", [{}, {"revision": "HEAD"}, {"paths": ["tracked", "plain"]}], ids=str)
async def test_a_patch_leaves_them_out_and_names_them(
    bench: Workbench, made: MadeRepository, arguments: dict[str, Any]
) -> None:
    result, text = await shown(bench, **arguments)
    assert result.left_out == ["tracked"]
    assert [each.path for each in result.files or ()] == ["plain"]
    assert "+2\n" in text
    assert "Left out, as they are hard links: tracked]" in text
    assert SECRET not in text
    assert SECRET not in result.model_dump_json()
    assert (await shown(bench, stat=True, **arguments))[0].left_out == ["tracked"]


async def test_a_patch_of_a_conflict_leaves_them_out(bench: Workbench, made: MadeRepository) -> None:
    made.git("reset", "--quiet", "--hard")
    made.git("switch", "--quiet", "--create", "side")
    made.commit("Side", {"plain": "side\n"})
    made.git("switch", "--quiet", "main")
    made.commit("Main", {"plain": "main\n"})
    made.git("merge", "side", check=False)
    linked(bench, made, "plain")
    result, text = await shown(bench)
    assert result.left_out == ["plain"]
    assert SECRET not in text


async def test_what_is_in_the_repository_is_shown(bench: Workbench, made: MadeRepository) -> None:
    made.git("add", "tracked")
    for arguments in ({"staged": True}, {"staged": True, "paths": ["tracked"]}):
        result, text = await shown(bench, **arguments)
        assert result.left_out is None
        assert SECRET in text
    made.commit("With it")
    for each in ({"revision": "HEAD~..HEAD"}, {"revision": "HEAD~", "to": "HEAD"}):
        result, text = await shown(bench, **each)
        assert result.left_out is None
        assert SECRET in text


async def test_a_patch_with_hard_links_allowed(bench: Workbench, made: MadeRepository) -> None:
    with Workbench.of(bench, allow_hard_links=True) as other:
        result, text = await shown(other)
    assert result.left_out is None
    assert SECRET in text


async def test_their_lines_are_blamed_on_nobody(bench: Workbench, made: MadeRepository) -> None:
    with pytest.raises(NotAuthorized, match=r"tracked; .*say revision: HEAD, or set allow_hard_links"):
        await bench.call(BLAME, path="project/tracked")
    cases: list[dict[str, Any]] = [{"path": "project/tracked", "revision": "HEAD"}, {"path": "project/plain"}]
    for arguments in cases:
        answer = await bench.call(BLAME, **arguments)
        assert isinstance(answer.result, BlameResult)
        assert [line.text for line in answer.result.lines] == ["1" if "revision" in arguments else "2"]
    with Workbench.of(bench, allow_hard_links=True) as other:
        assert SECRET in str((await other.call(BLAME, path="project/tracked")).content)


@given(name=st.binary(min_size=1, max_size=60).filter(lambda name: not {0, 47} & set(name)), tracked=st.booleans())
async def test_whatever_they_are_called(bench: Workbench, name: bytes, tracked: bool) -> None:
    made = MadeRepository.make(bench.root / "project")
    path = os.path.join(os.fsencode(made.path), name)  # noqa: PTH118 - no pathlib for bytes
    if os.path.lexists(path):
        return
    try:
        if tracked:
            with open(path, "w") as file:  # noqa: PTH123 - no pathlib for bytes
                file.write("1\n")
            made.commit()
            os.unlink(path)  # noqa: PTH108 - no pathlib for bytes
        os.link(bench.outside / "secret", path)
        with pytest.raises(NotAuthorized, match="hard links"):
            await bench.call(ADD, path="project", all=True)
        result, text = await shown(bench)
        assert len(result.left_out or ()) == tracked
        assert SECRET not in text
        assert not is_taken(made)
    finally:
        os.unlink(path)  # noqa: PTH108 - no pathlib for bytes
        made.commit()
