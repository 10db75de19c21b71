# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl mcps``: the map of what servers offer, made from a source and checked (``docs/mcps.md``)."""

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
from mcpd.cli.output import clean, coloured, note, table, warn, write, write_document, write_json
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
from mcpd.model import dump_json, load_json
from mcpd.paths import Paths, Scope, from_environment
from mcpd.runtime import permissions
from mcpd.runtime.bundled import scripts_program
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.run import run
from mcpd.runtime.sandbox import build_spec, script_mounts
from mcpd.store import Store, write_atomic
from mcpd.store.files import make_directory
from mcpd.store.generator import build
from mcpd.store.mcps import NO_ENTRY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from mcpd.store import InstalledServer
    from mcpd.store.generator import Stored

TIMEOUT: Final = 60.0
"""Seconds for one server: three transforms have 5 each."""
FACILITIES: Final = ("tools", "resources", "prompts")


@dataclass(slots=True)
class Offer:
    """What clients would get of one server."""

    id: str
    source: str
    """The file that it is made from; empty for an entry of the map alone."""
    state: str
    """``script``; ``installed``, ``disabled`` and ``broken`` are not asked."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Describer:
    """Describes servers of *store*, some at once; *paths* are those of the machine, whose secrets stay hidden."""

    def __init__(self, store: Store, paths: Paths, scope: Scope, unavailable: str = "") -> None:
        """*unavailable*: why nothing shall be run."""
        self._store, self._paths, self._scope = store, paths, scope
        self._turn = asyncio.Semaphore(os.cpu_count() or 1)
        self.unavailable = unavailable
        """Why nothing is run here; what is not run is only read."""

    async def all(self, servers: Sequence[InstalledServer]) -> list[Offer]:
        """What each of *servers* would offer, in their order."""
        tasks = [asyncio.create_task(self._offer(server)) for server in servers]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _offer(self, server: InstalledServer) -> Offer:
        path = server.script.path if server.script is not None else server.directory
        offer = Offer(server.id, str(path or ""), "script" if server.script is not None else "installed")
        if server.problem:
            offer.state, offer.problems = "broken", [server.problem]
            return offer
        if server.clash:
            offer.problems.append(server.clash)
        if server.entry.disabled:
            offer.state = "disabled"
        elif server.script is not None:
            try:
                async with self._turn:
                    await self._describe(server, offer)
            except (SandboxUnavailable, NotSupported) as error:
                self.unavailable = error.message
            except McpdError as error:
                offer.problems.append(error.message)
        return offer

    async def _describe(self, server: InstalledServer, offer: Offer) -> None:
        document = await asyncio.to_thread(self._document, server)
        if self.unavailable:
            return
        with TemporaryDirectory(prefix="mcps-") as made:
            said = await self._run(server, await asyncio.to_thread(_written, made, document))
        for name in FACILITIES:
            setattr(offer, name, [item for item in _list(said, name) if isinstance(item, dict)])
        offer.problems += [str(problem) for problem in _list(said, "problems")]
        narrow(offer, server.entry.policy)

    def _document(self, server: InstalledServer) -> dict[str, Any]:
        """The private manifest of *server* without secrets, which are not needed to tell what it offers."""
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
            said = done.stderr_tail.strip().splitlines() or [f"it ended with status {done.code}"]
            raise InvalidManifest(f"{server.id}: cannot be described: {said[-1]}")
        return load_json(done.stdout, server.id)


def narrow(offer: Offer, rules: str) -> None:
    """Take from *offer* what the entries of the map, as the bridge gets them in *rules*, do not let clients have."""
    stages = policy.load(rules)
    if stages is None:
        return
    _, shape = stages.apply("tools/list", {})
    if shape is not None:
        response = {"result": jsonrpc.Raw(jsonrpc.encode({"tools": offer.tools}))}
        shape(response)
        offer.tools = _list(load_json(bytes(response["result"]), offer.id), "tools")
    for name in ("resources", "prompts"):
        try:
            stages.apply(f"{name}/list", {})
        except policy.Answered:
            setattr(offer, name, [])


def _written(directory: str, document: dict[str, Any]) -> Path:
    """The file in *directory*, which nobody else can look into, that *document* was written to."""
    path = Path(directory).resolve() / "manifest.json"
    path.write_bytes(json.dumps(document).encode())
    return path


def _list(said: object, name: str) -> list[Any]:
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, list) else []


SOURCE: Final = ".source.json"
"""Ends the names of sources."""
_STDOUT: Final = "-"
_MODE: Final = 0o644
"""Of a new map, which those whom it is for have to read."""
_AS_ROOT: Final = (
    "root runs no code of files that are not in use yet; 'mcpctl --user mcps check FILE', by an ordinary user, shows"
    " what servers would offer"
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
    write(f"Wrote {clean(output)}; what it names by content ids is in {clean(directory)}.")
    _warn_of(paths, scope, Path(args.source), directory)
    return 0


def _warn_of(paths: Paths, scope: Scope, source: Path, directory: Path) -> None:
    """Tell on stderr what of a map that could be built of *source* has no effect or cannot be read."""
    with TemporaryDirectory(prefix="mcps-") as made:
        for found in _trial(paths, scope, made, [source], [directory]).checks:
            if found.result != "ok":
                warn(f"{found.message}; {found.advice}" if found.advice else found.message)


def _target(output: Path) -> tuple[Path, int]:
    """The file that *output* is or leads to, and the mode that it has or shall have.

    Raises what is wrong with it before any content is written for it.
    """
    target = output
    if output.is_symlink():
        if output.lstat().st_uid != os.geteuid():
            raise InvalidArgument(f"{output} is another user's symlink; name the file that it leads to")
        target = Path(os.path.realpath(output))
    exists = os.path.lexists(target)
    if exists and (target.is_symlink() or not target.is_file()):
        raise InvalidArgument(f"{output} is not a file; name one, or - for standard output")
    directory = target.absolute().parent
    if directory.exists() and not os.access(directory, os.W_OK | os.X_OK):
        raise ReadOnly(f"{target}: you may not write in {directory}")
    return target, stat.S_IMODE(target.stat().st_mode) if exists else _MODE


async def check(args: argparse.Namespace) -> int:
    """``mcpctl mcps check``; 1 if something is wrong.

    What files name may be anybody's code still, and is not run for root on behalf of the system.

    JSON: ``{"servers": [{id, source, state, tools, resources, prompts, problems}], "checks": [{name, result, message,
    advice}], "unavailable": "why scripts could not be run"}``.
    """
    paths, scope = from_environment(), _scope(args)
    # What is wrong is told below, with the line.
    logging.getLogger("mcpd").addHandler(logging.NullHandler())
    with TemporaryDirectory(prefix="mcps-") as made:
        trial = await asyncio.to_thread(_trial, paths, scope, made, [Path(name) for name in args.files])
        describer = Describer(trial.store, paths, scope, _AS_ROOT if args.files and _is_for_root(scope) else "")
        offers = await describer.all(trial.servers)
    checks = [*trial.checks, *_problems(offers, trial)]
    if args.json:
        servers = [asdict(offer) for offer in offers]
        unavailable = describer.unavailable
        write_json({"servers": servers, "checks": [asdict(found) for found in checks], "unavailable": unavailable})
    else:
        _print(offers, checks, describer.unavailable)
    return EXIT_FAILED if any(found.result == "fail" for found in checks) else 0


def _scope(args: argparse.Namespace) -> Scope:
    return Scope.SYSTEM if args.system else Scope.USER


def _is_for_root(scope: Scope) -> bool:
    """Whether what is run would be run by root, as whom the system's own mcpd runs nothing."""
    return scope is Scope.SYSTEM and os.geteuid() == 0


