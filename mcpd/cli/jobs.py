# SPDX-License-Identifier: LGPL-2.1-or-later
"""Starting a job of mcpd and following it to its end: progress, questions, cancellation."""

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
"""``Job.Progress`` when nobody can tell."""

_MIB: Final = 1 << 20


class View(Protocol):
    """Shows a job."""

    def show(self, job: Mapping[str, object]) -> None:
        """Show what the properties of the *job* say."""

    def pause(self) -> None:
        """Leave the terminal to somebody else until the next :meth:`show`."""

    def close(self) -> None:
        """Show nothing more."""


class Lines:
    """One line for each new state."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, job: Mapping[str, object]) -> None:
        """Print the state of *job* if it is another one."""
        line = describe(job)
        if line != self._last:
            self._last = line
            note(line)

    def pause(self) -> None:
        """Nothing is in the way."""

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A progress bar by rich."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        self._columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
        )
        self._console = Console(stderr=True)
        self._class = Progress
        self._progress: Progress | None = None

    def show(self, job: Mapping[str, object]) -> None:
        """Move the bar."""
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
        """Take the bar off the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    close = pause


def view() -> View:
    """The view that suits standard error."""
    return Bar() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()


def _fetched(job: Mapping[str, object]) -> str:
    """How much of what has to be fetched is there; empty where nothing is said of it."""
    done, total = job.get("BytesDone"), job.get("BytesTotal")
    if job.get("State") != "fetching" or not isinstance(done, int) or not isinstance(total, int) or not done:
        return ""
    return f" ({done / _MIB:.1f} of {total / _MIB:.1f} MiB)" if total else f" ({done / _MIB:.1f} MiB)"


def describe(job: Mapping[str, object]) -> str:
    """One line for *job*: what about, and which state."""
    return f"{clean(job.get('ServerId') or job.get('Kind', ''))}: {clean(job.get('State', ''))}"


_CANCEL_GRACE: Final = 10.0
"""Seconds that a cancelled job may take to end before mcpctl leaves it alone."""


@dataclass(slots=True)
class Answers:
    """What the command line says to the plan and the questions of a job."""

    consent: bool = False
    granted: frozenset[str] = frozenset()
    """Permissions consented to by naming them."""
    secrets: dict[str, bytes] = field(default_factory=dict)
    """By key; a job takes out those it asks for."""
    takes_values: bool = False
    """Whether the command has ``--set`` and ``--secret-file``."""
    verbose: bool = False
    """Show each package of the plan."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a job would have done."""

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
    """Call the Manager's *member*, which starts a job, and return when that has ended well.

    The result is the id of the server that the job was about, empty if it was about several or none. What an
    installation comes to is shown as soon as it is known. *file* is the name of the file that was sent, *about* what
    its progress is shown under where mcpd names no server.

    Raises the error the job ended with; :class:`~mcpd.errors.NotAuthorized` if a needed consent is not given
    and :class:`~mcpd.errors.ConfigMissing` if a needed value is not. Whatever ends it early cancels the job.
    """
    follower = _Follower(answers or Answers(), file=file, about=about)
    async with _following(follower, bus, member, signature, args, fds) as task:
        await follower.follow()
        result = await task
    result.check()
    return follower.server_id


async def foresee_job(
    bus: Client, member: str, signature: str, args: Sequence[object], *, fds: Sequence[int] = (), file: str = ""
) -> Foreseen:
    """Call *member*, which starts a job, with the option ``dry-run`` among *args*; returns what the job comes to.

    *file* is the name of the file that was sent.

    Raises the error of a job that ends before that is known.
    """
    follower = _Follower(Answers(), foresee=True, file=file)
    async with _following(follower, bus, member, signature, args, fds) as task:
        await follower.follow()
        result = await task
    if not follower.plan:
        result.check()
    return Foreseen(follower.server_id, follower.plan)


