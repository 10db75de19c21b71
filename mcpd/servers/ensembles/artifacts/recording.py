# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record a run while it is running, so that an interrupted run can be recognized and continued.

``execution.json`` is written by :mod:`.execution` and read by :mod:`.stored`; ``execution.md`` is for people. The
responses of agents are untrusted: they are in fences that they cannot close, and names cannot be links or HTML.

A full disk or a read-only project does not affect the run: it is logged, and reported in :attr:`Recording.problem`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError, from_oserror
from mcpd.files import TEMP_MARK, write_new
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.ensembles.artifacts import execution
from mcpd.servers.ensembles.artifacts.places import (
    AGENTS,
    EXECUTION,
    LATEST,
    LOCK,
    MAX_BYTES,
    REPORT,
    is_ensemble,
    open_root,
)
from mcpd.servers.ensembles.artifacts.stored import moment, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.artifacts.stored import StoredAgent, StoredRun
    from mcpd.servers.ensembles.engine.types import AgentResult, RunResult

MAX_TEXT: Final = 64 * 1024
"""Characters shown of a response; all of it is in ``execution.json``."""
_TICKS: Final = re.compile(r"`+")
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|&#!~])")
_TITLES: Final = {"completed": "completed", "completed_with_errors": "completed with errors"}


def markdown(artifact: dict[str, Any]) -> str:
    """Return the document *artifact*, see :mod:`.execution`, as Markdown (CommonMark, with tables)."""
    run = parse(artifact)
    blocks = [
        f"# {_plain(run.ensemble or 'unknown')}: {_plain(_TITLES.get(run.status, run.status))}",
        _table(("Began", "Took", "Tokens", "Cost"), [_facts(run)]),
    ]
    if run.fault is not None and run.fault.message:
        blocks += ["The run ended early:", _fenced(run.fault.message)]
    if run.input:
        blocks += ["## Input", _fenced(run.input)]
    agents = run.results.items()
    if agents:
        heads = ("Agent", "Kind", "Status", "Seconds", "Tokens", "Cost (USD)", "Model")
        blocks += ["## Agents", _table(heads, (_row(run, name, each) for name, each in agents))]
        for name, each in agents:
            blocks += _agent(name, each)
    if run.deliverable:
        blocks += ["## Deliverable", _fenced(run.deliverable)]
    return "\n\n".join(blocks) + "\n"


def _facts(run: StoredRun) -> Sequence[str]:
    return (
        moment(run.metadata.started_at) or "unknown",
        "unknown" if run.seconds is None else f"{run.seconds:.2f} s",
        str(run.tokens),
        "unknown" if run.cost_usd is None else f"{run.cost_usd:.6f} USD",
    )


def _row(run: StoredRun, name: str, agent: StoredAgent) -> Sequence[str]:
    seconds, used = run.seconds_of(name), run.usage_of(name)
    status = f"{agent.status} (reused)" if agent.reused else agent.status
    return (
        _plain(name),
        _plain(agent.kind or ""),
        _plain(status),
        "" if seconds is None else f"{seconds:.2f}",
        str(used.tokens or ""),
        "" if not used.cost_usd else f"{used.cost_usd:.6f}",
        _plain(agent.model or ""),
    )


def _agent(name: str, agent: StoredAgent) -> list[str]:
    blocks = [f"### {_plain(name)}"]
    if agent.retries:
        blocks.append(f"It was tried again, {agent.retries} times in all.")
    if agent.fallback:
        blocks.append("Its fallback profile responded.")
    if agent.why:
        blocks += ["It has no response:" if agent.response is None else "With this fault:", _fenced(agent.why)]
    if agent.response is not None:
        blocks.append(_fenced(agent.response))
    elif not agent.why:
        blocks.append(f"It has no response: {_plain(agent.status)}.")
    return blocks


def _fenced(text: str) -> str:
    """Return *text* unchanged, in a fence that is longer than any in it."""
    shown = text[:MAX_TEXT]
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(shown)), default=0))
    cut = f"\n\n{len(text) - MAX_TEXT} characters more are in `execution.json`." if len(text) > MAX_TEXT else ""
    return f"{fence}text\n{shown}\n{fence}{cut}"


