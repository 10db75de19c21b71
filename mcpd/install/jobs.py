# SPDX-License-Identifier: LGPL-2.1-or-later
"""All jobs of this process: numbered, limited, one per server at a time (design §4, §7)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import Busy, LimitExceeded, NotFound
from mcpd.install.answers import Answers
from mcpd.install.job import Job, JobEvent, JobKind
from mcpd.journal import JOB_FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

MAX_JOBS_PER_UID: Final = 16
"""Unfinished jobs of one user."""
LINGER: Final = 60.0
"""Seconds that a finished job stays listed, so that clients which poll learn how it ended."""
MAX_FINISHED_PER_UID: Final = 256
"""Finished jobs of one user that stay listed; of more the oldest go earlier."""

log = logging.getLogger(__name__)


class Jobs:
    """Starts jobs, lists them, tells listeners about them and ends them with the process."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._listeners: list[Callable[[JobEvent], None]] = []
        self._removals: dict[int, asyncio.TimerHandle] = {}
        self._closed = False

    def list(self) -> list[Job]:
        """Every job that is unfinished or finished less than :data:`LINGER` ago, oldest first."""
        return list(self._jobs.values())

    def get(self, number: int) -> Job:
        """The job *number*; :class:`~mcpd.errors.NotFound` if it is not listed (any more)."""
        try:
            return self._jobs[number]
        except KeyError:
            raise NotFound(f"there is no job {number}; a finished job is forgotten after {LINGER:.0f} s") from None

    def subscribe(self, listener: Callable[[JobEvent], None]) -> Callable[[], None]:
        """Call *listener* with every :class:`JobEvent` until the returned function is called."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def check_free(self, server_ids: Collection[str]) -> None:
        """Raise :class:`~mcpd.errors.Busy` if an unfinished job holds one of *server_ids*."""
        for job in self._jobs.values():
            held = set(job.server_ids).intersection(server_ids)
            if held and not job.state.finished:
                raise Busy(f"job {job.number} ({job.kind}) is working on {min(held)}; wait for it or cancel it")

    def start(
        self,
        kind: JobKind,
        server_ids: Collection[str],
        owner_uid: int,
        work: Callable[[Job], Coroutine[Any, Any, None]],
        answers: Answers | None = None,
    ) -> Job:
        """Begin *work* as a new job.

        Raises :class:`~mcpd.errors.Busy` if one of *server_ids* has an unfinished job, and
        :class:`~mcpd.errors.LimitExceeded` if *owner_uid* has too many.
        """
        if self._closed:
            raise Busy("mcpd is stopping; try again in a moment")
        self.check_free(server_ids)
        if sum(not job.state.finished for job in self._jobs.values() if job.owner_uid == owner_uid) >= MAX_JOBS_PER_UID:
            raise LimitExceeded(f"user {owner_uid} has {MAX_JOBS_PER_UID} unfinished jobs; wait for one or cancel it")
        job = Job(
            number=next(self._numbers),
            kind=kind,
            server_ids=server_ids,
            owner_uid=owner_uid,
            report=self._report,
            answers=answers or Answers(),
        )
        self._jobs[job.number] = job
        job.start(lambda: work(job))
        self._report(JobEvent(job, "added"))
        return job

    async def close(self) -> None:
        """End every job and wait until nothing of them runs."""
        self._closed = True
        for job in self.list():
            job.abort()
        for job in self.list():
            await job.joined()
        for handle in self._removals.values():
            handle.cancel()
        self._removals.clear()

    def _report(self, event: JobEvent) -> None:
        if event.kind == "finished":
            _log_end(event.job)
            if not self._closed:
                loop = asyncio.get_running_loop()
                self._removals[event.job.number] = loop.call_later(LINGER, self._remove, event.job)
                self._bound(event.job.owner_uid)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed on %s of %r", event.kind, event.job)

    def _bound(self, owner_uid: int) -> None:
        """Remove the oldest finished jobs of *owner_uid* beyond :data:`MAX_FINISHED_PER_UID`."""
        finished = [self._jobs[number] for number in self._removals if self._jobs[number].owner_uid == owner_uid]
        for job in finished[:-MAX_FINISHED_PER_UID]:
            self._removals[job.number].cancel()
            self._remove(job)

    def _remove(self, job: Job) -> None:
        self._removals.pop(job.number, None)
        self._jobs.pop(job.number, None)
        self._report(JobEvent(job, "removed"))


def _log_end(job: Job) -> None:
    what = f"{job.kind} {job.server_id}".rstrip()
    problem = f": {job.error.message}" if job.error is not None else ""
    log.info(
        "Job %d (%s) of uid %d: %s%s",
        job.number,
        what,
        job.owner_uid,
        job.state,
        problem,
        extra={
            "MESSAGE_ID": JOB_FINISHED,
            "MCP_JOB_ID": job.number,
            "MCP_SERVER_ID": job.server_id or None,
            "CALLER_UID": job.owner_uid,
        },
    )
