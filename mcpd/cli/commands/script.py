# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl script``: add, list and remove script servers (``docs/scripts.md``)."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.checks import scripts_check
from mcpd.cli.output import clean, note, table, warn, write, write_json
from mcpd.cli.script_places import Place, files, first, layers
from mcpd.cli.session import open_bus
from mcpd.errors import (
    EXIT_FAILED,
    AlreadyInstalled,
    InvalidArgument,
    InvalidManifest,
    McpdError,
    NoSpace,
    NotAuthorized,
    NotFound,
    ReadOnly,
    ServiceUnavailable,
    did_you_mean,
    from_oserror,
)
from mcpd.files import (
    Signature,
    is_missing,
    make_directory,
    read_file,
    remove_tree,
    settled,
    signature,
    sync_directory,
    write_atomic,
)
from mcpd.model import check_id
from mcpd.paths import Scope, from_environment
from mcpd.scripts.inspection import MAX_SCRIPT, SUFFIXES, ScriptKind, inspect, interpreter, kind_of
from mcpd.scripts.servers import Inspections, ScriptDirectory
from mcpd.store import Store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mcpd.paths import Paths

_GONE: Final = 5
"""Number of polls before a missing file is reported, since editors may remove a file shortly before replacing it."""
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PUBLIC: Final = 0o644
_PRIVATE: Final = 0o600


@dataclass(frozen=True, slots=True)
class ScriptText:
    """The content of a script."""

    data: bytes
    mode: int
    """The mode for a copy, which must not be readable by more users than the original."""


def read_text(source: Path, scope: Scope) -> ScriptText:
    """Read *source*, for a copy in *scope*.

    Everybody may read the system's scripts. For the system, a file that is not world-readable is refused, because root
    could publish the target of another user's symlink. Raises :class:`~mcpd.errors.InvalidArgument` for such a file,
    :class:`~mcpd.errors.InvalidManifest` for one that is not regular or too large, and OSError.
    """
    descriptor = os.open(source, _OPEN)
    # Use fstat, because the path may refer to another file by now.
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidManifest(f"{source}: not a regular file")
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        if scope is Scope.SYSTEM and not status.st_mode & stat.S_IROTH:
            raise InvalidArgument(
                f"{source}: not readable by others, but the system's scripts are readable by everybody; to publish"
                " it, run chmod a+r first"
            )
        data = file.read(MAX_SCRIPT + 1)
    if len(data) > MAX_SCRIPT:
        raise InvalidManifest(f"{source}: larger than {MAX_SCRIPT} bytes")
    shared = stat.S_IRGRP | stat.S_IROTH
    return ScriptText(data, _PUBLIC if scope is Scope.SYSTEM or status.st_mode & shared == shared else _PRIVATE)


def read_argument(source: Path, scope: Scope) -> ScriptText:
    """Return :func:`read_text` of a file from the command line; raise only :class:`~mcpd.errors.McpdError`."""
    try:
        return read_text(source, scope)
    except OSError as error:
        if is_missing(error):
            raise NotFound(f"there is no file {source}") from error
        raise from_oserror(error, f"reading {source}") from error


@dataclass(slots=True)
class WatchedFile:
    """A script that is being edited, in place or by replacing it."""

    path: Path
    scope: Scope
    text: ScriptText | None
    """The content at the last poll."""
    _known: Signature | None = field(default=None, init=False)
    _last: Signature | None = field(default=None, init=False)
    _missing: int = field(default=0, init=False)
    _fault: str = field(default="", init=False)

    def poll(self) -> ScriptText | str | None:
        """Return the new content if it changed, or once an error message if it cannot be read.

        ``None`` if nothing changed, and while the file is being written.
        """
        try:
            status = self.path.stat()
            now = signature(status)
            if now == self._known or not (settled(status) or now == self._last):
                self._last = now
                return None
            text = read_text(self.path, self.scope)
        except OSError as error:
            self._known = None
            self._missing += is_missing(error)
            is_brief = is_missing(error) and self._missing < _GONE
            return None if is_brief else self._once(f"{self.path}: {error.strerror}")
        except (InvalidArgument, InvalidManifest) as error:
            return self._once(error.message)
        self._known, self._missing, self._fault = now, 0, ""
        if text == self.text:
            return None
        self.text = text
        return text

    def _once(self, fault: str) -> str | None:
        known, self._fault = self._fault, fault
        return None if known == fault else fault


