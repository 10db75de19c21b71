# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Job over real jobs, and the client that follows one."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd import errors
from mcpd.bus.client import variant
from mcpd.bus.names import JOB, MANAGER, PROPERTIES, ROOT
from mcpd.install.job import JobKind, JobState
from tests.bus.harness import next_signal

if TYPE_CHECKING:
    from mcpd.bus.client import Client
    from mcpd.bus.core import Core
    from mcpd.install.job import Job


class Work:
    """A job that does what the test says."""

    def __init__(self, core: Core, kind: JobKind = JobKind.INSTALL, uid: int | None = None) -> None:
        self.go_on = asyncio.Event()
        self.failure: errors.McpdError | None = None
        self.job: Job = core.installer.jobs.start(kind, ["x"], os.getuid() if uid is None else uid, self._work)
        self.path = f"/org/mcpd/Mcp1/job/{self.job.number}"

    async def _work(self, job: Job) -> None:
        job.enter(JobState.FETCHING)
        await self.go_on.wait()
        if self.failure:
            raise self.failure


async def test_a_job_ends_with_finished_and_jobremoved(core: Core, client: Client) -> None:
    async with client.signals() as signals:
        work = Work(core)
        properties = await client.job(work.path).properties()
        assert (properties["Kind"], properties["ServerId"], properties["OwnerUid"]) == ("install", "x", os.getuid())
        assert (properties["Progress"], properties["Needs"], properties["Id"]) == (101, [], work.job.number)
        work.failure = errors.BuildFailed("it did not build")
        work.go_on.set()
        finished = await next_signal(signals, "Finished")
        removed = await next_signal(signals, "JobRemoved")
    error = "org.mcpd.Mcp1.Error.BuildFailed"
    assert (finished.path, finished.interface, finished.args) == (work.path, JOB, ["failed", error, "it did not build"])
    assert (removed.path, removed.interface) == (ROOT, MANAGER)
    assert removed.args == [work.path, "failed", error, "it did not build"]
    assert (await client.job(work.path).properties())["State"] == "failed", "it stays to be looked at"


async def test_a_client_that_polls_learns_why_a_job_failed(core: Core, client: Client) -> None:
    work = Work(core)
    before = await client.job(work.path).properties()
    assert [before[name] for name in ("Error", "Message", "Detail")] == ["", "", ""]
    async with client.signals(path=work.path, interface=PROPERTIES) as signals:
        work.failure = errors.Unhealthy("x does not work\nIts last output on stderr:\nno\0 such file")
        work.go_on.set()
        while (changed := (await next_signal(signals, "PropertiesChanged")).args[1])["State"] != "failed":
            pass
    after = await client.job(work.path).properties()
    said = {
        "Error": "org.mcpd.Mcp1.Error.Unhealthy",
        "Message": "x does not work",
        "Detail": "Its last output on stderr:\nno\ufffd such file",
    }
    assert said.items() <= after.items()
    assert said.items() <= changed.items()


async def test_a_job_that_is_done_has_no_error(core: Core, client: Client) -> None:
    work = Work(core)
    work.go_on.set()
    await work.job.wait()
    after = await client.job(work.path).properties()
    assert [after[name] for name in ("State", "Error", "Message", "Detail")] == ["done", "", "", ""]


async def test_a_job_tells_how_long_it_was_in_each_state(core: Core, client: Client) -> None:
    work = Work(core)
    assert "done" not in (await client.job(work.path).properties())["Durations"]
    work.go_on.set()
    await work.job.wait()
    durations = (await client.job(work.path).properties())["Durations"]
    assert durations
    assert all(seconds >= 0 for seconds in durations.values())
    assert "done" not in durations


async def test_changes_of_a_job_are_collected_but_not_its_states(core: Core, client: Client) -> None:
    async with client.signals(interface=PROPERTIES) as signals:
        work = Work(core)
        await client.job(work.path).properties()
        for percent in range(1, 100):
            work.job.advance(percent)
        work.job.enter(JobState.BUILDING)
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1].get("State") != "building":
            seen.append((await next_signal(signals, "PropertiesChanged")).args[1])
        work.go_on.set()
    assert len(seen) < 10
    assert [s["Progress"] for s in seen if "Progress" in s] == sorted(s["Progress"] for s in seen if "Progress" in s)
    assert seen[-1]["Progress"] == 99


@pytest.mark.parametrize(
    ("options", "message"), [({}, "x: there is nothing to roll back to"), ({"generation": 7}, "x: no generation 7")]
)
async def test_no_job_is_begun_where_there_is_nothing_to_go_back_to(
    core: Core, client: Client, options: dict[str, int], message: str
) -> None:
    given = {key: variant(number, "u") for key, number in options.items()}
    with pytest.raises(errors.NotFound, match=message):
        await client.manager.call("Rollback", "sa{sv}", ["x", given])
    assert core.installer.jobs.list() == []


async def test_a_job_is_cancelled_over_the_bus(core: Core, client: Client) -> None:
    work = Work(core)
    await client.job(work.path).call("Cancel", "a{sv}", [{}])
    await work.job.wait()
    assert work.job.state is JobState.CANCELLED


async def test_the_client_follows_a_job_to_its_end(core: Core, client: Client, monkeypatch: Any) -> None:
    works: list[Work] = []

    def refresh(_uid: int) -> Job:
        works.append(Work(core, JobKind.REFRESH))
        return works[-1].job

    monkeypatch.setattr(core.installer, "refresh", refresh)
    states: list[str] = []

    def on_change(_job: Any, properties: dict[str, Any]) -> None:
        states.append(properties["State"])
        works[0].go_on.set()

    result = await client.run_job("Refresh", "a{sv}", [{}], on_change=on_change)
    assert result == ("done", "", "")
    assert states[-1] == "done"


async def test_the_catalog_is_searched_beside_the_loop(core: Core, client: Client, monkeypatch: Any) -> None:
    threads: list[int] = []

    def find(server_id: str, _source: str) -> None:
        threads.append(threading.get_ident())
        raise errors.NotFound(f"no source offers {server_id}")

    def offers(_ids: Any) -> dict[str, list[Any]]:
        threads.append(threading.get_ident())
        return {}

    monkeypatch.setattr(core.catalog, "find", find)
    monkeypatch.setattr(core.catalog, "offers", offers)
    with pytest.raises(errors.NotFound, match="no source offers other"):
        await client.manager.call("Install", "sa{sv}", ["other", {}])
    await client.manager.call("Update", "asa{sv}", [["x"], {}])
    assert len(threads) >= 2
    assert threading.get_ident() not in threads
