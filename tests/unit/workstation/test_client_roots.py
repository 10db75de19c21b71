# SPDX-License-Identifier: LGPL-2.1-or-later
"""When the client is asked for its roots, and what becomes of those who wait for the answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import NotAuthorized
from mcpd.servers.workstation import roots as roots_module
from mcpd.servers.workstation.roots import ClientRoots
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """Two roots, in the first a project."""
    with Workbench(tmp_path, roots=2) as made:
        (made.root / "project").mkdir()
        yield made


async def test_the_client_is_asked_once_and_again_after_a_change(bench: Workbench) -> None:
    found = ClientRoots(bench.roots_found)
    asked = 0

    async def ask() -> list[str]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return [(bench.root / "project").as_uri()]

    jails = await asyncio.gather(*(found.jail(ask) for _ in range(5)))
    assert asked == 1
    assert {jail.roots[0].path for jail in jails} == {f"{bench.root}/project"}
    found.changed()
    await found.jail(ask)
    assert asked == 2


async def test_an_answer_from_before_a_change_is_not_used(bench: Workbench) -> None:
    found = ClientRoots(bench.roots_found)
    answers = [bench.roots[1].as_uri(), (bench.root / "project").as_uri()]

    async def ask() -> list[str]:
        if len(answers) == 2:
            found.changed()
        return [answers.pop(0)]

    assert (await found.jail(ask)).roots[0].path == f"{bench.root}/project"


async def test_a_client_that_does_not_say_gets_nothing(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots_module, "PATIENCE", 0.01)

    async def ask() -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(NotAuthorized, match="has not said"):
        await ClientRoots(bench.roots_found).jail(ask)


async def test_all_who_wait_for_a_client_that_does_not_say_end_together(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots_module, "PATIENCE", 0.05)
    found = ClientRoots(bench.roots_found)
    asked = 0

    async def ask() -> list[str]:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return []

    results = await asyncio.gather(*(found.jail(ask) for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in results] == [NotAuthorized] * 5
    assert asked == 1
    with pytest.raises(NotAuthorized):
        await found.jail(ask)
    assert asked == 2


async def test_who_gives_up_takes_the_answer_from_nobody(bench: Workbench) -> None:
    found = ClientRoots(bench.roots_found)
    said = asyncio.Event()

    async def ask() -> list[str]:
        await said.wait()
        return [(bench.root / "project").as_uri()]

    first, second = (asyncio.create_task(found.jail(ask)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    said.set()
    assert (await second).roots[0].path == f"{bench.root}/project"


async def test_a_client_whose_roots_change_all_the_time_is_not_asked_for_ever(bench: Workbench) -> None:
    found = ClientRoots(bench.roots_found)

    async def ask() -> list[str]:
        found.changed()
        return []

    with pytest.raises(NotAuthorized, match="change faster"):
        await found.jail(ask)


async def test_a_project_that_is_made_again_is_found_again(bench: Workbench) -> None:
    found = ClientRoots(bench.roots_found)

    async def ask() -> list[str]:
        return [(bench.root / "project").as_uri()]

    await found.jail(ask)
    (bench.root / "project").rmdir()
    (bench.root / "project").mkdir()
    jail = await found.jail(ask)
    jail.check_root("file")
    assert [root.path for root in jail.roots] == [f"{bench.root}/project"]