def is_used(paths: Paths, scope: Scope, server_id: str) -> bool:
    """Return whether the script *server_id* of *scope* is in use, so that the data of that server belongs to it."""
    try:
        server = Store(paths, scope).get(server_id)
    except NotFound:
        return False
    return server.script is not None and server.layer == scope


async def remove_data(args: argparse.Namespace, paths: Paths, scope: Scope, server_id: str) -> None:
    """Have mcpd remove the configuration, secrets and state of the script server *server_id*, even if it is broken.

    Without mcpd, remove a user's configuration and secrets here; :func:`remove_state` reports what is left. Raises the
    error of mcpd, in which case nothing was removed.
    """
    try:
        async with open_bus(args, changing=True) as bus:
            (await bus.run_job("Uninstall", "sa{sv}", [server_id, {"forget": True}])).check()
    except ServiceUnavailable:
        if scope is Scope.USER:
            await asyncio.to_thread(Store(paths, scope).forget, server_id)


def remove_state(paths: Paths, scope: Scope, server_id: str) -> bool:
    """Remove the state of *server_id*, whose script is gone, in the user scope; return whether nothing is left.

    Warn about configuration, secrets and state that are left.
    """
    layout = paths.layout(scope)
    state = layout.state / server_id
    left = [path for place in (layout.secrets, layout.overlay) if os.path.lexists(path := place / f"{server_id}.json")]
    if state.is_dir() and not state.is_symlink() and not (scope is Scope.USER and _removed(state)):
        left.append(state)
    if left:
        how = "remove it" if scope is Scope.USER else "remove it as root once the server has stopped"
        warn(f"data was left for the next server named {server_id}: {', '.join(map(str, left))}; {how}")
    return not left


def _removed(state: Path) -> bool:
    try:
        remove_tree(state)
    except OSError:
        return False
    return True


POLL_INTERVAL: Final = 0.3
"""Seconds between two polls of a watched file."""
_WHOSE: Final = {"system": "the administrator's", "vendor": "a package's"}


async def add(args: argparse.Namespace) -> int:
    """``mcpctl script add``; with ``--watch`` run until interrupted."""
    scope, paths = _scope(args), from_environment()
    source = Path(args.file)
    text = await asyncio.to_thread(read_argument, source, scope)
    kind = _kind(source, text.data)
    place = _Place(paths.layout(scope).scripts, _name(args.name or source.stem), kind, scope)
    if place.holds(source):
        raise InvalidArgument(f"{source} is already the script of server {place.name}; edits take effect automatically")
    _check(source, text.data, kind)
    changed = await asyncio.to_thread(place.put, text, force=args.force)
    write(f"{'Added' if changed else 'Unchanged'} {place.name}: {clean(place.path)}")
    if (below := _hidden_script(paths, scope, place.name)) is not None:
        layer, path = below
        note(f"It hides {_WHOSE[layer]} script {clean(path)}.")
    await _rescan(args, place.name)
    if (missing := scripts_check()).result != "ok":
        warn(f"the server cannot be started: {missing.message}; {missing.advice}")
    write(f"'mcpctl tools {place.name}' lists its tools, 'mcpctl call {place.name} TOOL' calls one.")
    if args.watch:
        write(f"Watching {clean(source)}; press Ctrl-C to stop.")
        sys.stdout.flush()
        await _watch(args, WatchedFile(source, scope, text), place)
    return 0


def list_scripts(args: argparse.Namespace) -> int:
    """``mcpctl script list``. JSON: ``{"scripts": [{id, kind, scope, state, file, summary, problem}]}``."""
    scope, paths = _scope(args), from_environment()
    scripts = list(_scripts(paths, scope))
    if args.json:
        write_json({"scripts": scripts})
    elif scripts:
        rows = [
            (each["id"], each["kind"], "package" if each["scope"] == "vendor" else each["scope"], each["state"],
             each["file"], each["problem"] or each["summary"])
            for each in scripts
        ]  # fmt: skip
        table(("ID", "KIND", "SCOPE", "STATE", "FILE", "SUMMARY"), rows)
    else:
        note("There are no scripts. 'mcpctl script add FILE' adds one.")
    return 0


