# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs: changes to the installed servers, with progress, questions and a final state."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import (
    Busy,
    Cancelled,
    ConfigMissing,
    InvalidArgument,
    LimitExceeded,
    McpdError,
    NotFound,
    NotSupported,
    TimedOut,
)
from mcpd.install.options import Answers
from mcpd.journal import JOB_FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping

    from mcpd.model import ConfigProperty, JsonValue

PROGRESS_UNKNOWN: Final = 101
PROGRESS_DONE: Final = 100
ANSWER_TIMEOUT: Final = 3600.0
"""Seconds that a job waits for consent or configuration before it gives up."""
BYTES_INTERVAL: Final = 0.1
"""Seconds between two reports of a changed byte count."""

log = logging.getLogger(__name__)


class JobKind(StrEnum):
    """The kinds of jobs."""

    INSTALL = "install"
    UNINSTALL = "uninstall"
    UPDATE = "update"
    ROLLBACK = "rollback"
    APPROVE = "approve"
    VERIFY = "verify"
    CHECK_UPDATES = "check-updates"
    REFRESH = "refresh"


class JobState(StrEnum):
    """The states of a job."""

    QUEUED = "queued"
    PLANNING = "planning"
    NEEDS_CONSENT = "needs-consent"
    NEEDS_CONFIG = "needs-config"
    FETCHING = "fetching"
    BUILDING = "building"
    VERIFYING = "verifying"
    ACTIVATING = "activating"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """True for a final state."""
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Need:
    """A consent or a value that a job has to ask for."""

    kind: str
    """``permission``, ``variable``, ``run-as``, ``remote``, ``kept``, ``unverified``, ``unchecked`` or ``config``."""
    key: str
    """The permission, ``NAME=VALUE`` of the variable, the account, the address of the remote server, the id of the
    server that left something behind, the unsigned file, the address of the server that does not answer, or the key of
    the property; depending on :attr:`kind`."""
    label: str = ""
    description: str = ""
    sensitive: bool = False
    type: str = ""

    @classmethod
    def of_property(cls, prop: ConfigProperty) -> Need:
        """Return the need for a value of *prop*."""
        return cls("config", prop.key, prop.label or prop.key, prop.description, prop.sensitive, prop.type or "")

    def to_dict(self) -> dict[str, str | bool]:
        """Return the need in the format of the D-Bus property ``Needs``."""
        return {
            "kind": self.kind,
            "key": self.key,
            "label": self.label,
            "description": self.description,
            "sensitive": self.sensitive,
            "type": self.type,
        }


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One item of a plan, shown before consent is given."""

    kind: str
    """``source``, ``size``, ``package``, ``command``, ``permission``, ``variable``, ``run-as``, ``setting`` or
    ``verified``."""
    key: str
    label: str = ""
    version: str = ""
    integrity: str = ""
    """The expected hash, as in the lock file."""

    def to_dict(self) -> dict[str, str]:
        """Return the item in the format of the D-Bus property ``Plan``, without empty fields."""
        found = {"kind": self.kind, "key": self.key, "label": self.label, "version": self.version}
        return {key: value for key, value in (found | {"integrity": self.integrity}).items() if value}


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A change of a job."""

    job: Job
    kind: str
    """``added``, ``changed``, ``finished`` (once, with the final state) or ``removed`` (no longer listed)."""
    changed: frozenset[str] = frozenset()
    """The changed attributes: server_id, state, progress, bytes_done, bytes_total, cancellable, needs, plan,
    error."""