@asynccontextmanager
async def _following(
    follower: _Follower, bus: Client, member: str, signature: str, args: Sequence[object], fds: Sequence[int]
) -> AsyncIterator[asyncio.Task[JobResult]]:
    """The job that *follower* follows; whatever ends the block early cancels it."""
    task = asyncio.ensure_future(bus.run_job(member, signature, args, fds=fds, on_change=follower.changed))
    task.add_done_callback(lambda _: follower.ended())
    try:
        yield task
    except BaseException as error:
        with suppress(OSError):  # the terminal may be what is gone
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                note("cancelling")
        await follower.cancel(task)
        raise
    finally:
        follower.view.close()
        task.cancel()


class _Follower:
    """Shows one job and answers what it asks; with *foresee*, only until it is known what the job comes to."""

    def __init__(self, answers: Answers, *, foresee: bool = False, file: str = "", about: str = "") -> None:
        self._answers = answers
        self._file = file
        self._about = about
        self._foresee = foresee
        self._changes: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._job: Remote | None = None
        self._answered: set[tuple[str, str]] = set()
        self.view = view()
        self.server_id = ""
        self.plan: list[dict[str, Any]] = []
        self._shown: set[str] = set()

    def changed(self, job: Remote, properties: dict[str, Any]) -> None:
        """Note the *properties* of the *job*."""
        self._job = job
        self._changes.put_nowait(dict(properties))

    def ended(self) -> None:
        """Note that the job has ended."""
        self._changes.put_nowait(None)

    async def follow(self) -> None:
        """Return when the job has ended."""
        durations: dict[str, float] = {}
        while (properties := await self._changes.get()) is not None:
            self.server_id = str(properties.get("ServerId") or self.server_id)
            self._show_plan(properties.get("Plan") or [])
            if not (self._foresee and self.plan and properties.get("State") == "cancelled"):  # which a dry run ends as
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
        from mcpd.cli.plan_output import named, plan_lines  # noqa: PLC0415 - which few jobs need

        plan = named(plan, self._file) if self._file else plan
        if plan == self.plan:
            return
        self.plan = plan
        # What is asked for before the packages are known has been shown by then.
        lines = [line for line in plan_lines(plan, verbose=self._answers.verbose) if line not in self._shown]
        if lines and not self._foresee:
            self._shown.update(lines)
            self.view.pause()
            heading = f"{clean(self.server_id)}:" if self.server_id else "the plan:"
            note("\n".join([heading, *lines]))

    async def cancel(self, task: asyncio.Task[JobResult]) -> None:
        """Cancel the job and wait a little for its end; what it cannot undo goes on without us."""
        if self._job is None or task.done():
            return
        with suppress(McpdError, TimeoutError):
            async with asyncio.timeout(_CANCEL_GRACE):
                await self._job.call("Cancel", "a{sv}", [{}])
                await asyncio.wait([task])

    async def _answer(self, job: Remote, properties: Mapping[str, Any]) -> None:
        """Answer what the job needs, each need once: its list shrinks while the answers are on their way."""
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
            raise Cancelled(f"{server}: there was no consent, and nothing was changed")

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
    """Ask if *server*, a remote one with a *problem*, is to be installed; raise if it is not."""
    if not user_input.terminal():
        raise Unhealthy(f"{problem}; 'mcpctl install --no-check' installs it all the same")
    note(problem)
    if not user_input.confirm(f"Install {server} all the same?"):
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
    how = f"give it with {' '.join(ways)}" if takes_values else f"'mcpctl install' takes it with {' '.join(ways)}"
    return f"{server} needs a value for {keys}; {how}, and at a terminal it is asked for"


def _describe(need: Mapping[str, Any]) -> str:
    """One line for something a job asks consent for."""
    if need["kind"] == "permission":
        return clean(described_as(need["key"], str(need.get("label") or "")))
    if need["kind"] == "variable":
        return clean(f"sets {need['key']}, which {need.get('label') or 'decides what code runs'}")
    what = f"runs as {clean(need['key'])}" if need["kind"] == "run-as" else clean(need["key"])
    why = clean(need.get("label") or need.get("description") or "")
    return f"{what}  ({why})" if why and why != what else what
