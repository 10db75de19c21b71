# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build of a project tree (from git, an archive or a local directory).

A Python project gets a virtual environment with the requirements of ``pyproject.toml``, ``setup.py`` and
``requirements.txt``, a node project the ``node_modules`` of its lock file, and a plain script nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
import zlib
from email.parser import BytesParser
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import BuildFailed, InvalidManifest
from mcpd.install.sources.base import MAX_LOCK, LockedFile, Outcome, read_project_file
from mcpd.install.sources.npm import NodeModules, declared_commands
from mcpd.install.sources.pypi import PythonEnvironment, PythonProject, check_line
from mcpd.install.trees import EXCLUDED
from mcpd.package_sources import normalise_python
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.install.workbench import Workbench
    from mcpd.model import JsonValue

MAX_METADATA: Final = 1024 * 1024
"""Maximum number of bytes that are read of a wheel's metadata; a hostile wheel may unpack to any size."""
MAX_DIRECTORY: Final = 16 * 1024 * 1024
"""Maximum size in bytes of a wheel's table of contents, which has about 100 for each file."""
_ZIP_MARK: Final = b"PK\x05\x06"
_ZIP_END: Final = 22 + 65_535
"""Number of bytes at the end of a zip file that contain the position of its table of contents."""


def project_directory(top: Path, path: str, entry_id: str, where: str) -> Path:
    """Return the directory *path* below the resolved directory *top*; *where* is the name of *top* for messages.

    Raises :class:`~mcpd.errors.InvalidManifest` if it does not exist, or if a link in its path leads outside *top*.
    """
    root = (top / path).resolve()
    if not root.is_relative_to(top):
        raise InvalidManifest(f"{entry_id}: source.path {path!r} leads outside {where}")
    if not root.is_dir():
        raise InvalidManifest(f"{entry_id}: {where} has no directory {path!r}")
    return root


class ProjectBuild:
    """Build of a project whose files are already in the generation."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._python: PythonProject | None = None
        self._package_json: dict[str, Any] = {}
        self._environment = PythonEnvironment(bench)
        self._node = NodeModules(bench)
        self._node_files: list[LockedFile] = []
        self._build_wheels = bench.scratch / "build-wheels"

    async def fetch(self) -> None:
        """Detect the project's languages and fetch the requirements of its build."""
        stdio = self._bench.entry.stdio
        language = _language(stdio.command if stdio else "")
        if language != "node":
            self._python = await in_thread(PythonProject.read, self._bench.root)
        if language != "python":
            self._package_json = await in_thread(_package_json, self._bench.root)
        await self._fetch_python()
        if _has_dependencies(self._package_json):
            existing = await in_thread(_node_lock, self._bench.root)
            self._node_files = await self._node.lock(self._package_json, existing)
            await self._node.install(self._node_files)

    async def _fetch_python(self) -> None:
        if self._python is not None and self._python.is_package:
            needed = await self._environment.resolve(
                self._python.build_requirements, doing="resolving the build tools", public=True
            )
            await self._environment.download(needed, self._build_wheels, doing="downloading the build tools")

    async def build(self, resolved: dict[str, JsonValue]) -> Outcome:
        """Build and install; *resolved* identifies the exact state of the source."""
        version, package, scripts, files = "", "", [], list(self._node_files)
        if self._node_files:
            self._node.adopt()
        if self._package_json:
            version, package = str(self._package_json.get("version", "")), str(self._package_json.get("name", ""))
            scripts = await in_thread(declared_commands, self._bench.root)
        if self._python is not None and self._python.needs_environment:
            own, installed = await self._install_python(self._python)
            files += installed
            if own is not None:
                version, package = own.version, normalise_python(own.name)
                scripts = await in_thread(self._environment.scripts, own.name)
        return Outcome(version=version, resolved=resolved, files=tuple(files), package=package, scripts=tuple(scripts))

    async def _install_python(self, project: PythonProject) -> tuple[LockedFile | None, list[LockedFile]]:
        wanted = list(project.requirements)
        own: LockedFile | None = None
        if project.is_package:
            own = await self._build_wheel()
            wheel = self._environment.wheels / own.file
            for requirement in await in_thread(required_by, wheel):
                check_line(requirement, f"the dependencies of {own.name}")
            hashed = any("--hash" in line for line in wanted)
            wanted.append(f"{own.name} @ {wheel.as_uri()}" + (f" --hash={own.integrity}" if hashed else ""))
        if not wanted:
            return own, []
        self._bench.stage(60, 65)
        files = await self._environment.resolve(
            wanted, doing=f"resolving the dependencies of {self._bench.entry.id}", public=True
        )
        others = [file for file in files if own is None or normalise_python(file.name) != normalise_python(own.name)]
        self._bench.stage(65, 75)
        await self._environment.download(
            others, self._environment.wheels, doing=f"downloading the dependencies of {self._bench.entry.id}"
        )
        everything = [*([own] if own else []), *others]
        self._bench.stage(75, 85)
        await self._environment.install(everything, doing=f"installing {self._bench.entry.id}")
        return own, everything

    async def _build_wheel(self) -> LockedFile:
        # The build backend may write to its source directory, so it gets a copy, and cannot tamper with anything else.
        workspace = self._bench.scratch / "build"
        for name in ("home", "tmp"):
            (workspace / name).mkdir(parents=True)
        await in_thread(_copy_sources, self._bench.root, workspace / "source", self._bench.scratch.name)
        return await self._environment.build_wheel(workspace / "source", self._build_wheels, workspace)


