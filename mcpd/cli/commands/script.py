# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl script``: the files that are servers (``docs/scripts.md``)."""

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
    from_oserror,
)
from mcpd.model import check_id
from mcpd.paths import Scope, from_environment
from mcpd.store import Store, write_atomic
from mcpd.store.files import (
    Signature,
    is_missing,
    make_directory,
    read_file,
    remove_tree,
    settled,
    signature,
    sync_directory,
)
from mcpd.store.inspection import MAX_SCRIPT, SUFFIXES, ScriptKind, inspect, interpreter, kind_of
from mcpd.store.script_servers import Inspections, ScriptDirectory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mcpd.paths import Paths

_GONE: Final = 5
"""Looks until a file that vanished is said to be gone: editors put another one in its place at once."""
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PUBLIC: Final = 0o644
_PRIVATE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Text:
    """What a script's file held."""

    data: bytes
    mode: int
    """Of a copy, which nobody may read who may not read the file."""


def read_text(source: Path, scope: Scope) -> Text:
    """What is in *source*, for a copy in *scope*.

    Everybody may read the system's scripts, so a file that others may not read is none for it: root would publish
    what a symlink of somebody else leads to. Raises :class:`~mcpd.errors.InvalidArgument` for one,
    :class:`~mcpd.errors.InvalidManifest` for what is no file or too large, and OSError.
    """
    descriptor = os.open(source, _OPEN)
    # What is asked is the file that is read, whatever has its name by then.
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidManifest(f"{source}: not a regular file")
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        if scope is Scope.SYSTEM and not status.st_mode & stat.S_IROTH:
            raise InvalidArgument(
                f"{source}: others may not read it, and as a script of the system it would become readable for"
                " everybody; if it may, chmod it first (chmod a+r)"
            )
        data = file.read(MAX_SCRIPT + 1)
    if len(data) > MAX_SCRIPT:
        raise InvalidManifest(f"{source}: larger than {MAX_SCRIPT} bytes")
    shared = stat.S_IRGRP | stat.S_IROTH
    return Text(data, _PUBLIC if scope is Scope.SYSTEM or status.st_mode & shared == shared else _PRIVATE)


def read_given(source: Path, scope: Scope) -> Text:
    """:func:`read_text` of a file that was named just now: raises :class:`~mcpd.errors.McpdError` only."""
    try:
        return read_text(source, scope)
    except OSError as error:
        if is_missing(error):
            raise NotFound(f"{source}: there is no such file") from error
        raise from_oserror(error, f"reading {source}") from error


@dataclass(slots=True)
class Watched:
    """A file that somebody edits: in place, or by putting another one there."""

    path: Path
    scope: Scope
    text: Text | None
    """What it held when it was last looked at."""
    _known: Signature | None = field(default=None, init=False)
    _last: Signature | None = field(default=None, init=False)
    _missing: int = field(default=0, init=False)
    _fault: str = field(default="", init=False)

    def look(self) -> Text | str | None:
        """What it holds, if that is something else than before, or why that cannot be told, once.

        ``None`` if there is nothing new, and while somebody is writing it.
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
    """Whether the scope's own script *server_id* is the server of that id, and so what is kept for that is its own."""
    try:
        server = Store(paths, scope).get(server_id)
    except NotFound:
        return False
    return server.script is not None and server.layer == scope


async def forget(args: argparse.Namespace, paths: Paths, scope: Scope, server_id: str) -> None:
    """Have all that is kept for the script server *server_id* removed, whatever is wrong with its script.

    Without mcpd a user's own values and secrets are removed here; :func:`drop` tells what is left. Raises what mcpd
    refuses it with, and then nothing was removed.
    """
    try:
        async with open_bus(args, changing=True) as bus:
            (await bus.run_job("Uninstall", "sa{sv}", [server_id, {"forget": True}])).check()
    except ServiceUnavailable:
        if scope is Scope.USER:
            await asyncio.to_thread(Store(paths, scope).forget, server_id)


