# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start jobs of mcpd and follow them: progress, questions, cancellation."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcpd.cli import user_input
from mcpd.cli.output import clean, note
from mcpd.cli.permissions import described_as
from mcpd.cli.values import parse_value
from mcpd.errors import Cancelled, ConfigMissing, InvalidConfig, McpdError, NotAuthorized, Unhealthy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from mcpd.bus.client import Client, JobResult, Remote

UNKNOWN: Final = 101
"""The value of ``Job.Progress`` for unknown progress."""

_MIB: Final = 1 << 20


class View(Protocol):
    """Shows the progress of a job."""

    def show(self, job: Mapping[str, object]) -> None:
        """Show the progress in the properties of *job*."""

    def pause(self) -> None:
        """Clear the terminal line for other output, until the next :meth:`show` if there is one."""


class Lines:
    """Progress output with one line for each new state."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, job: Mapping[str, object]) -> None:
        """Print the state of *job* if it has changed."""
        line = describe(job)
        if line != self._last:
            self._last = line
            note(line)

    def pause(self) -> None:
        """Do nothing."""


class Bar:
    """Shows a progress bar with rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
        )
        self._console = Console(stderr=True)
        self._class = Progress
        self._progress: Progress | None = None

    def show(self, job: Mapping[str, object]) -> None:
        """Update the bar."""
        if self._progress is None:
            self._progress = self._class(*self._columns, console=self._console, transient=True)
            self._task = self._progress.add_task("")
            self._progress.start()
        done = job.get("Progress")
        percent = done if isinstance(done, int) and done < UNKNOWN else None
        self._progress.update(
            self._task,
            description=describe(job) + _fetched(job),
            total=None if percent is None else 100,
            completed=percent,
        )

    def pause(self) -> None:
        """Remove the bar from the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def view() -> View:
    """Return a bar if standard error is a terminal, else lines."""
    return Bar() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()


def _fetched(job: Mapping[str, object]) -> str:
    """Return the fetched and the total size of *job* as text; empty if it fetches nothing."""
    done, total = job.get("BytesDone"), job.get("BytesTotal")
    if job.get("State") != "fetching" or not isinstance(done, int) or not isinstance(total, int) or not done:
        return ""
    return f" ({done / _MIB:.1f} of {total / _MIB:.1f} MiB)" if total else f" ({done / _MIB:.1f} MiB)"


def describe(job: Mapping[str, object]) -> str:
    """Return one line about *job*: its server or kind, and its state."""
    return f"{clean(job.get('ServerId') or job.get('Kind', ''))}: {clean(job.get('State', ''))}"


_CANCEL_GRACE: Final = 10.0
"""Seconds to wait for the end of a cancelled job."""


@dataclass(slots=True)
class Answers:
    """Answers from the command line to the questions of a job, and how to show its plan."""

    consent: bool = False
    granted: frozenset[str] = frozenset()
    """Permissions given with ``--permission``, which need no further consent."""
    secrets: dict[str, bytes] = field(default_factory=dict)
    """Secrets by key; each is removed when the job asks for it."""
    takes_values: bool = False
    """True if the command has ``--set`` and ``--secret-file``."""
    verbose: bool = False
    """True to show each package of the plan."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run."""

    server_id: str
    plan: list[dict[str, Any]]


async def run_job(
    bus: Client,
    member: str,
    signature: str,
    args: Sequence[object],
    *,
    fds: Sequence[int] = (),
    answers: Answers | None = None,
    file: str = "",
    about: str = "",
) -> str:
    """Call the Manager's *member*, which starts a job, and wait until the job has succeeded.

    Return the id of the job's server; empty if the job is about several servers or none. The plan of an installation
    is shown as soon as it is known. *file* is the name of the file that was sent; *about* labels the progress if the
    job names no server.

    Raises the error of the job, :class:`~mcpd.errors.NotAuthorized` without a required consent, and
    :class:`~mcpd.errors.ConfigMissing` without a required value. The job is cancelled if this function ends early.
    """
    follower = _Follower(answers or Answers(), file=file, about=about)
    async with _following(follower, bus, member, signature, args, fds) as task:
        await follower.follow()
        result = await task
    result.check()
    return follower.server_id


