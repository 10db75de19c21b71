# SPDX-License-Identifier: LGPL-2.1-or-later
"""The steps of an installation: plan → resolve → consent → fetch → build → verify → activate.

Until activation everything happens in a generation that is not in use, so a failure, a cancellation or SIGKILL at any
point leaves the installed server unchanged.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import Cancelled, InvalidManifest, SignatureInvalid, Unhealthy, from_oserror
from mcpd.install import verification
from mcpd.install.job import JobState, Need
from mcpd.install.lockfile import write_lock
from mcpd.install.sources.base import Outcome, Resolution, read_project_file
from mcpd.install.sources.pypi import VENV
from mcpd.install.trees import open_root, readable, walk
from mcpd.install.unpack import leads_outside
from mcpd.install.workbench import CACHE, Workbench, trim
from mcpd.model import Transport, TransportType
from mcpd.package_sources import INDEXES, normalise_python
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.install.activation import Activation
    from mcpd.install.job import Job
    from mcpd.install.plan import Plan
    from mcpd.install.sources.base import Recipe
    from mcpd.install.trees import TreeItem
    from mcpd.install.workbench import Tools
    from mcpd.model import Entry, Manifest
    from mcpd.package_sources import PackageIndex
    from mcpd.store import Generation, Store
    from mcpd.trust.keys import Keys

MAX_BYTES: Final = 16 * 1024**3
"""Maximum size in bytes of a package with all its dependencies; archives may unpack to any size."""
_INTERPRETER: Final = re.compile(r"/usr/bin/python3(\.[0-9]+)?")


def seal(root: Path) -> None:
    """Make everything in *root* readable by all users, and writable only by its owner.

    Raises :class:`~mcpd.errors.InvalidManifest` for a link that leads outside *root* (a virtual environment may link to
    the system's interpreter), for special files, and for a tree over the limits.
    """
    total = 0
    try:
        directory = open_root(root)
        try:
            with closing(walk(directory, "the package")) as found:
                for item in found:
                    total += _seal(item)
                    if total > MAX_BYTES:
                        raise InvalidManifest(f"the package is larger than {MAX_BYTES / 1024**3:g} GiB once unpacked")
        finally:
            os.close(directory)
    except OSError as error:
        raise from_oserror(error, f"checking {root}") from error


def _seal(item: TreeItem) -> int:
    """Set the mode of *item*; return its size in bytes."""
    mode = item.status.st_mode
    if stat.S_ISLNK(mode):
        _check_link(item.relative, os.readlink(item.name, dir_fd=item.parent))
        return 0
    if stat.S_ISDIR(mode):
        os.chmod(item.name, 0o755, dir_fd=item.parent)  # noqa: S103 - the server may run as another user
        return 0
    if not stat.S_ISREG(mode):
        what = readable(item.relative)
        raise InvalidManifest(f"the package contains {what}, which is neither a file, a directory nor a link")
    os.chmod(item.name, 0o755 if mode & 0o111 else 0o644, dir_fd=item.parent)
    return item.status.st_size


def _check_link(relative: str, points_at: str) -> None:
    interpreter = relative.startswith(f"{VENV}/bin/") and _INTERPRETER.fullmatch(points_at)
    if leads_outside(relative, points_at) and not interpreter:
        raise InvalidManifest(
            f"the package contains the link {readable(relative)}, which leads outside, to {readable(points_at)}"
        )


SYSTEM_DIRECTORIES: Final = ("/usr/local/bin", "/usr/bin", "/bin")


def resolve_transports(entry: Entry, outcome: Outcome, root: Path) -> list[Transport]:
    """Return the transports of *entry*, with stdio commands that exist in *root* or on the system.

    An entry without transports gets one for the only script of its package, or for the script of the same name. ``npx
    PACKAGE`` and ``uvx PACKAGE`` become that script, since it is already installed.

    Raises :class:`~mcpd.errors.InvalidManifest` that names the command and the alternatives.
    """
    transports = list(entry.transports)
    if not transports:
        transports = [Transport(type=TransportType.STDIO, command=_script(entry, outcome), args=[])]
    settled = [_without_runner(entry, outcome, t) if t.type is TransportType.STDIO else t for t in transports]
    for transport in settled:
        if transport.type is TransportType.STDIO:
            _check(entry, transport, root)
    return settled


def _script(entry: Entry, outcome: Outcome) -> str:
    index = _index(entry)
    normalise = index.normalise if index is not None else normalise_python
    package = normalise(outcome.package.rpartition("/")[2])
    same = [script for script in outcome.scripts if normalise(script) == package]
    if len(outcome.scripts) == 1 or same:
        return (same or list(outcome.scripts))[0]
    found = f"it provides {', '.join(outcome.scripts)}" if outcome.scripts else "it provides no command"
    raise InvalidManifest(f"{entry.id} has no transports, and its package does not define how to start it: {found}")


def _index(entry: Entry) -> PackageIndex | None:
    return INDEXES.get(entry.source.type) if entry.source is not None else None


def _without_runner(entry: Entry, outcome: Outcome, transport: Transport) -> Transport:
    index = _index(entry)
    if index is None or entry.source is None:
        return transport
    after = index.arguments_after([transport.command, *transport.args], entry.source.package)
    if after is None:
        return transport
    return transport.model_copy(update={"command": _script(entry, outcome), "args": after})


def _check(entry: Entry, transport: Transport, root: Path) -> None:
    command = transport.command
    if not _exists(command, root):
        raise InvalidManifest(
            f"{entry.id}: the command {command[:200]!r} is neither part of the package nor installed on this system"
            + (_command_hint(command, root) or _needs_build(root))
        )
    script = _script_argument(command, transport.args)
    if script and not _inside(root, script):
        raise InvalidManifest(
            f"{entry.id}: {script[:200]!r}, which {command} is supposed to run, does not exist{_needs_build(root)}"
        )


def _command_hint(command: str, root: Path) -> str:
    """Return a hint if *command* contains arguments, or is a file in *root* written without ``./``; otherwise empty."""
    program, _, arguments = command.partition(" ")
    if arguments and _exists(program, root):
        return f"; start {program[:200]!r}, and pass its arguments separately (args, mcpctl install --arg)"
    return f"; use {'./' + command[:200]!r} for the file with that name" if _inside(root, command) else ""


def _exists(command: str, root: Path) -> bool:
    if command.startswith("/"):
        return Path(command).exists()
    if "/" in command:
        return _inside(root, command)
    directories = [*(root / index.programs for index in INDEXES.values()), *map(Path, SYSTEM_DIRECTORIES)]
    return any((directory / command).exists() for directory in directories)


def _inside(root: Path, relative: str) -> bool:
    """Return whether *relative* exists in *root*; a virtual environment's link to its interpreter counts as inside."""
    path = Path(root, relative)
    return path.exists() and path.parent.resolve().is_relative_to(root.resolve())


def _script_argument(command: str, arguments: Sequence[str]) -> str:
    """Return the project file that an interpreter gets as its first argument; empty if there is none."""
    name = command.rpartition("/")[2]
    first = arguments[0] if arguments else ""
    if not name.startswith(("python", "node")) or first.startswith(("-", "/", "{")):
        return ""
    return first


def _needs_build(root: Path) -> str:
    try:
        scripts = json.loads(read_project_file(root / "package.json") or b"").get("scripts", {})
    except (OSError, InvalidManifest, ValueError, AttributeError, RecursionError):
        return ""
    if not isinstance(scripts, dict) or not {"build", "prepare", "prepack"} & scripts.keys():
        return ""
    return "; the project needs a build step, which is not run: install it from a package registry instead"


PARALLEL: Final = 2
"""Number of installations that fetch and build at the same time; others wait."""
PLAN_ONLY: Final = "only the plan was requested"
"""Message of the :class:`~mcpd.errors.Cancelled` that ends a dry run."""


class Pipeline:
    """Carries out plans."""

    def __init__(self, store: Store, tools: Tools, activation: Activation, keys: Keys) -> None:
        self._store = store
        self._tools = tools
        self._activation = activation
        self._keys = keys
        self._slots = asyncio.Semaphore(PARALLEL)
        self._first = asyncio.Lock()
        self._is_trimmed = False

    async def install(self, job: Job, plan: Plan) -> None:
        """Carry out *plan* as *job*.

        Raises the errors of all steps; an unfinished generation is then removed.
        """
        made: list[Generation] = []
        try:
            if not plan.is_dry_run and plan.is_complete and plan.answers.missing():
                # Values for properties that the entry itself declares can be requested before the packages are
                # resolved.
                job.show_plan(plan.items(Resolution()))
                await job.ask_config()
                job.enter(JobState.PLANNING)
            async with self._slots:
                await self._trim()
                await in_thread(lambda: made.append(self._store.new_generation(plan.entry.id)))
                bench = Workbench(self._tools, job, plan.entry, made[0].path)
                await in_thread(bench.prepare)
                recipe = plan.recipe(bench)
                resolution = await recipe.resolve() if recipe is not None else Resolution()
            if resolution.entry is not None:
                plan = plan.completed(resolution.entry)
                plan.answers.take_over(job.answers)
                job.answers = plan.answers
                bench.entry = plan.entry
            # Wait for answers without a slot, so that other jobs can use it.
            job.show_plan(plan.items(resolution))
            if plan.is_dry_run:
                raise Cancelled(PLAN_ONLY)
            if plan.needs:
                await job.ask_consent(plan.needs)
            await job.ask_config()
            # The key may have been removed while the job waited.
            if plan.verified and plan.verified not in {key.name for key in await in_thread(self._keys.list)}:
                raise SignatureInvalid(f"the key {plan.verified!r} that signed it is no longer trusted; try again")
            try:
                await self._put_into_use(job, plan, recipe, bench, made[0], is_checked=plan.is_checked)
            except Unhealthy as error:
                if not plan.may_be_offline or await in_thread(self._store.active_generation, plan.entry.id) is not None:
                    raise
                made.clear()
                await _ask_if_offline(job, plan, error)
                await in_thread(lambda: made.append(self._store.new_generation(plan.entry.id)))
                bench = Workbench(self._tools, job, plan.entry, made[0].path)
                await in_thread(bench.prepare)
                await self._put_into_use(job, plan, recipe, bench, made[0], is_checked=False)
        except OSError as error:
            raise from_oserror(error, f"installing {plan.entry.id}") from error
        finally:
            if made and job.state is not JobState.ACTIVATING:
                await in_thread(self._store.discard, made[0])

    async def _trim(self) -> None:
        """Empty the package cache if it is too large, once, before anything uses it."""
        async with self._first:
            if not self._is_trimmed:
                await in_thread(trim, self._tools.paths.layout(self._tools.scope).cache / CACHE)
                self._is_trimmed = True

    async def _put_into_use(
        self,
        job: Job,
        plan: Plan,
        recipe: Recipe | None,
        bench: Workbench,
        generation: Generation,
        *,
        is_checked: bool,
    ) -> None:
        async with self._slots:
            manifest = await self._build(job, plan, recipe, bench)
            # Updates of a user-supplied entry are not held: its user would only be asked to approve their own change.
            watch_tools = bool(plan.registry)
            await self._activation.activate(
                job, generation, manifest, plan.answers, watch_tools=watch_tools, is_checked=is_checked
            )

    async def _build(self, job: Job, plan: Plan, recipe: Recipe | None, bench: Workbench) -> Manifest:
        """Fill the generation; return the manifest to activate it with."""
        outcome = Outcome()
        if recipe is not None:
            job.enter(JobState.FETCHING)
            bench.stage(10, 40)
            await recipe.fetch()
            job.enter(JobState.BUILDING)
            bench.stage(55, 85)
            outcome = await recipe.build()
            plan = plan.with_texts(outcome.texts) if outcome.texts is not None else plan
        job.enter(JobState.VERIFYING)
        job.advance(86)
        await in_thread(bench.clean)
        await in_thread(seal, bench.root)
        transports = plan.entry.transports if plan.remote else resolve_transports(plan.entry, outcome, bench.root)
        await in_thread(
            lambda: write_lock(
                bench.root,
                plan.recorded,
                outcome,
                registry=plan.registry,
                verified=plan.verified,
                content=plan.content,
            )
        )
        manifest = plan.manifest(transports, outcome.version)
        await in_thread(verification.record, bench.root, manifest)
        return manifest


async def _ask_if_offline(job: Job, plan: Plan, error: Unhealthy) -> None:
    """Wait for consent to install the remote server that failed its health check with *error*.

    A caller who gave all consent beforehand cannot be asked, and gets the error with the option to use instead.
    """
    if plan.is_agreed or plan.entry.remote is None:
        raise Unhealthy(
            f"{error.message}\nIf it is just offline: 'mcpctl install --no-check' installs it without a check."
        ) from error
    problem = error.message.splitlines()[0]
    await job.ask_consent([Need("unchecked", plan.entry.remote.address, description=problem)])