def drop(paths: Paths, scope: Scope, server_id: str) -> bool:
    """Remove the state of *server_id*, whose script is gone, if it is the user's; whether nothing is left.

    What is left is told.
    """
    layout = paths.layout(scope)
    state = layout.state / server_id
    left = [path for place in (layout.secrets, layout.overlay) if os.path.lexists(path := place / f"{server_id}.json")]
    if state.is_dir() and not state.is_symlink() and not (scope is Scope.USER and _removed(state)):
        left.append(state)
    if left:
        how = "remove it" if scope is Scope.USER else "it is mcpd's; remove it as root when nothing of the server runs"
        warn(f"the next server {server_id} gets what is left of this one: {', '.join(map(str, left))}; {how}")
    return not left


def _removed(state: Path) -> bool:
    try:
        remove_tree(state)
    except OSError:
        return False
    return True


LOOK: Final = 0.3
"""Seconds between two looks at a file that is watched."""
_WHOSE: Final = {"system": "the administrator's", "vendor": "a package's"}


async def add(args: argparse.Namespace) -> int:
    """``mcpctl script add``; with ``--watch`` until it is interrupted."""
    scope, paths = _scope(args), from_environment()
    source = Path(args.file)
    text = await asyncio.to_thread(read_given, source, scope)
    kind = _kind(source, text.data)
    place = _Place(paths.layout(scope).scripts, _name(args.name or source.stem), kind, scope)
    if place.holds(source):
        raise InvalidArgument(f"{source} is the server {place.name} already; edits of it show up by themselves")
    _check(source, text.data, kind)
    changed = await asyncio.to_thread(place.put, text, force=args.force)
    write(f"{'Added' if changed else 'Unchanged'} {place.name}: {clean(place.path)}")
    if (below := _below(paths, scope, place.name)) is not None:
        layer, path = below
        note(f"{clean(path)}, {_WHOSE[layer]} script {place.name}, is hidden by this one.")
    await _tell(args, place.name)
    if (missing := scripts_check()).result != "ok":
        warn(f"the server cannot be started: {missing.message}; {missing.advice}")
    write(f"'mcpctl tools {place.name}' lists its tools, 'mcpctl call {place.name} TOOL' calls one.")
    if args.watch:
        write(f"Watching {clean(source)}, until Ctrl-C.")
        sys.stdout.flush()
        await _watch(args, Watched(source, scope, text), place)
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
        table(("ID", "KIND", "WHOSE", "STATE", "FILE", "SUMMARY"), rows)
    else:
        note("There are no scripts. 'mcpctl script add FILE' makes a server of one.")
    return 0


async def remove(args: argparse.Namespace) -> int:
    """``mcpctl script remove``, with what was set for the server and its state unless ``--keep-config``."""
    scope, paths = _scope(args), from_environment()
    name = _name(args.id)
    found = await asyncio.to_thread(_own, paths, scope, name)
    forgets = not args.keep_config and await asyncio.to_thread(is_used, paths, scope, name)
    if forgets:
        await forget(args, paths, scope, name)
    for path in found:
        await asyncio.to_thread(_unlink, path)
        write(f"Removed {name}: {clean(path)}")
    if (below := _below(paths, scope, name)) is not None:
        note(f"{clean(below[1])} is the server {name} now.")
    await _tell(args, name)
    if forgets and not await asyncio.to_thread(drop, paths, scope, name):
        return EXIT_FAILED
    return 0


def _scope(args: argparse.Namespace) -> Scope:
    return Scope.SYSTEM if args.system else Scope.USER


def _name(text: str) -> str:
    try:
        return check_id(text)
    except InvalidManifest as error:
        raise InvalidArgument(f"{error.message}; --name gives a script another one") from error


def _kind(source: Path, data: bytes) -> ScriptKind:
    """What *source* is by its name, or by its ``#!`` line if the name does not say it."""
    if source.suffix in SUFFIXES:
        return SUFFIXES[source.suffix]
    words = interpreter(data)
    kind = kind_of(data)
    if not words:
        raise InvalidArgument(f"{source}: a script is called .py or .sh, or begins with a #! line that says what it is")
    if kind == "python" and not words[0].rpartition("/")[2].startswith("python"):
        raise InvalidArgument(f"{source}: it is for {words[0]}; a script that can be a server is Python or shell")
    return kind