async def dry_run_job(
    bus: Client, member: str, signature: str, args: Sequence[object], *, fds: Sequence[int] = (), file: str = ""
) -> DryRun:
    """Call *member* with the option ``dry-run`` in *args*; return the plan of the job.

    *file* is the name of the file that was sent. Raises the error of the job if it ends without a plan.
    """
    follower = _Follower(Answers(), dry_run=True, file=file)
    async with _following(follower, bus, member, signature, args, fds) as task:
        await follower.follow()
        result = await task
    if not follower.plan:
        result.check()
    return DryRun(follower.server_id, follower.plan)


@asynccontextmanager
async def _following(
    follower: _Follower, bus: Client, member: str, signature: str, args: Sequence[object], fds: Sequence[int]
) -> AsyncIterator[asyncio.Task[JobResult]]:
    """Start the job for *follower* and yield its task; cancel the job if the block ends early."""
    task = asyncio.ensure_future(bus.run_job(member, signature, args, fds=fds, on_change=follower.changed))
    task.add_done_callback(lambda _: follower.ended())
    try:
        yield task
    except BaseException as error:
        with suppress(OSError):  # the terminal may be gone
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                note("cancelling")
        await follower.cancel(task)
        raise
    finally:
        follower.view.pause()
        task.cancel()


class _Follower:
    """Shows the progress of one job and answers its questions; with *dry_run*, only fetches its plan."""

    def __init__(self, answers: Answers, *, dry_run: bool = False, file: str = "", about: str = "") -> None:
        self._answers = answers
        self._file = file
        self._about = about
        self._dry_run = dry_run
        self._changes: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._job: Remote | None = None
        self._answered: set[tuple[str, str]] = set()
        self.view = view()
        self.server_id = ""
        self.plan: list[dict[str, Any]] = []
        self._shown: set[str] = set()

    def changed(self, job: Remote, properties: dict[str, Any]) -> None:
        """Store the new *properties* of *job*."""
        self._job = job
        self._changes.put_nowait(dict(properties))

    def ended(self) -> None:
        """Store that the job has ended."""
        self._changes.put_nowait(None)

    async def follow(self) -> None:
        """Follow the job until it has ended."""
        durations: dict[str, float] = {}
        while (properties := await self._changes.get()) is not None:
            self.server_id = str(properties.get("ServerId") or self.server_id)
            self._show_plan(properties.get("Plan") or [])
            if not (self._dry_run and self.plan and properties.get("State") == "cancelled"):  # the end of a dry run
                self.view.show(properties | {"ServerId": properties.get("ServerId") or self._about})
            if self._job is not None and properties.get("State") in {"needs-consent", "needs-config"}:
                await self._answer(self._job, properties)
            durations = properties.get("Durations") or durations
        if self._answers.verbose and durations:
            self.view.pause()
            note("took " + ", ".join(f"{seconds:.1f} s {clean(state)}" for state, seconds in durations.items()))

    def _show_plan(self, plan: list[dict[str, Any]]) -> None:
        if not plan:
            return
        from mcpd.cli.plan_output import named, plan_lines  # few jobs have a plan

        plan = named(plan, self._file) if self._file else plan
        if plan == self.plan:
            return
        self.plan = plan
        # The plan arrives in parts; lines that were shown with an earlier part are left out.
        lines = [line for line in plan_lines(plan, verbose=self._answers.verbose) if line not in self._shown]
        if lines and not self._dry_run:
            self._shown.update(lines)
            self.view.pause()
            heading = f"{clean(self.server_id)}:" if self.server_id else "the plan:"
            note("\n".join([heading, *lines]))

    async def cancel(self, task: asyncio.Task[JobResult]) -> None:
        """Cancel the job and wait for its end for some seconds; mcpd continues a job that cannot be cancelled."""
        if self._job is None or task.done():
            return
        with suppress(McpdError, TimeoutError):
            async with asyncio.timeout(_CANCEL_GRACE):
                await self._job.call("Cancel", "a{sv}", [{}])
                await asyncio.wait([task])

    async def _answer(self, job: Remote, properties: Mapping[str, Any]) -> None:
        """Answer the questions of the job, each once, as ``Needs`` may still contain those already answered."""
        needs = [need for need in properties.get("Needs") or [] if (need["kind"], need["key"]) not in self._answered]
        if not needs:
            return
        self._answered.update((need["kind"], need["key"]) for need in needs)
        self.view.pause()
        server = clean(properties.get("ServerId", ""))
        if properties["State"] == "needs-consent":
            self._consent(server, needs)
            await job.call("Proceed", "a{sv}", [{"server-id": properties.get("ServerId", "")}])
        else:
            await self._configure(server, job, needs)

    def _consent(self, server: str, needs: Sequence[Mapping[str, Any]]) -> None:
        if offline := next((need for need in needs if need["kind"] == "unchecked"), None):
            _ask_if_offline(server, clean(offline["description"]))
            return
        asked = [need for need in needs if need["kind"] != "permission" or need["key"] not in self._answers.granted]
        if not asked:
            return
        note(f"{server} asks for your consent:")
        for need in asked:
            note("  " + _describe(need))
        if self._answers.consent:
            return
        if not user_input.terminal():
            raise NotAuthorized(f"{server}: this needs your consent; give it with --yes")
        if not user_input.confirm("Do you agree?"):
            raise Cancelled(f"{server}: without your consent, nothing was changed")

    async def _configure(self, server: str, job: Remote, needs: Sequence[Mapping[str, Any]]) -> None:
        keys = {need["key"] for need in needs}
        values: dict[str, object] = {}
        secrets = {key: self._answers.secrets.pop(key) for key in keys & self._answers.secrets.keys()}
        unanswered = [need for need in needs if need["key"] not in secrets]
        if unanswered and not user_input.terminal():
            raise ConfigMissing(_missing(server, unanswered, takes_values=self._answers.takes_values))
        for need in unanswered:
            if need.get("sensitive"):
                secrets[need["key"]] = user_input.ask_secret(_label(need))
            else:
                values[need["key"]] = _ask_value(need)
        if values:
            await job.call("SetConfig", "a{sv}a{sv}", [values, {"server-id": server}])
        for key, secret in secrets.items():
            with user_input.memfd(secret, "secret") as fd:
                await job.call("SetSecret", "sha{sv}", [key, 0, {"server-id": server}], fds=[fd])


