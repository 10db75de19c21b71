# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package source ``mcpb``: an MCP bundle (.mcpb), a zip file with a manifest that describes its server."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mcpd import bounded
from mcpd.errors import InvalidManifest, LimitExceeded
from mcpd.formats.mcpb import entry_of_bundle
from mcpd.install import unpack
from mcpd.install.sources.archive import ArchiveFile, check_url
from mcpd.install.sources.base import LockedFile, Outcome, Resolution
from mcpd.install.sources.project import ProjectBuild
from mcpd.install.sources.pypi import VENV
from mcpd.model import SourceType, load_json
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source

MANIFEST: Final = "manifest.json"
"""Name of the member that describes the server; in a generation, mcpd's own manifest has this name."""
_OWN: Final = ("transports", "configurableProperties", "env")
"""Fields of an entry that only the bundle can define."""
_PROJECT: Final = ("pyproject.toml", "requirements.txt")


class McpbRecipe:
    """Recipe for the bundle ``source.url``."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        self._archive = ArchiveFile(bench, source)
        self._file = LockedFile("", "", "")
        self._type = ""
        self._project: ProjectBuild | None = None

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        check_url(entry, source)

    async def resolve(self) -> Resolution:
        """See :class:`~mcpd.install.sources.base.Recipe`; downloads the bundle, which describes its server."""
        self._bench.stage(0, 10)
        digest = await self._archive.download()
        origin = f"{self._bench.entry.id}: {MANIFEST} of {self._archive.name}"
        manifest = load_json(await self._archive.member(MANIFEST), origin)
        bundle = entry_of_bundle(manifest, origin, id=self._bench.entry.id)
        self._type = str(manifest["server"]["type"])
        self._file = LockedFile(self._archive.name, bundle.version, f"sha256:{digest}")
        described = self._bench.entry.stdio is not None
        entry = None if described else merged(self._bench.entry, bundle, origin)
        return Resolution((self._file,), entry, await in_thread(self._archive.size))

    async def fetch(self) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        unpacked = await self._archive.extract()
        await in_thread(self._adopt, unpacked)
        if await in_thread(self._needs_packages):
            self._project = ProjectBuild(self._bench)
            await self._project.fetch()

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        outcome = Outcome()
        if self._project is not None:
            outcome = await self._project.build({})
        await in_thread(self._allow_start)
        return replace(
            outcome,
            version=self._file.version,
            resolved={"sha256": self._file.integrity.removeprefix("sha256:")},
            files=(self._file, *outcome.files),
        )

    def _adopt(self, unpacked: Path) -> None:
        """Move the content of the bundle into the generation."""
        left_out = {MANIFEST, VENV} if self._type == "uv" else {MANIFEST}
        self._archive.refuse_reserved(unpacked)
        for path in sorted(unpacked.iterdir()):
            if path.name not in left_out:
                path.rename(self._bench.root / path.name)

    def _needs_packages(self) -> bool:
        """Return whether the bundle requires Python packages that it does not contain."""
        root = self._bench.root
        named = any((root / name).is_file() for name in _PROJECT)
        libraries = (path for place in self._library_paths() for path in (root / place).glob("*.dist-info"))
        brought = (root / VENV).is_dir() or any(libraries)
        return named and (self._type == "uv" or (self._type == "python" and not brought))

    def _library_paths(self) -> list[str]:
        """Return the directories of Python modules in the bundle, according to ``PYTHONPATH`` in its environment."""
        env = (self._bench.entry.model_extra or {}).get("env")
        named = str(env.get("PYTHONPATH", "")) if isinstance(env, dict) else ""
        return [path for path in named.split(":") if path and not path.startswith(("/", "{"))]

    def _allow_start(self) -> None:
        """Make the program executable, since many zip files do not record that it is."""
        stdio = self._bench.entry.stdio
        root = self._bench.root.resolve()
        if stdio is None or "/" not in stdio.command or stdio.command.startswith("/"):
            return
        path = (root / stdio.command).resolve()
        if path.is_relative_to(root) and path.is_file():
            path.chmod(0o755)


def merged(entry: Entry, bundle: Entry, origin: str) -> Entry:
    """Return the registry's *entry* with the transports, properties and environment of its *bundle*.

    Descriptive texts and permissions are the registry's, where it has any; the bundle's permissions that depend on the
    configuration are added. Raises :class:`~mcpd.errors.InvalidManifest` that names *origin*.
    """
    said, own = entry.to_json(), bundle.to_json()
    document: dict[str, Any] = {**own, **{key: value for key, value in said.items() if value not in (None, "", [], {})}}
    for key in _OWN:
        document.pop(key, None)
        if key in own:
            document[key] = own[key]
    if entry.name == entry.id:  # the default for an entry without a name
        document["name"] = bundle.name
    document["transports"] = [*own["transports"], *(t.to_json() for t in entry.transports if t.is_remote)]
    if "permissions" in entry.model_fields_set:
        named = [text for text in bundle.permissions if "{config." in text]
        document["permissions"] = list(dict.fromkeys([*entry.permissions, *named]))
    if not bundle.runs_here:
        document["platforms"] = bundle.platforms
    return type(entry).parse(document, origin)


@dataclass(frozen=True, slots=True)
class Bundle:
    """mcpd's own copy of a user-supplied bundle."""

    path: Path
    sha256: str
    entry: Entry
    """The entry in the bundle's manifest, with the copy as its package source."""

    def remove(self) -> None:
        """Remove the copy."""
        self.path.unlink(missing_ok=True)


def describe(path: Path, sha256: str) -> Bundle:
    """Read the bundle in the file *path*, which has the hash *sha256*. Blocks.

    Raises :class:`~mcpd.errors.InvalidManifest` for an invalid bundle; the file is kept.
    """
    return Bundle(path, sha256, _describe(path, sha256))


def _describe(path: Path, sha256: str) -> Entry:
    try:
        ended, said = bounded.run(
            [sys.executable or "/usr/bin/python3", "-I", "-S", unpack.__file__, "member", str(path), MANIFEST], b""
        )
    except LimitExceeded as error:
        raise InvalidManifest("the bundle takes too long to read") from error
    if ended != 0:
        fault = said.decode("utf-8", "replace").strip().removeprefix("error: ")
        raise InvalidManifest(f"the bundle cannot be read: {fault[-300:]}")
    entry = entry_of_bundle(load_json(said, "the bundle's manifest.json"), "the bundle's manifest.json")
    document = entry.to_json() | {"source": {"type": str(SourceType.MCPB), "url": path.as_uri(), "sha256": sha256}}
    return type(entry).parse(document, "the bundle's manifest.json")