def _plain(text: str) -> str:
    """Return *text* in one line, with markup escaped."""
    return _MARKUP.sub(r"\\\1", printable(text))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    from prettytable import PrettyTable, TableStyle  # rarely needed

    grid = PrettyTable(list(headings))
    grid.set_style(TableStyle.MARKDOWN)
    grid.align = "l"
    grid.add_rows([list(row) for row in rows])
    return grid.get_string()


log: Final = logging.getLogger("llm-orc")

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS: Final = 1000
"""Milliseconds after the start of a run that are tried as its timestamp, if other runs have taken them."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The directory of a run, held open, and the lock in it."""

    id: str
    path: Path
    directory: int
    lock: int

    @property
    def mode(self) -> int:
        """The mode of a new file, according to the umask and default access lists."""
        return stat.S_IMODE(os.fstat(self.lock).st_mode)

    def put(self, name: str, data: bytes) -> None:
        """Replace the content of *name* with *data* atomically. Raises OSError."""
        temporary = _temporary(name)
        try:
            write_new(temporary, data, self.mode, self.directory)
            os.rename(temporary, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self.directory)
            raise
        os.fsync(self.directory)

    def close(self) -> None:
        """Release the lock and close the directory."""
        os.close(self.lock)
        os.close(self.directory)


class Recording:
    """The record of one run; implements :class:`~mcpd.servers.ensembles.engine.types.Journal`.

    Its methods return at once, as a thread writes. :meth:`close` must always be called.
    """

    def __init__(self, kept: Kept | None, definition: Mapping[str, Any], problem: str | None = None) -> None:
        """Record in *kept*, which is None if that is impossible because of *problem*; see :func:`begin`."""
        self.problem = problem
        """The reason why the record is missing or incomplete; final after :meth:`close`."""
        self._kept = kept
        self._definition = definition
        self._result: RunResult | None = None
        self._agents: int | None = None
        self._written = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="artifact")
        self._closing: asyncio.Future[None] | None = None

    @property
    def id(self) -> str | None:
        """Id of the artifact, ``ensemble/timestamp``; None if it cannot be saved."""
        return self._kept.id if self._kept else None

    @property
    def path(self) -> Path | None:
        """Directory of the artifact; None if it cannot be saved."""
        return self._kept.path if self._kept else None

    def finished(self, result: AgentResult) -> None:
        """Save *result*, so that it can be reused if the run is interrupted."""
        if self._kept is not None:
            self._writer.submit(self._append, self._kept, result)

    def ended(self, result: RunResult) -> None:
        """Make :meth:`close` save *result*."""
        self._result = result

    async def close(self) -> None:
        """Write the result of the run and release the lock; without a result, the run counts as interrupted.

        This is complete on return, even if the caller is cancelled meanwhile; the cancellation is raised afterwards.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(self._writer, self._close)
            self._writer.shutdown(wait=False)
        await outlasted(self._closing)

    def _append(self, kept: Kept, result: AgentResult) -> None:
        try:
            line = execution.line(result)
            if self._written + len(line) > MAX_BYTES:
                return
            if self._agents is None:
                self._agents = os.open(AGENTS, _NEW | os.O_APPEND, 0o666, dir_fd=kept.directory)
            try:
                _write(self._agents, line)
            except OSError:
                # An incomplete line would make the next one unreadable.
                os.ftruncate(self._agents, self._written)
                raise
            self._written += len(line)
        except OSError as error:
            self._failed(kept, error)
        except Exception:
            # The run continues; nothing waits for this.
            log.exception("keeping agent %s of %s", result.name, kept.id)

    def _close(self) -> None:
        kept = self._kept
        if kept is None:
            return
        try:
            if self._result is not None:
                self._keep(kept, self._result)
        except OSError as error:
            self._failed(kept, error)
        except McpdError as error:
            self.problem = error.message
            log.warning("%s: %s", kept.path, error.message)
        except Exception:
            # The result of the run is more important than its record.
            log.exception("keeping %s", kept.id)
            self.problem = f"keeping {kept.path}: an internal error, which the log has"
        finally:
            if self._agents is not None:
                os.close(self._agents)
            kept.close()

    def _keep(self, kept: Kept, result: RunResult) -> None:
        document = execution.ended(result, self._definition)
        kept.put(EXECUTION, execution.encoded(document))
        self.problem = None
        try:
            kept.put(REPORT, markdown(document).encode(errors="replace"))
        finally:
            for name in (AGENTS, LOCK):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=kept.directory)

    def _failed(self, kept: Kept, error: OSError) -> None:
        """Log why the run cannot be saved, only once."""
        if self.problem is None:
            self.problem = from_oserror(error, f"keeping {kept.path}").message
            log.warning("%s", self.problem)


async def outlasted(future: asyncio.Future[Any]) -> None:
    """Wait until *future*, which is never cancelled, is done; a cancellation of the caller is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def begin(root: Path, ensemble: str, text: str, definition: Mapping[str, Any], started: float) -> Recording:
    """Return the record of a run of *ensemble* with the input *text*, started at *started* (seconds since the epoch).

    It exists below *root* on return. If another run has the same millisecond as its timestamp, the next one is used.
    Errors of the file system are reported in :attr:`Recording.problem`.
    """
    if not is_ensemble(ensemble):
        raise ValueError(f"{ensemble!r} is no ensemble's name")
    try:
        kept = _begin(root, ensemble, started)
    except OSError as error:
        problem = from_oserror(error, f"keeping the run in {root / ensemble}").message
        log.warning("%s", problem)
        return Recording(None, definition, problem)
    recording = Recording(kept, definition)
    try:
        kept.put(EXECUTION, execution.encoded(execution.begun(ensemble, text, definition, started)))
        _point(root, ensemble, kept)
    except OSError as error:
        problem = from_oserror(error, f"keeping {kept.path}").message
        log.warning("%s", problem)
        recording.problem = problem
    return recording


