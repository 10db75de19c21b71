# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs by themselves: numbers, limits, listeners, ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import (
    Busy,
    ConfigMissing,
    InvalidArgument,
    InvalidConfig,
    LimitExceeded,
    McpdError,
    NotFound,
    Unhealthy,
)
from mcpd.install import job as job_module
from mcpd.install import job as jobs_module
from mcpd.install.job import Job, JobEvent, JobKind, Jobs, JobState, Need, PlanItem
from mcpd.install.options import Answers
from mcpd.journal import JOB_FINISHED
from mcpd.model import Manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def jobs() -> AsyncIterator[Jobs]:
    made = Jobs()
    yield made
    await made.close()


async def forever(_: Job) -> None:
    await asyncio.Event().wait()


async def nothing(_: Job) -> None:
    return


async def test_numbers_are_unique_and_jobs_are_found(jobs: Jobs) -> None:
    started = [jobs.start(JobKind.INSTALL, [f"s{n}"], 0, nothing) for n in range(3)]
    assert [job.number for job in started] == [1, 2, 3]
    assert jobs.get(2) is started[1]
    assert jobs.list() == started
    with pytest.raises(NotFound, match="no job 9"):
        jobs.get(9)


async def test_an_id_has_one_unfinished_job(jobs: Jobs) -> None:
    first = jobs.start(JobKind.UPDATE, ["a", "b"], 0, nothing)
    with pytest.raises(Busy, match="working on b"):
        jobs.start(JobKind.INSTALL, ["b", "c"], 0, nothing)
    await first.wait()
    jobs.start(JobKind.INSTALL, ["b"], 0, nothing)


async def test_jobs_of_one_user_are_limited(jobs: Jobs) -> None:
    for number in range(jobs_module.MAX_JOBS_PER_UID):
        jobs.start(JobKind.INSTALL, [f"s{number}"], 7, forever)
    with pytest.raises(LimitExceeded, match="user 7"):
        jobs.start(JobKind.INSTALL, ["more"], 7, nothing)
    await jobs.start(JobKind.INSTALL, ["more"], 8, nothing).wait()