@dataclass(frozen=True, slots=True)
class _TrialPaths(Paths):
    """Those of the machine, with other files for the map of one scope and content that only they need."""

    built: Path

    def contents(self, scope: Scope) -> list[Path]:
        """See :meth:`mcpd.paths.Paths.contents`."""
        return [self.built, *Paths.contents(self, scope)]


@dataclass(frozen=True, slots=True)
class _Trial:
    """What is to be looked at."""

    store: Store
    servers: list[InstalledServer]
    checks: list[Check]
    names: dict[str, str]
    """What messages shall call the files that stand for others."""


def _trial(paths: Paths, scope: Scope, made: str, files: Sequence[Path], more: Sequence[Path] = ()) -> _Trial:
    """The map of *scope*, or with *files* what it would be with them instead of its own, in the directory *made*.

    Contents may lie in *more* directories, too.
    """
    scratch = Path(made).resolve()
    if not files:
        store = Store(paths, scope)
        servers = store.list()
        found = list(map_checks(paths, scope, Known(paths, scope), deep=True))
        shown = [server for server in servers if server.script is not None or server.entry is not NO_ENTRY]
        return _Trial(store, shown, found, {})
    layout = replace(paths.layout(scope), settings=scratch / "mcpd.toml", cache=scratch / "cache")
    user, system = (layout, paths.system) if scope is Scope.USER else (paths.user, layout)
    tried = _TrialPaths(user, system, paths.vendor, paths.home, scratch / "cas")
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
    # What servers have listed is not in the directory of a trial.
    known = Known(tried, scope, tools=Store(paths, scope))
    for read in maps:
        checks += entry_checks(read, known, [*more, *tried.contents(scope)])
    named = {server_id for read in maps for server_id in read.data}
    return _Trial(store, [server for server in servers if server.id in named], checks, names)