def _copy_sources(root: Path, target: Path, scratch: str) -> None:
    left_out = {*EXCLUDED, scratch, "node_modules"}
    shutil.copytree(root, target, symlinks=True, ignore=lambda _, names: left_out.intersection(names))


def _language(command: str) -> str:
    """Return the language that *command* implies: ``python``, ``node`` or empty if it implies none."""
    name = command.rpartition("/")[2]
    return "python" if name.startswith("python") else "node" if name in {"node", "nodejs", "npx"} else ""


def _package_json(root: Path) -> dict[str, Any]:
    content = read_project_file(root / "package.json")
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidManifest(f"the project's package.json is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidManifest("the project's package.json is not an object")
    return found


def _has_dependencies(package_json: dict[str, Any]) -> bool:
    return any(package_json.get(kind) for kind in ("dependencies", "optionalDependencies"))


def _node_lock(root: Path) -> bytes:
    for name in ("npm-shrinkwrap.json", "package-lock.json"):
        content = read_project_file(root / name, MAX_LOCK)
        if content is not None:
            return content
    return b""


def required_by(wheel: Path) -> list[str]:
    """Return the ``Requires-Dist`` lines of a wheel; raise :class:`~mcpd.errors.BuildFailed` if it cannot be read."""
    try:
        _check_directory(wheel)
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            with archive.open(name) as metadata:
                headers = BytesParser().parsebytes(metadata.read(MAX_METADATA), headersonly=True)
    except (zipfile.BadZipFile, StopIteration, RuntimeError, zlib.error, EOFError) as error:
        raise BuildFailed("the build produced a file that is not a wheel") from error
    return [str(value) for value in headers.get_all("Requires-Dist", [])]


def _check_directory(wheel: Path) -> None:
    """Raise :class:`~mcpd.errors.BuildFailed` for a table of contents that would take gigabytes of memory."""
    with wheel.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _ZIP_END))
        tail = file.read(_ZIP_END)
    # Search as zipfile does: a signature inside the last record must not be mistaken for that record.
    bare = tail[-22:-18] == _ZIP_MARK and tail[-2:] == b"\0\0"
    end = len(tail) - 22 if bare else tail.rfind(_ZIP_MARK)
    listed = int.from_bytes(tail[end + 12 : end + 16], "little") if end >= 0 else 0
    if listed > MAX_DIRECTORY or b"PK\x06\x07" in tail[max(0, end - 20) : max(0, end)]:
        raise BuildFailed("the build produced a wheel with too many files")