def _check(source: Path, data: bytes, kind: ScriptKind) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` with the line, if the script cannot be read."""
    if problem := inspect(data, kind).problem:
        raise InvalidManifest(f"{source}:{problem}")


def _below(paths: Paths, scope: Scope, name: str) -> Place | None:
    """The script *name* that *scope* has without its own one, and what the scope of that is called."""
    own = paths.layout(scope).scripts
    return first((place for place in layers(paths, scope) if place[1] != own), name)


def _require_writable(directory: Path, scope: Scope) -> None:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if scope is Scope.SYSTEM and not os.access(existing, os.W_OK | os.X_OK):
        raise NotAuthorized(
            f"the system's scripts in {directory} are root's to change: run it with sudo, or without --system for"
            " yourself"
        )


class _Place:
    """Where a script of one name is put."""

    def __init__(self, directory: Path, name: str, kind: ScriptKind, scope: Scope) -> None:
        suffix = next(suffix for suffix, known in SUFFIXES.items() if known == kind)
        self.name, self.kind = name, kind
        self.path = directory / f"{name}{suffix}"
        self._directory, self._scope = directory, scope
        self._last: bytes | None = None
        self._mode = 0o755 if scope is Scope.SYSTEM else 0o700

    def holds(self, source: Path) -> bool:
        """Whether *source* is what lies there itself."""
        return self.path.exists() and self.path.samefile(source)

    def put(self, text: Text, *, force: bool) -> bool:
        """Put *text* there, as the only one of the name; false if it was there already.

        Raises :class:`~mcpd.errors.AlreadyInstalled` for what is neither that nor what was put there last, unless
        *force*, and what writing raises.
        """
        _require_writable(self._directory, self._scope)
        there, data = files(self._directory, self.name), text.data
        if there == [self.path] and self._content() == data:
            self._last = data
            return self._close(text.mode)
        ours = there == [self.path] and self._last is not None and self._content() == self._last
        if there and not force and not ours:
            raise AlreadyInstalled(
                f"{there[0]} is another script of that name; --force replaces it, and --name NAME adds this one beside"
                " it"
            )
        make_directory(self._directory, self._mode)
        write_atomic(self.path, data, text.mode)
        for other in there:
            if other != self.path:
                _unlink(other)
        self._last = data
        return True

    def _close(self, mode: int) -> bool:
        """Take from everybody what *mode* does not give them of the copy; false if they had no more."""
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


def _own(paths: Paths, scope: Scope, name: str) -> list[Path]:
    """The files of the scope's own script *name*, which may be removed."""
    layout = paths.layout(scope)
    found = files(layout.scripts, name)
    if not found:
        if (others := first(layers(paths, scope), name)) is None:
            raise NotFound(f"there is no script {name!r}; 'mcpctl script list' shows all there are")
        layer, path = others
        whose = "a package's"
        if layer == "system":
            whose = f"the administrator's, who removes it with 'mcpctl --system script remove {name}'"
        raise ReadOnly(f'{path} is {whose}; an entry {{"{name}": {{"enabled": false}}}} in {layout.mcps} disables it')
    _require_writable(layout.scripts, scope)
    return found


def _scripts(paths: Paths, scope: Scope) -> Iterator[dict[str, str]]:
    """All scripts, those that are not used among them."""
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


async def _tell(args: argparse.Namespace, name: str) -> None:
    """Have mcpd look at the scripts now; it lists them when it is asked. Without mcpd that has time."""
    try:
        async with open_bus(args) as bus:
            servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{}])
    except ServiceUnavailable:
        return
    except McpdError as error:
        warn(f"mcpd did not look at it: {error.message}")
        return
    for server in servers:
        if server["id"] == name and server.get("problem"):
            warn(server["problem"])


async def _watch(args: argparse.Namespace, watched: Watched, place: _Place) -> None:
    while True:
        await asyncio.sleep(LOOK)
        found = await asyncio.to_thread(watched.look)
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
                # Saved again it may fit.
                fault, watched.text = error.message, None
        if changed:
            await _tell(args, place.name)
        said = f"{clean(fault)}; the server stays as it is" if fault else "updated" if changed else "as it was"
        write(f"{place.name}: {said}")
        sys.stdout.flush()