def _ask_if_offline(server: str, problem: str) -> None:
    """Ask whether to install the remote *server* in spite of *problem*; raise an error if the answer is no."""
    if not user_input.terminal():
        raise Unhealthy(f"{problem}; 'mcpctl install --no-check' installs it anyway")
    note(problem)
    if not user_input.confirm(f"Install {server} anyway?"):
        raise Cancelled(f"{server}: nothing was changed")


def _label(need: Mapping[str, Any]) -> str:
    return clean(need.get("label") or need["key"])


def _ask_value(need: Mapping[str, Any]) -> object:
    if need.get("description"):
        note(clean(need["description"]))
    while True:
        text = user_input.ask(_label(need))
        try:
            return parse_value(need["key"], text, str(need.get("type") or ""))
        except InvalidConfig as error:
            note(error.message)


def _missing(server: str, needs: Sequence[Mapping[str, Any]], *, takes_values: bool) -> str:
    keys = ", ".join(clean(need["key"]) for need in needs)
    ways = [
        f"--secret-file {clean(need['key'])}=FILE" if need.get("sensitive") else f"--set {clean(need['key'])}=VALUE"
        for need in needs
    ]
    how = f"set it with {' '.join(ways)}" if takes_values else f"use 'mcpctl install' with {' '.join(ways)}"
    return f"{server} needs a value for {keys}; {how}, or run this at a terminal to be asked for it"


def _describe(need: Mapping[str, Any]) -> str:
    """Return one line that describes *need*, a consent that a job asks for."""
    if need["kind"] == "permission":
        return clean(described_as(need["key"], str(need.get("label") or "")))
    if need["kind"] == "variable":
        return clean(f"sets {need['key']}, which {need.get('label') or 'decides what code runs'}")
    what = f"runs as {clean(need['key'])}" if need["kind"] == "run-as" else clean(need["key"])
    why = clean(need.get("label") or need.get("description") or "")
    return f"{what}  ({why})" if why and why != what else what