async def test_a_finished_job_stays_for_a_while(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = asyncio.Event()
    jobs.subscribe(lambda event: removed.set() if event.kind == "removed" else None)
    job = jobs.start(JobKind.INSTALL, ["a"], 0, nothing)
    await job.wait()
    assert jobs.get(job.number) is job
    monkeypatch.setattr(jobs_module, "LINGER", 0.01)
    other = jobs.start(JobKind.INSTALL, ["b"], 0, nothing)
    await removed.wait()
    assert jobs.list() == [job]
    assert other.state is JobState.DONE


async def test_a_finished_job_stays_for_a_minute(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    removed: list[Job] = []
    jobs.subscribe(lambda event: removed.append(event.job) if event.kind == "removed" else None)
    job = jobs.start(JobKind.INSTALL, ["a"], 0, nothing)
    await job.wait()
    ahead = 59.0
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert jobs.list() == [job]
    ahead = 61.0
    while not removed:
        await asyncio.sleep(0)
    assert jobs.list() == []


async def test_finished_jobs_of_one_user_are_limited(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_FINISHED_PER_UID", 2)
    other = jobs.start(JobKind.REFRESH, [], 8, nothing)
    await other.wait()
    mine = [jobs.start(JobKind.REFRESH, [], 7, nothing) for _ in range(4)]
    for job in mine:
        await job.wait()
    assert jobs.list() == [other, *mine[2:]]


async def test_progress_never_falls_and_ends_at_100(jobs: Jobs) -> None:
    seen: list[int] = []

    def note(event: JobEvent) -> None:
        if "progress" in event.changed:
            seen.append(event.job.progress)

    async def work(job: Job) -> None:
        for percent in (10.5, 5, 60, 59, 250):
            job.advance(percent)

    jobs.subscribe(note)
    job = jobs.start(JobKind.INSTALL, ["a"], 0, work)
    assert job.progress == 101
    await job.wait()
    assert seen == [10, 60, 99, 100]


async def test_of_several_the_server_at_work_is_named(jobs: Jobs) -> None:
    seen: list[tuple[str, int]] = []

    def note(event: JobEvent) -> None:
        if "server_id" in event.changed:
            seen.append((event.job.server_id, len(event.job.plan)))

    async def work(job: Job) -> None:
        for index, server_id in enumerate(job.server_ids):
            job.begin_part(index, len(job.server_ids), server_id)
            job.show_plan([PlanItem("command", "x")])

    jobs.subscribe(note)
    one, two = (jobs.start(JobKind.UPDATE, found, 0, work) for found in (["a"], ["b", "c"]))
    await one.wait()
    await two.wait()
    assert (one.server_id, two.server_id) == ("a", "")
    assert seen == [("b", 0), ("c", 0), ("", 1)]


async def test_a_failure_is_the_jobs_error(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    async def unhealthy(_: Job) -> None:
        raise Unhealthy("no answer")

    async def broken(_: Job) -> None:
        raise ZeroDivisionError("secret detail")

    failed, fault = jobs.start(JobKind.INSTALL, ["a"], 0, unhealthy), jobs.start(JobKind.INSTALL, ["b"], 0, broken)
    await failed.wait()
    await fault.wait()
    assert failed.state is fault.state is JobState.FAILED
    assert isinstance(failed.error, Unhealthy)
    assert type(fault.error) is McpdError
    assert "secret detail" not in fault.error.message
    assert "secret detail" in caplog.text


async def test_cancelling_twice_or_after_the_end_changes_nothing(jobs: Jobs) -> None:
    job = jobs.start(JobKind.INSTALL, ["a"], 0, forever)
    await asyncio.sleep(0)
    job.cancel()
    job.cancel()
    await job.wait()
    assert job.state is JobState.CANCELLED
    job.cancel()
    assert job.state is JobState.CANCELLED


async def test_close_ends_every_job_and_takes_no_more(jobs: Jobs) -> None:
    started = [jobs.start(JobKind.INSTALL, [f"s{n}"], 0, forever) for n in range(3)]
    await jobs.close()
    assert {job.state for job in started} == {JobState.CANCELLED}
    with pytest.raises(Busy):
        jobs.start(JobKind.INSTALL, ["a"], 0, nothing)


async def test_a_listener_that_fails_stops_nobody(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    kinds: list[str] = []

    def broken(_: JobEvent) -> None:
        raise RuntimeError("listener")

    jobs.subscribe(broken)
    end = jobs.subscribe(lambda event: kinds.append(event.kind))
    await jobs.start(JobKind.INSTALL, ["a"], 0, nothing).wait()
    assert kinds == ["added", "changed", "finished"]
    assert "a listener failed" in caplog.text
    end()
    end()
    await jobs.start(JobKind.INSTALL, ["b"], 0, nothing).wait()
    assert len(kinds) == 3


async def test_an_unanswered_question_ends_the_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "ANSWER_TIMEOUT", 0.01)
    job = jobs.start(JobKind.INSTALL, ["a"], 0, lambda job: job.ask_consent([Need("permission", "network")]))
    await job.wait()
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert "network" in job.error.message


async def reach(job: Job, state: JobState) -> None:
    while job.state is not state:
        await asyncio.sleep(0)


async def test_values_are_checked_and_forgotten(jobs: Jobs) -> None:
    properties = [
        {"key": "token", "sensitive": True, "required": True},
        {"key": "size", "type": "integer", "required": True},
    ]
    manifest = Manifest.parse({"id": "a", "configurableProperties": properties}, "test")
    answers = Answers(manifest)
    job = jobs.start(JobKind.INSTALL, ["a"], 0, lambda job: job.ask_config(), answers)
    await reach(job, JobState.NEEDS_CONFIG)
    with pytest.raises(ConfigMissing, match="token, size"):
        job.proceed()
    with pytest.raises(InvalidConfig):
        job.set_config({"size": "big"})
    with pytest.raises(InvalidConfig):
        job.set_secret("size", "3")
    job.set_secret("token", "t")
    job.set_secret("token", "")
    assert [need.key for need in job.needs] == ["token", "size"]
    job.set_secret("token", "t")
    job.set_config({"size": "3"})
    assert answers.given() == {"token": "t", "size": 3}
    await job.wait()
    assert job.state is JobState.DONE
    assert answers.given() == {}
    with pytest.raises(InvalidArgument):
        job.set_config({"size": 4})


async def test_a_job_without_a_server_takes_no_values(jobs: Jobs) -> None:
    job = jobs.start(JobKind.REFRESH, [], 0, forever)
    assert job.server_id == ""
    with pytest.raises(InvalidArgument):
        job.set_config({"a": 1})


async def test_the_end_of_a_job_is_logged_with_fields(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Job) -> None:
        raise Unhealthy("it does not answer")

    caplog.set_level("INFO")
    await jobs.start(JobKind.INSTALL, ["x"], 1000, fail).wait()
    await jobs.start(JobKind.REFRESH, [], 0, nothing).wait()
    ends = [vars(record) | {"text": record.message} for record in caplog.records]
    assert [end["text"] for end in ends] == [
        "Job 1 (install x) of uid 1000: failed: it does not answer",
        "Job 2 (refresh) of uid 0: done",
    ]
    assert all(end["MESSAGE_ID"] == JOB_FINISHED for end in ends)
    assert [(end["MCP_JOB_ID"], end["MCP_SERVER_ID"], end["CALLER_UID"]) for end in ends] == [
        (1, "x", 1000),
        (2, None, 0),
    ]
