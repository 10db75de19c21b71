# SPDX-License-Identifier: LGPL-2.1-or-later
"""No launch before the sandbox is found to confine, and none if it does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import SandboxUnavailable
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.self_check import GatedLauncher
from tests.sandbox.world import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcpd.runtime.launch import Launcher, LaunchSpec
    from tests.sandbox.world import World

pytestmark = pytest.mark.process


class Verdict:
    """What the check finds, once it is allowed to come to an end."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.looked: list[Launcher] = []
        self.told = 0

    async def __call__(self, launcher: Launcher) -> None:
        self.looked.append(launcher)
        await self.may_end.wait()
        if self.error is not None:
            raise self.error

    def on_told(self) -> None:
        self.told += 1


@pytest.fixture
async def verdict() -> Verdict:
    return Verdict()


@pytest.fixture
async def gate(verdict: Verdict) -> AsyncIterator[GatedLauncher]:
    made = GatedLauncher(PlainLauncher(), verdict)
    yield made
    await made.close()


def spec(world: World) -> LaunchSpec:
    world.install("server", "import sys; sys.stdin.read()")
    made: Any = world.sessions()._spec("server", {})[0]
    return made


async def launched(gate: GatedLauncher, world: World) -> int:
    client = Client()
    try:
        leash = await gate.launch(spec(world), client.fds)
        return (await leash.stop()).code
    finally:
        client.close()


async def test_a_launch_waits_for_the_check(gate: GatedLauncher, verdict: Verdict, world: World) -> None:
    assert gate.name == "plain"
    verdict.may_end.clear()
    gate.check(verdict.on_told)
    waiting = asyncio.create_task(launched(gate, world))
    await asyncio.wait([waiting], timeout=0.3)
    assert not waiting.done()
    assert gate.checking
    verdict.may_end.set()
    assert await waiting == 143
    assert (gate.checking, gate.problem, verdict.told) == (False, "", 1)
    assert [launcher.name for launcher in verdict.looked] == ["plain"]


@pytest.mark.parametrize(
    ("error", "said"), [(SandboxUnavailable("no bwrap"), "no bwrap"), (ZeroDivisionError("x"), "internal error")]
)
async def test_nothing_starts_after_a_check_that_failed(
    gate: GatedLauncher, verdict: Verdict, world: World, error: Exception, said: str
) -> None:
    verdict.error = error
    gate.check(verdict.on_told)
    with pytest.raises(SandboxUnavailable, match=said):
        await launched(gate, world)
    assert said in gate.problem
    verdict.error = None
    gate.check(verdict.on_told)
    assert await launched(gate, world) == 143
    assert (gate.problem, verdict.told) == ("", 2)


async def test_nothing_starts_without_a_check(gate: GatedLauncher, world: World) -> None:
    with pytest.raises(SandboxUnavailable, match="not checked"):
        await launched(gate, world)


async def test_a_launch_waits_for_the_check_that_replaces_one(
    gate: GatedLauncher, verdict: Verdict, world: World
) -> None:
    verdict.may_end.clear()
    gate.check(verdict.on_told)
    waiting = asyncio.create_task(launched(gate, world))
    await asyncio.sleep(0)
    gate.check(verdict.on_told)
    verdict.error = SandboxUnavailable("it got worse")
    verdict.may_end.set()
    with pytest.raises(SandboxUnavailable, match="it got worse"):
        await waiting


async def test_a_launch_is_not_left_waiting_at_the_end(gate: GatedLauncher, verdict: Verdict, world: World) -> None:
    verdict.may_end.clear()
    gate.check(verdict.on_told)
    waiting = asyncio.create_task(launched(gate, world))
    await asyncio.sleep(0)
    await gate.close()
    with pytest.raises(SandboxUnavailable, match="not checked"):
        await waiting