def _begin(root: Path, ensemble: str, started: float) -> Kept:
    top = open_root(root, make=True)
    try:
        with suppress(FileExistsError):
            os.mkdir(ensemble, dir_fd=top)
        stamp = _make(top, ensemble, started)
        directory = open_beneath(top, f"{ensemble}/{stamp}", os.O_RDONLY | os.O_DIRECTORY, links=False)
    finally:
        os.close(top)
    try:
        lock = os.open(LOCK, _NEW, 0o666, dir_fd=directory)
    except OSError:
        os.close(directory)
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks; there the run looks interrupted until it has ended.
        log.info("locking %s: %s", root / ensemble / stamp / LOCK, error.strerror)
    return Kept(f"{ensemble}/{stamp}", root / ensemble / stamp, directory, lock)


def _make(top: int, ensemble: str, started: float) -> str:
    """Create the directory of the run and return its name."""
    of = open_beneath(top, ensemble, os.O_RDONLY | os.O_DIRECTORY, links=False)
    try:
        for later in range(_ATTEMPTS):
            stamp = _stamp(started + later / 1000)
            with suppress(FileExistsError):
                os.mkdir(stamp, dir_fd=of)
                return stamp
    finally:
        os.close(of)
    raise FileExistsError(f"there are {_ATTEMPTS} runs of the same second")


def _stamp(moment: float) -> str:
    date = datetime.fromtimestamp(moment, UTC)
    return f"{date:%Y%m%d-%H%M%S}-{date.microsecond // 1000:03}"


def _point(root: Path, ensemble: str, kept: Kept) -> None:
    """Make ``latest`` a symlink to the run, unless something else has that name."""
    above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=kept.directory)
    try:
        temporary = _temporary(LATEST)
        os.symlink(kept.path.name, temporary, dir_fd=above)
        try:
            os.rename(temporary, LATEST, src_dir_fd=above, dst_dir_fd=above)
        except (IsADirectoryError, FileExistsError) as error:
            log.info("%s: %s", root / ensemble / LATEST, error.strerror)
            os.unlink(temporary, dir_fd=above)
    finally:
        os.close(above)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _temporary(name: str) -> str:
    return f".{name}.{secrets.token_hex(6)}{TEMP_MARK}"