async def remove(args: argparse.Namespace) -> int:
    """``mcpctl script remove``, with configuration, secrets and state unless ``--keep-config``."""
    scope, paths = _scope(args), from_environment()
    name = _name(args.id)
    found = await asyncio.to_thread(_removable_files, paths, scope, name)
    forgets = not args.keep_config and await asyncio.to_thread(is_used, paths, scope, name)
    if forgets:
        await remove_data(args, paths, scope, name)
    for path in found:
        await asyncio.to_thread(_unlink, path)
        write(f"Removed {name}: {clean(path)}")
    if (below := _hidden_script(paths, scope, name)) is not None:
        note(f"{clean(below[1])} is the server {name} now.")
    await _rescan(args, name)
    if forgets and not await asyncio.to_thread(remove_state, paths, scope, name):
        return EXIT_FAILED
    return 0


def _scope(args: argparse.Namespace) -> Scope:
    return Scope.SYSTEM if args.system else Scope.USER


def _name(text: str) -> str:
    try:
        return check_id(text)
    except InvalidManifest as error:
        raise InvalidArgument(f"{error.message}; choose another name with --name") from error


def _kind(source: Path, data: bytes) -> ScriptKind:
    """Return the kind of *source* by its suffix, or without a known suffix by its ``#!`` line."""
    if source.suffix in SUFFIXES:
        return SUFFIXES[source.suffix]
    words = interpreter(data)
    kind = kind_of(data)
    if not words:
        raise InvalidArgument(f"{source}: the name must end in .py or .sh, or the script begin with a #! line")
    if kind == "python" and not words[0].rpartition("/")[2].startswith("python"):
        raise InvalidArgument(f"{source}: {words[0]} is not supported; a script must be Python or shell")
    return kind


