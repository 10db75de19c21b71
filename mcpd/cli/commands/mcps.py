# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl mcps``: build the mcps map from a source file, and check it (``docs/mcps.md``)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.upstream import policy
from mcpd.cli.checks import Check
from mcpd.cli.mcps_checks import NAME, Known, MapFile, check_permissions, entry_checks, map_checks, read_map
from mcpd.cli.output import clean, coloured, first_line, note, table, warn, write, write_document, write_json
from mcpd.errors import (
    EXIT_FAILED,
    InvalidArgument,
    InvalidManifest,
    McpdError,
    NotFound,
    NotSupported,
    ReadOnly,
    SandboxUnavailable,
)
from mcpd.files import make_directory, write_atomic
from mcpd.model import dump_json, load_json
from mcpd.paths import Paths, Scope, from_environment
from mcpd.runtime import permissions
from mcpd.runtime.bundled import scripts_program
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.run import run
from mcpd.runtime.sandbox import build_spec, script_mounts
from mcpd.scripts.generator import build
from mcpd.scripts.mcps import NO_ENTRY
from mcpd.store import Store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from mcpd.scripts.generator import Stored
    from mcpd.store import InstalledServer

TIMEOUT: Final = 60.0
"""Seconds to describe one server, each of whose three transforms may take 5."""
FACILITIES: Final = ("tools", "resources", "prompts")