class Job:
    """A job: queued, running, waiting for answers, or finished.

    Its attributes are public; *report* is called with each change of them.
    """

    def __init__(
        self,
        *,
        number: int,
        kind: JobKind,
        server_ids: Collection[str],
        owner_uid: int,
        report: Callable[[JobEvent], None],
        answers: Answers,
    ) -> None:
        self.number = number
        self.kind = kind
        self.server_ids = tuple(server_ids)
        self.owner_uid = owner_uid
        self.answers = answers
        self.state = JobState.QUEUED
        self.progress = PROGRESS_UNKNOWN
        self.bytes_done = 0
        self.bytes_total = 0
        """0 while unknown."""
        self.needs: list[Need] = []
        self.question = 0
        """Incremented whenever :attr:`needs` changes, even if the next server has the same needs."""
        self.plan: list[PlanItem] = []
        self.error: McpdError | None = None
        self.durations: dict[str, float] = {}
        """Seconds spent in each past state."""
        self._entered = time.monotonic()
        self._report = report
        self._at_work = ""
        self._floor = 0
        self._share = (0.0, 1.0)
        self._bytes_reported = 0.0
        self._finished = asyncio.Event()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Job {self.number} {self.kind} {','.join(self.server_ids)} {self.state}>"

    @property
    def server_id(self) -> str:
        """The server that the job changes; if there are several, the one in progress, or empty before and after."""
        return self.server_ids[0] if len(self.server_ids) == 1 else self._at_work

    @property
    def cancellable(self) -> bool:
        """True if :meth:`cancel` is possible."""
        return not self.state.finished and self.state is not JobState.ACTIVATING

    # For frontends

    def cancel(self) -> None:
        """Cancel the job; its state becomes ``cancelled`` once everything it began is undone.

        Cancelling a finished job changes nothing. Raises :class:`~mcpd.errors.NotSupported` during activation.
        """
        if self.state.finished:
            return
        if not self.cancellable:
            raise NotSupported(f"job {self.number} is activating {self.server_id} and can no longer be cancelled")
        self.abort()

    def proceed(self) -> None:
        """Consent to everything in :attr:`needs`, or confirm that all values are set.

        Does nothing if the job is not waiting. Raises :class:`~mcpd.errors.ConfigMissing` that names the missing
        values.
        """
        if self.state is JobState.NEEDS_CONFIG and self.needs:
            missing = ", ".join(need.key for need in self.needs)
            raise ConfigMissing(f"job {self.number} still needs a value for {missing}")
        self._answered.set()

    def set_config(self, values: Mapping[str, JsonValue]) -> None:
        """Set values of properties that are not sensitive; the job continues once nothing is missing.

        Raises :class:`~mcpd.errors.InvalidConfig` for an unknown or sensitive key or a value of the wrong type, and
        :class:`~mcpd.errors.InvalidArgument` if the job takes no values any more.
        """
        self._check_open()
        self.answers.set_config(values)
        self._recheck()

    def set_secret(self, key: str, value: str) -> None:
        """Set the value of a sensitive property. Raises the same errors as :meth:`set_config`."""
        self._check_open()
        self.answers.set_secret(key, value)
        self._recheck()

    async def wait(self) -> None:
        """Wait until the job is finished; see :attr:`state` and :attr:`error` for the result."""
        await self._finished.wait()

    # For the code that carries out the job

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run *work* as this job."""
        self._task = asyncio.create_task(self._main(work), name=f"job-{self.number}")
        self._task.add_done_callback(self._ended)

    def abort(self) -> None:
        """Cancel the job in any state, even during activation."""
        if self._task is not None and not self.state.finished and not self._task.cancelling():
            self._task.cancel()

    async def joined(self) -> None:
        """Wait until the job's task has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def enter(self, state: JobState) -> None:
        """Change to *state*."""
        if state is self.state:
            return
        was_cancellable = self.cancellable
        self._leave()
        self.state = state
        log.debug("job %d (%s): %s", self.number, self.server_id, state)
        self._changed("state", *(["cancellable"] if was_cancellable != self.cancellable else []))

    def begin_part(self, index: int, count: int, server_id: str) -> None:
        """Start reporting on *server_id*, part *index* (from 0) of the *count* parts of the job."""
        self._share = (index / count, 1 / count)
        if server_id != self.server_id:
            self._at_work = server_id
            self.plan = []
            self._changed("server_id", "plan")

    def advance(self, percent: float) -> None:
        """Report that *percent* (0 to 100) of the current part is done; progress never decreases."""
        start, width = self._share
        self._floor = max(self._floor, min(int(start * 100 + width * percent), PROGRESS_DONE - 1))
        if self._floor != self.progress:
            self.progress = self._floor
            self._changed("progress")

    def transferred(self, done: int, total: int = 0) -> None:
        """Report that *done* of *total* bytes were received (total 0: unknown)."""
        self.bytes_done, self.bytes_total = done, total
        now = asyncio.get_running_loop().time()
        if now - self._bytes_reported >= BYTES_INTERVAL or (total and done == total):
            self._bytes_reported = now
            self._changed("bytes_done", "bytes_total")

    def show_plan(self, items: Iterable[PlanItem]) -> None:
        """Publish *items* as the plan of the job."""
        self.plan = list(items)
        self._changed("plan")

    async def ask_consent(self, needs: Iterable[Need]) -> None:
        """Wait for consent to *needs*; raise :class:`~mcpd.errors.TimedOut` after an hour."""
        await self._ask(JobState.NEEDS_CONSENT, list(needs))

    async def ask_config(self) -> None:
        """Wait until every required property has a value; raise :class:`~mcpd.errors.TimedOut` after an hour."""
        if self.answers.missing():
            await self._ask(JobState.NEEDS_CONFIG, [Need.of_property(p) for p in self.answers.missing()])

    async def _ask(self, state: JobState, needs: list[Need]) -> None:
        self._answered.clear()
        self._set_needs(needs)
        self.enter(state)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._answered.wait()
        except TimeoutError:
            keys = ", ".join(need.key for need in self.needs)
            raise TimedOut(f"nobody answered job {self.number} ({keys}) within {ANSWER_TIMEOUT / 60:.0f} min") from None
        self._set_needs([])

    def _recheck(self) -> None:
        if self.state is JobState.NEEDS_CONFIG:
            missing = self.answers.missing()
            self._set_needs([Need.of_property(p) for p in missing])
            if not missing:
                self._answered.set()

    def _set_needs(self, needs: list[Need]) -> None:
        if needs != self.needs:
            self.needs = needs
            self.question += 1
            self._changed("needs")

    def _check_open(self) -> None:
        if self.state.finished or self.state is JobState.ACTIVATING:
            raise InvalidArgument(f"job {self.number} is {self.state} and no longer accepts values")

    async def _main(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run *work* and set the final state according to its result; unexpected exceptions are logged here."""
        try:
            await work()
        except asyncio.CancelledError:
            self._finish(JobState.CANCELLED, Cancelled(f"job {self.number} was cancelled"))
        except Cancelled as error:
            self._finish(JobState.CANCELLED, error)
        except McpdError as error:
            self._finish(JobState.FAILED, error)
        except Exception:
            log.exception("job %d (%s %s): internal error", self.number, self.kind, self.server_id)
            self._finish(JobState.FAILED, McpdError(f"job {self.number}: internal error; see the journal of mcpd"))
        else:
            self._finish(JobState.DONE, None)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        # A task that is cancelled before it first runs never enters _main.
        if not self.state.finished:
            self._finish(JobState.CANCELLED, Cancelled(f"job {self.number} was cancelled"))

    def _finish(self, state: JobState, error: McpdError | None) -> None:
        self.error, self.needs = error, []
        self.question += 1
        self._leave()
        self.state = state
        if state is JobState.DONE:
            self.progress = PROGRESS_DONE
        self.answers.forget()
        self._finished.set()
        changed = ["state", "progress", "bytes_done", "bytes_total", "cancellable", "needs"]
        if error is not None:
            changed.append("error")
        if self._at_work:
            self._at_work = ""
            changed.append("server_id")
        self._changed(*changed)
        self._report(JobEvent(self, "finished"))

    def _leave(self) -> None:
        now = time.monotonic()
        self.durations[self.state] = self.durations.get(self.state, 0.0) + now - self._entered
        self._entered = now

    def _changed(self, *names: str) -> None:
        self._report(JobEvent(self, "changed", frozenset(names)))


MAX_JOBS_PER_UID: Final = 16
"""Maximum number of unfinished jobs of one user."""
LINGER: Final = 60.0
"""Seconds that a finished job stays listed, so that polling clients see its result."""
MAX_FINISHED_PER_UID: Final = 256
"""Maximum number of finished jobs of one user that stay listed; the oldest are removed first."""


class Jobs:
    """The jobs of this instance: starts and lists them, notifies listeners, and ends them at shutdown."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._listeners: list[Callable[[JobEvent], None]] = []
        self._removals: dict[int, asyncio.TimerHandle] = {}
        self._closed = False

    def list(self) -> list[Job]:
        """Return the jobs that are unfinished, or finished less than :data:`LINGER` ago, oldest first."""
        return list(self._jobs.values())

    def get(self, number: int) -> Job:
        """Return the job *number*; raise :class:`~mcpd.errors.NotFound` if it is not listed (any more)."""
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
        """Raise :class:`~mcpd.errors.Busy` if an unfinished job works on one of *server_ids*."""
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
        """Start *work* as a new job.

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
        """Cancel every job and wait until all have ended."""
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