def _map(path: Path, known: Sequence[Path], built: Path, scope: Scope) -> tuple[MapFile, list[Stored]]:
    """The map in the file *path*, or what is made of it if it is a source, and what was put into *built* for it.

    Raises :class:`~mcpd.errors.InvalidManifest`.
    """
    if path.name.endswith(SOURCE) and path.exists():
        made = build(path, built, known, check_permissions)
        return MapFile(str(path), made.text, made.map, scope), made.stored
    found = read_map(path, known, scope)
    if found is None:
        raise NotFound(f"{path}: there is no such file")
    return found, []


def _problems(offers: Sequence[Offer], trial: _Trial) -> list[Check]:
    """What is wrong with servers; what was said of their entries already is not said again."""
    found = []
    for offer in offers:
        offer.source = _as_given(offer.source, trial.names)
        offer.problems = [_as_given(problem, trial.names) for problem in offer.problems]
        for problem in offer.problems:
            bare = problem.removeprefix(f"{offer.id}: ")
            said = f"entry {offer.id!r}: {bare.partition(':')[0]}: "
            if not any(bare in known.message or said in known.message for known in trial.checks):
                found.append(Check(offer.id, "fail", f"{offer.id}: {bare}"))
    return found


def _as_given(text: str, names: Mapping[str, str]) -> str:
    """*text* with the files that were given, instead of what stood for them."""
    for name, given in names.items():
        text = text.replace(name, given)
    return text


def _print(offers: Sequence[Offer], checks: Sequence[Check], unavailable: str) -> None:
    rows = [row for offer in offers for row in _rows(offer, asked=not unavailable)]
    if rows:
        table(("SERVER", "OFFERS", "NAME", "DESCRIPTION"), rows)
    elif not any(found.result == "fail" for found in checks):
        note("There are no script servers, and no entries for others.")
    if unavailable:
        warn(f"scripts were only read: {unavailable}")
    for found in checks:
        write(f"{coloured(found.result, 4)}  {clean(found.message)}")
        if found.advice and found.result != "ok":
            write(f"      {clean(found.advice)}")


def _rows(offer: Offer, *, asked: bool) -> list[tuple[str, str, str, str]]:
    """A line for each thing that *offer* has."""
    if offer.state != "script":
        return [(offer.id, offer.state, "", offer.source)]
    rows = [
        (offer.id, kind[:-1], str(item.get(key, "")), _first_line(item))
        for kind, key in (("tools", "name"), ("resources", "uri"), ("prompts", "name"))
        for item in getattr(offer, kind)
    ]
    return rows or [(offer.id, "nothing" if asked else "not asked", "", offer.source)]


def _first_line(item: dict[str, Any]) -> str:
    text = str(item.get("description") or item.get("title") or "")
    return text.strip().partition("\n")[0]
