# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script servers: servers without a manifest of their own, made from scripts and from entries of the mcps map.

A script ``foo.py`` or ``foo.sh`` is the server ``foo``; of several the user's comes first, then the administrator's,
then the one of a package. An entry that says what a server offers makes one without a file, too.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidManifest, McpdError
from mcpd.model import Manifest, check_id, printable
from mcpd.paths import Scope
from mcpd.store import contents
from mcpd.store.files import settled_signature
from mcpd.store.inspection import MAX_SCRIPT, Inspection, kind_of
from mcpd.store.layers import Found, Kind
from mcpd.store.records import LayerName, ScriptFile
from mcpd.store.scripts import Inspections, Script, ScriptDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Paths
    from mcpd.store.files import Signature
    from mcpd.store.mcps import Definition, McpsMap

_log = logging.getLogger(__name__)

GRACE: Final = 5.0
"""Seconds by which the bridge waits longer, so that the server can tell of a time-out itself."""


@dataclass(frozen=True, slots=True)
class ScriptLayer:
    """Where a script server comes from."""

    name: LayerName
    scope: Scope


_Made: TypeAlias = tuple[ScriptLayer, Found]
_Known: TypeAlias = "tuple[Script | None, Definition, _Made]"


class ScriptServers:
    """The script servers as one scope sees them. May be used by several threads."""

    def __init__(self, paths: Paths, scope: Scope, mcps: McpsMap) -> None:
        self._mcps = mcps
        self._inspections = Inspections(paths.layout(scope).cache / "scripts.json")
        # What an administrator names by its content is not looked for where a user can put something.
        self._contents = {each: tuple(paths.contents(each)) for each in (Scope.SYSTEM, scope)}
        self._homes = {layout.scope: layout.state for layout in (paths.system, paths.layout(scope))}
        layers = [("system", Scope.SYSTEM, paths.system.scripts), ("vendor", Scope.SYSTEM, paths.vendor_scripts)]
        if scope is Scope.USER:
            layers.insert(0, ("user", Scope.USER, paths.user.scripts))
        self._layers: list[tuple[ScriptLayer, ScriptDirectory]] = [
            (ScriptLayer(name, scope), ScriptDirectory(root, self._inspections))  # type: ignore[arg-type] # literals
            for name, scope, root in layers
        ]
        self._made: dict[str, _Known] = {}
        self._hidden: dict[str, Path] = {}
        self._files: dict[str, Path] = {}
        self._stored: dict[tuple[str, str], tuple[Signature | None, Script]] = {}
        self._lock = threading.Lock()
        self._scanned: dict[str, _Made] | None = None
        self.version = 0
        """Another number whenever :meth:`scan` found something else."""

    def scan(self, *, wait: bool = True) -> dict[str, _Made]:
        """All of them, by id. The map has to have been refreshed before.

        Another thread that looks may take its time, if scripts are new; who does not *wait* for it gets what was there
        before, which is nothing before the first look is done.
        """
        if not self._lock.acquire(blocking=wait):
            return self._scanned or {}
        try:
            self._scanned = self._scan()
        finally:
            self._lock.release()
        return self._scanned

    @property
    def seen(self) -> dict[str, _Made] | None:
        """What the last :meth:`scan` found; None before the first."""
        return self._scanned

    def _scan(self) -> dict[str, _Made]:
        found: dict[str, tuple[ScriptLayer, Script | None]] = {}
        hidden: dict[str, Path] = {}
        for layer, directory in self._layers:
            for server_id, script in directory.scan().items():
                if found.setdefault(server_id, (layer, script))[1] is script and server_id in directory.hidden:
                    hidden[server_id] = directory.hidden[server_id]
        self._files = {server_id: script.path for server_id, (_, script) in found.items() if script is not None}
        for server_id, scope in self._mcps.servers().items():
            name: LayerName = "user" if scope is Scope.USER else "system"
            found.setdefault(server_id, (ScriptLayer(name, scope), None))
        made = {server_id: self._server(server_id, *each) for server_id, each in found.items()}
        is_same = made.keys() == self._made.keys() and all(made[key] is self._made[key] for key in made)
        if not is_same or hidden != self._hidden:
            self.version += 1
        self._made, self._hidden = made, hidden
        named = {(server_id, each[1].entry.definition_cid) for server_id, each in made.items()}
        self._stored = {key: stored for key, stored in self._stored.items() if key in named}
        stored = (script for _, script in self._stored.values())
        self._inspections.save(chain(stored, *(directory.scripts() for _, directory in self._layers)))
        # By the id that is shown, as a key of the map may be none.
        return {each[2][1].id: each[2] for each in made.values()}

    def clash(self, server_id: str, *, installed: bool) -> str:
        """Which script of the last scan is not used, as a server or another script has the id."""
        hidden = self._files.get(server_id) if installed else self._hidden.get(server_id)
        return f"{hidden} has the same id and is not used; rename one of them" if hidden is not None else ""

    def _server(self, server_id: str, layer: ScriptLayer, script: Script | None) -> _Known:
        definition = self._mcps.definition(server_id, layer.scope)
        if script is None and definition.entry.definition_cid:
            script = self._from_contents(server_id, definition.entry.definition_cid, self._contents[layer.scope])
        known = self._made.get(server_id)
        if known is not None and known[0] is script and known[1] is definition and known[2][0] == layer:
            return known
        return script, definition, (layer, self._found(server_id, layer, script, definition))

    def _from_contents(self, server_id: str, cid: str, directories: tuple[Path, ...]) -> Script:
        """The script that an entry names by its content; read again only if its file changed."""
        before, known = self._stored.get((server_id, cid), (None, None))
        if known is not None and before is not None and settled_signature(known.path) == before:
            return known
        now, fault = None, None
        try:
            now, script = self._content(server_id, cid, directories)
        except McpdError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001 -- a boundary: no entry takes the other servers away
            problem, fault = "it cannot be looked at, by a fault of mcpd's own", error
        else:
            problem = ""
        if problem:
            found = Inspection(problem=f"{printable(server_id)}: definition_cid: {problem}")
            script = Script(server_id, directories[0] / "nothing", directories[0], "", "", found, is_content=True)
            if fault is not None and known != script:
                _log.error("%s", found.problem, exc_info=fault)
        if known == script:
            script = known
        self._stored[server_id, cid] = now, script
        return script

    def _content(self, server_id: str, cid: str, directories: tuple[Path, ...]) -> tuple[Signature | None, Script]:
        data, path = contents.find(cid, directories, MAX_SCRIPT)
        if path is None:
            raise InvalidManifest(f"the content {cid} is in its id only; 'mcpctl mcps build' stores it")
        # Where a symlink leads is not looked at: what lies beside that is not the server's.
        root = path.parent.resolve()
        path = root / path.name
        signed = settled_signature(path)
        digest, found = self._inspections.of(data, kind_of(data))
        if found.problem:
            found = Inspection(found.summary, found.version, f"{path}:{found.problem}")
        return signed, Script(server_id, path, root, kind_of(data), digest, found, is_content=True)

    def _found(self, server_id: str, layer: ScriptLayer, script: Script | None, definition: Definition) -> Found:
        inspection = script.found if script is not None else Inspection()
        path = script.path if script is not None else None
        directory = script.root if script is not None else self._homes[layer.scope] / server_id
        file = ScriptFile(path, script.sha256 if script is not None else "", self._contents[layer.scope])
        document = _document(server_id, script, definition, file)
        manifest, problem = None, inspection.problem
        if not problem:
            try:
                check_id(server_id)
                manifest = Manifest.parse(document, str(path or printable(server_id)))
            except InvalidManifest as error:
                problem = error.message
            except Exception as error:  # noqa: BLE001 -- the same boundary
                problem = f"{printable(server_id)}: it cannot be made a server, by a fault of mcpd's own"
                _log.error("%s", problem, exc_info=error)
        return Found(
            printable(server_id),
            Kind.SCRIPT,
            directory,
            directory,
            path or directory,
            manifest,
            problem,
            document=document,
            script=file,
        )


def _document(server_id: str, script: Script | None, definition: Definition, file: ScriptFile) -> dict[str, Any]:
    """The manifest of a script server: what an installed one would have, and what its process has to know."""
    entry, inspection = definition.entry, script.found if script is not None else Inspection()
    runtime = entry.runtime.to_json()
    runtime["callTimeout"] = entry.runtime.seconds + GRACE
    if "sharing" not in runtime:
        runtime["sharing"] = "caller"
    kept = {
        key: definition.raw[key] for key in ("permissions", "env", "configurableProperties") if key in definition.raw
    }
    return {
        "id": server_id,
        "name": server_id,
        "summary": entry.summary or inspection.summary,
        "description": entry.description,
        "version": inspection.version,
        "transports": [{"type": "stdio", "command": "mcpctl", "args": ["run", server_id]}],
        **kept,
        "runtime": runtime,
        "origin": {"source": str(file.path)} if file.path is not None else {},
        "script": {
            "path": str(file.path or ""),
            "kind": script.kind if script is not None else "",
            "sha256": file.sha256,
            "editable": script is not None and not script.is_content,
            "narrowed": bool(definition.said.policy),
            "entry": definition.raw,
            "contents": [str(directory) for directory in file.contents],
        },
    }