def _check(source: Path, data: bytes, kind: ScriptKind) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest`, with the line, if the script is invalid."""
    if problem := inspect(data, kind).problem:
        raise InvalidManifest(f"{source}:{problem}")


def _hidden_script(paths: Paths, scope: Scope, name: str) -> Place | None:
    """Return the script *name* of a lower layer, which a script of *scope* hides, with its layer."""
    own = paths.layout(scope).scripts
    return first((place for place in layers(paths, scope) if place[1] != own), name)


def _require_writable(directory: Path, scope: Scope) -> None:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if scope is Scope.SYSTEM and not os.access(existing, os.W_OK | os.X_OK):
        raise NotAuthorized(
            f"only root may change the system's scripts in {directory}: use sudo, or omit --system for your own"
        )


class _Place:
    """The place of an added script in the directory of scripts."""

    def __init__(self, directory: Path, name: str, kind: ScriptKind, scope: Scope) -> None:
        suffix = next(suffix for suffix, known in SUFFIXES.items() if known == kind)
        self.name, self.kind = name, kind
        self.path = directory / f"{name}{suffix}"
        self._directory, self._scope = directory, scope
        self._last: bytes | None = None
        self._mode = 0o755 if scope is Scope.SYSTEM else 0o700

    def holds(self, source: Path) -> bool:
        """Return whether *source* is the file in this place."""
        return self.path.exists() and self.path.samefile(source)

    def put(self, text: ScriptText, *, force: bool) -> bool:
        """Write *text* as the only script of the name; return false if it was there already.

        Raises :class:`~mcpd.errors.AlreadyInstalled` unless *force* if there is another script, which was not written
        by this object, and the errors of writing.
        """
        _require_writable(self._directory, self._scope)
        there, data = files(self._directory, self.name), text.data
        if there == [self.path] and self._content() == data:
            self._last = data
            return self._restrict(text.mode)
        ours = there == [self.path] and self._last is not None and self._content() == self._last
        if there and not force and not ours:
            raise AlreadyInstalled(
                f"there is already a script with that name: {there[0]}; replace it with --force, or choose another name"
                " with --name"
            )
        make_directory(self._directory, self._mode)
        write_atomic(self.path, data, text.mode)
        for other in there:
            if other != self.path:
                _unlink(other)
        self._last = data
        return True

    def _restrict(self, mode: int) -> bool:
        """Remove permissions of group and others that *mode* lacks from the copy; return false if there are none."""
        status = self.path.lstat()
        if not stat.S_ISREG(status.st_mode) or not stat.S_IMODE(status.st_mode) & 0o077 & ~mode:
            return False
        self.path.chmod(stat.S_IMODE(status.st_mode) & (mode | stat.S_IRWXU))
        return True

    def _content(self) -> bytes | None:
        try:
            return read_file(self.path, MAX_SCRIPT)
        except (OSError, InvalidManifest):
            return None


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise from_oserror(error, f"removing {path}") from error


def _removable_files(paths: Paths, scope: Scope, name: str) -> list[Path]:
    """Return the files of the script *name* in *scope*; raise if there are none, or the caller may not remove them."""
    layout = paths.layout(scope)
    found = files(layout.scripts, name)
    if not found:
        if (others := first(layers(paths, scope), name)) is None:
            hint = did_you_mean(name, [each["id"] for each in _scripts(paths, scope)])
            raise NotFound(f"there is no script {name!r}; 'mcpctl script list' lists all scripts{hint}")
        layer, path = others
        owner = "a package"
        if layer == "system":
            owner = f"the system, where 'mcpctl --system script remove {name}' removes it"
        raise ReadOnly(
            f'{path} belongs to {owner}; an entry {{"{name}": {{"enabled": false}}}} in {layout.mcps} disables it'
        )
    _require_writable(layout.scripts, scope)
    return found


def _scripts(paths: Paths, scope: Scope) -> Iterator[dict[str, str]]:
    """Yield all scripts, including unused ones, for :func:`list_scripts`."""
    used = {server.script.path: server for server in Store(paths, scope).list() if server.script is not None}
    inspections = Inspections(paths.layout(scope).cache / "scripts.json")
    for layer, root in layers(paths, scope):
        directory = ScriptDirectory(root, inspections)
        for script in directory.scan().values():
            server = used.get(script.path)
            state, problem = "unused", "another server has its name"
            if server is not None:
                problem = server.problem or server.entry.problem
                state = "broken" if server.problem else "disabled" if server.entry.disabled else "installed"
            yield _shown(script.id, script.kind, layer, state, script.path, script.found.summary, problem)
        for name, path in directory.hidden.items():
            kind = SUFFIXES.get(path.suffix, "")
            yield _shown(name, kind, layer, "unused", path, "", "another script has its name")


def _shown(name: str, kind: str, scope: str, state: str, path: Path, summary: str, problem: str) -> dict[str, str]:
    return {
        "id": name, "kind": kind, "scope": scope, "state": state, "file": str(path), "summary": summary,
        "problem": problem,
    }  # fmt: skip


async def _rescan(args: argparse.Namespace, name: str) -> None:
    """Make mcpd scan the scripts now by listing the servers. If mcpd is not running, it scans them when it starts."""
    try:
        async with open_bus(args) as bus:
            servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{}])
    except ServiceUnavailable:
        return
    except McpdError as error:
        warn(f"mcpd did not scan the scripts: {error.message}")
        return
    for server in servers:
        if server["id"] == name and server.get("problem"):
            warn(server["problem"])


async def _watch(args: argparse.Namespace, watched: WatchedFile, place: _Place) -> None:
    while True:
        await asyncio.sleep(POLL_INTERVAL)
        found = await asyncio.to_thread(watched.poll)
        if found is None:
            continue
        changed, fault = False, ""
        if isinstance(found, str):
            fault = found
        elif problem := (await asyncio.to_thread(inspect, found.data, place.kind)).problem:
            fault = f"{watched.path}:{problem}"
        else:
            try:
                changed = await asyncio.to_thread(place.put, found, force=args.force)
            except NoSpace as error:
                # Forget the content, so that it is tried again when the file is saved.
                fault, watched.text = error.message, None
        if changed:
            await _rescan(args, place.name)
        status = f"{clean(fault)}; the server is unchanged" if fault else "updated" if changed else "unchanged"
        write(f"{place.name}: {status}")
        sys.stdout.flush()