@dataclass(slots=True)
class Features:
    """The tools, resources and prompts that clients would get from one server."""

    id: str
    source: str
    """The script or directory of the server; empty if it has only an entry in the map."""
    state: str
    """``script`` for a script server, which is run; else ``installed``, ``disabled`` or ``broken``."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Describer:
    """Runs the script servers of *store* in the sandbox, several at once, to list their features.

    *paths* are those of the machine, whose secrets the sandbox hides.
    """

    def __init__(self, store: Store, paths: Paths, scope: Scope, unavailable: str = "") -> None:
        """*unavailable* is the reason why scripts cannot be run; empty if they can."""
        self._store, self._paths, self._scope = store, paths, scope
        self._turn = asyncio.Semaphore(os.cpu_count() or 1)
        self.unavailable = unavailable
        """The reason why scripts are only read and not run; empty if they are run."""

    async def all(self, servers: Sequence[InstalledServer]) -> list[Features]:
        """Return the features of each of *servers*, in their order."""
        tasks = [asyncio.create_task(self._offer(server)) for server in servers]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _offer(self, server: InstalledServer) -> Features:
        path = server.script.path if server.script is not None else server.directory
        features = Features(server.id, str(path or ""), "script" if server.script is not None else "installed")
        if server.problem:
            features.state, features.problems = "broken", [server.problem]
            return features
        if server.clash:
            features.problems.append(server.clash)
        if server.entry.disabled:
            features.state = "disabled"
        elif server.script is not None:
            try:
                async with self._turn:
                    await self._describe(server, features)
            except (SandboxUnavailable, NotSupported) as error:
                self.unavailable = error.message
            except McpdError as error:
                features.problems.append(error.message)
        return features

    async def _describe(self, server: InstalledServer, features: Features) -> None:
        document = await asyncio.to_thread(self._document, server)
        if self.unavailable:
            return
        with TemporaryDirectory(prefix="mcps-") as made:
            found = await self._run(server, await asyncio.to_thread(_written, made, document))
        for name in FACILITIES:
            setattr(features, name, [item for item in _list(found, name) if isinstance(item, dict)])
        features.problems += [str(problem) for problem in _list(found, "problems")]
        narrow(features, server.entry.policy)

    def _document(self, server: InstalledServer) -> dict[str, Any]:
        """Return the private manifest of *server* without secrets, which are not needed here."""
        manifest = server.manifest
        if manifest is None:
            raise InvalidManifest(server.problem)
        values = self._store.config(server.id).values
        secret = {item.key for item in manifest.configurable_properties if item.sensitive}
        permissions.parse(server.id, manifest.permissions, values, sensitive=secret)
        return {**manifest.to_json(), "config": values}

    async def _run(self, server: InstalledServer, manifest: Path) -> object:
        directory = manifest.parent
        program = scripts_program(server.id, str(manifest))
        is_bare = server.script is None or server.script.path is None
        spec = build_spec(
            server.id,
            (*program.argv, "--describe"),
            cwd=directory if is_bare else server.directory,
            writable=(),
            readable=[directory, *(Path(mount.source) for mount in (*program.mounts(), *script_mounts(server)))],
            network=False,
            env={},
            paths=self._paths,
            scope=self._scope,
        )
        done = await run(PlainLauncher(), replace(spec, id=f"check:{server.id}"), timeout=TIMEOUT)
        if done.code:
            lines = done.stderr_tail.strip().splitlines() or [f"it exited with status {done.code}"]
            raise InvalidManifest(f"{server.id}: could not list what it offers: {lines[-1]}")
        return load_json(done.stdout, server.id)


def narrow(features: Features, rules: str) -> None:
    """Apply the *rules* of the mcps map, as the bridge gets them, to *features*."""
    stages = policy.load(rules)
    if stages is None:
        return
    _, shape = stages.apply("tools/list", {})
    if shape is not None:
        response = {"result": jsonrpc.Raw(jsonrpc.encode({"tools": features.tools}))}
        shape(response)
        features.tools = _list(load_json(bytes(response["result"]), features.id), "tools")
    for name in ("resources", "prompts"):
        try:
            stages.apply(f"{name}/list", {})
        except policy.Answered:
            setattr(features, name, [])


def _written(directory: str, document: dict[str, Any]) -> Path:
    """Write *document* to a file in the private *directory*; return its path."""
    path = Path(directory).resolve() / "manifest.json"
    path.write_bytes(json.dumps(document).encode())
    return path


def _list(document: object, name: str) -> list[Any]:
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, list) else []


SOURCE: Final = ".source.json"
"""Suffix of the name of a source file."""
_STDOUT: Final = "-"
_MODE: Final = 0o644
"""Mode of a new map, which mcpd and the users of servers must be able to read."""
_AS_ROOT: Final = (
    "root does not run code from files that are not in use yet; as an ordinary user, 'mcpctl --user mcps check FILE'"
    " shows what servers would offer"
)


def build_map(args: argparse.Namespace) -> int:
    """``mcpctl mcps build``."""
    paths, scope = from_environment(), _scope(args)
    directory = Path(args.contents) if args.contents else paths.layout(scope).contents
    output = Path(args.output)
    if args.output != _STDOUT:
        output, mode = _target(output)
    others = [each for each in paths.contents(scope) if each != directory]
    built = build(Path(args.source), directory, others, check_permissions)
    data = dump_json(built.map)
    if args.output == _STDOUT:
        write_document(data)
        _warn_of(paths, scope, Path(args.source), directory)
        return 0
    make_directory(output.absolute().parent)
    write_atomic(output, data, mode)
    for stored in built.stored:
        write(f"{clean(stored.field)}: {clean(stored.path)} is cid://{stored.id}")
    write(f"Wrote {clean(output)}, and stored the contents that it refers to in {clean(directory)}.")
    _warn_of(paths, scope, Path(args.source), directory)
    return 0


def _warn_of(paths: Paths, scope: Scope, source: Path, directory: Path) -> None:
    """Warn about the parts of *source* that have no effect or cannot be read; *directory* has its contents."""
    with TemporaryDirectory(prefix="mcps-") as made:
        for found in _preview(paths, scope, made, [source], [directory]).checks:
            if found.result != "ok":
                warn(f"{found.message}; {found.advice}" if found.advice else found.message)


def _target(output: Path) -> tuple[Path, int]:
    """Return the file to write for *output*, with symlinks resolved, and its mode.

    Raises :class:`~mcpd.errors.McpdError` if it cannot be written, before anything is written.
    """
    target = output
    if output.is_symlink():
        if output.lstat().st_uid != os.geteuid():
            raise InvalidArgument(f"{output} is a symlink owned by another user; specify its target instead")
        target = Path(os.path.realpath(output))
    exists = os.path.lexists(target)
    if exists and (target.is_symlink() or not target.is_file()):
        raise InvalidArgument(f"{output} is not a regular file; specify one, or - for standard output")
    directory = target.absolute().parent
    if directory.exists() and not os.access(directory, os.W_OK | os.X_OK):
        raise ReadOnly(f"{target}: no permission to write to {directory}")
    return target, stat.S_IMODE(target.stat().st_mode) if exists else _MODE


async def check(args: argparse.Namespace) -> int:
    """``mcpctl mcps check``; 1 if there is an error.

    For root and the system scope, scripts in *FILE* are not run: anyone may have written them.

    JSON: ``{"servers": [{id, source, state, tools, resources, prompts, problems}], "checks": [{name, result, message,
    advice}], "unavailable": "why scripts could not be run"}``.
    """
    paths, scope = from_environment(), _scope(args)
    # The checks report problems below, with their lines.
    logging.getLogger("mcpd").addHandler(logging.NullHandler())
    with TemporaryDirectory(prefix="mcps-") as made:
        preview = await asyncio.to_thread(_preview, paths, scope, made, [Path(name) for name in args.files])
        describer = Describer(preview.store, paths, scope, _AS_ROOT if args.files and _is_for_root(scope) else "")
        described = await describer.all(preview.servers)
    checks = [*preview.checks, *_problems(described, preview)]
    if args.json:
        servers = [asdict(features) for features in described]
        unavailable = describer.unavailable
        write_json({"servers": servers, "checks": [asdict(found) for found in checks], "unavailable": unavailable})
    else:
        _print(described, checks, describer.unavailable)
    return EXIT_FAILED if any(found.result == "fail" for found in checks) else 0


def _scope(args: argparse.Namespace) -> Scope:
    return Scope.SYSTEM if args.system else Scope.USER


def _is_for_root(scope: Scope) -> bool:
    """Return whether scripts would run as root, unlike in mcpd itself."""
    return scope is Scope.SYSTEM and os.geteuid() == 0


@dataclass(frozen=True, slots=True)
class _PreviewPaths(Paths):
    """The paths of the machine, with other map files for one scope and the contents that they need."""

    built: Path

    def contents(self, scope: Scope) -> list[Path]:
        """See :meth:`mcpd.paths.Paths.contents`."""
        return [self.built, *Paths.contents(self, scope)]


@dataclass(frozen=True, slots=True)
class _Preview:
    """The servers and checks of the map in use, or of the given files instead of it."""

    store: Store
    servers: list[InstalledServer]
    checks: list[Check]
    names: dict[str, str]
    """Names of temporary files, mapped to the names of the original files for messages."""


def _preview(paths: Paths, scope: Scope, made: str, files: Sequence[Path], more: Sequence[Path] = ()) -> _Preview:
    """Load the map of *scope*, or *files* in place of it; *made* is an empty directory for temporary files.

    Contents are also searched in the directories *more*.
    """
    scratch = Path(made).resolve()
    if not files:
        store = Store(paths, scope)
        servers = store.list()
        found = list(map_checks(paths, scope, Known(paths, scope), deep=True))
        shown = [server for server in servers if server.script is not None or server.entry is not NO_ENTRY]
        return _Preview(store, shown, found, {})
    layout = replace(paths.layout(scope), settings=scratch / "mcpd.toml", cache=scratch / "cache")
    user, system = (layout, paths.system) if scope is Scope.USER else (paths.user, layout)
    tried = _PreviewPaths(user, system, paths.vendor, paths.home, scratch / "cas")
    layout.mcps_dir.mkdir()
    checks: list[Check] = []
    maps: list[MapFile] = []
    names: dict[str, str] = {}
    for number, path in enumerate(files):
        try:
            read, stored = _map(path, [*more, *paths.contents(scope)], tried.built, scope)
        except InvalidManifest as error:
            checks += [Check(NAME, "fail", line) for line in error.message.splitlines()]
            continue
        copy = layout.mcps_dir / f"{number:06}.json"
        copy.write_text(json.dumps(read.data), encoding="ascii")
        names |= {str(copy): read.origin, **{str(tried.built / each.id): str(each.path) for each in stored}}
        maps.append(read)
    store = Store(tried, scope)
    servers = store.list()
    # The tools that servers listed are in the real store, not in the temporary one.
    known = Known(tried, scope, tools=Store(paths, scope))
    for read in maps:
        checks += entry_checks(read, known, [*more, *tried.contents(scope)])
    named = {server_id for read in maps for server_id in read.data}
    return _Preview(store, [server for server in servers if server.id in named], checks, names)


def _map(path: Path, known: Sequence[Path], built: Path, scope: Scope) -> tuple[MapFile, list[Stored]]:
    """Read the map in *path*, or build it in *built* from a source file; return it with the contents that were stored.

    Raises :class:`~mcpd.errors.InvalidManifest`.
    """
    if path.name.endswith(SOURCE) and path.exists():
        made = build(path, built, known, check_permissions)
        return MapFile(str(path), made.text, made.map, scope), made.stored
    found = read_map(path, known, scope)
    if found is None:
        raise NotFound(f"{path}: there is no such file")
    return found, []


def _problems(described: Sequence[Features], preview: _Preview) -> list[Check]:
    """Return a failure for each problem of the servers that the checks of *preview* do not report already."""
    found = []
    for features in described:
        features.source = _with_original_names(features.source, preview.names)
        features.problems = [_with_original_names(problem, preview.names) for problem in features.problems]
        for problem in features.problems:
            bare = problem.removeprefix(f"{features.id}: ")
            entry = f"entry {features.id!r}: {bare.partition(':')[0]}: "
            if not any(bare in known.message or entry in known.message for known in preview.checks):
                found.append(Check(features.id, "fail", f"{features.id}: {bare}"))
    return found


def _with_original_names(text: str, names: Mapping[str, str]) -> str:
    """Return *text* with the names of the original files instead of the temporary ones."""
    for name, given in names.items():
        text = text.replace(name, given)
    return text


def _print(described: Sequence[Features], checks: Sequence[Check], unavailable: str) -> None:
    rows = [row for features in described for row in _rows(features, asked=not unavailable)]
    if rows:
        table(("SERVER", "OFFERS", "NAME", "DESCRIPTION"), rows)
    elif not any(found.result == "fail" for found in checks):
        note("There are no script servers, and no entries for other servers.")
    if unavailable:
        warn(f"scripts were only read, not run: {unavailable}")
    for found in checks:
        write(f"{coloured(found.result, 4)}  {clean(found.message)}")
        if found.advice and found.result != "ok":
            write(f"      {clean(found.advice)}")


def _rows(features: Features, *, asked: bool) -> list[tuple[str, str, str, str]]:
    """Return a table row for each tool, resource and prompt in *features*."""
    if features.state != "script":
        return [(features.id, features.state, "", features.source)]
    rows = [
        (features.id, kind[:-1], str(item.get(key, "")), first_line(item.get("description") or item.get("title") or ""))
        for kind, key in (("tools", "name"), ("resources", "uri"), ("prompts", "name"))
        for item in getattr(features, kind)
    ]
    return rows or [(features.id, "nothing" if asked else "not asked", "", features.source)]
