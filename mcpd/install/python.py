# SPDX-License-Identifier: LGPL-2.1-or-later
"""Virtual environments and pip: resolve to a lock with hashes, download what it lists, install it offline.

pip is the one in mcpd's own environment, run by the server's interpreter, as ``pip --python`` does it. It starts
isolated (``-I``) in an empty directory, so that nothing of a package can pose as one of its modules, and accepts wheels
only: no code of any package runs while there is a network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
from email.parser import HeaderParser
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from mcpd.errors import BuildFailed, IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.install.hostconfig import pip_config
from mcpd.install.outcome import LockedFile, Words
from mcpd.install.projectfiles import read_project_file
from mcpd.install.proxy import Proxy
from mcpd.install.workbench import SYSTEM_PYTHON
from mcpd.runtime.environment import CA_BUNDLES
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mcpd.install.hostconfig import HostConfig
    from mcpd.install.workbench import Workbench

VENV: Final = ".venv"
"""Directory in a generation; the runtime puts its ``bin`` first in ``PATH``."""

PACKAGE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._,-]+\])?", re.ASCII)
VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", re.ASCII)
WHEEL: Final = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.!+]+(?:-[A-Za-z0-9_.]+){3,4}\.whl", re.ASCII)
BYTECODE: Final = Path(__file__).with_name("bytecode.py")
WHEELS_ONLY: Final = Path(__file__).with_name("wheels_only.py")
MAX_WHEEL: Final = 512 * 1024 * 1024
"""Bytes of a wheel that is built here."""
DIGEST: Final = re.compile(r"[0-9A-Fa-f]{64,128}")
"""A SHA-2 hash. What an index has for one goes into a file of requirements, which a line break would add others to."""
_STRENGTH: Final = ("sha512", "sha384", "sha256")
_WHEELS: Final = ("--only-binary", ":all:")
_LOCKED: Final = ("--require-hashes", "--no-deps")
_STEADY: Final = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_PROGRESS_BAR": "off",
}
"""Settings of pip that a configuration file must not turn around."""
_OFFLINE: Final = {"PIP_CONFIG_FILE": "/dev/null"}


class PythonEnvironment:
    """The virtual environment of one generation."""

    def __init__(self, bench: Workbench, host: HostConfig | None = None) -> None:
        """*host* is the host's configuration of the program that installs, by default that of pip."""
        self._bench = bench
        self._host = host or pip_config(bench.tools.scope, bench.tools.paths.home)
        self.directory = bench.root / VENV
        self.wheels = bench.scratch / "wheels"

    async def _create(self) -> None:
        """Make it, without pip, on the system's interpreter, unless it is there."""
        if self.directory.exists():
            return
        await self._bench.run(
            [SYSTEM_PYTHON, "-I", "-m", "venv", "--without-pip", str(self.directory)],
            doing="creating the virtual environment",
            network=False,
        )

    async def resolve(self, requirements: Sequence[str], *, doing: str, public: bool = False) -> list[LockedFile]:
        """The files that *requirements* (PEP 508) come to, each with its hash; nothing is installed.

        *public* is as of :class:`~mcpd.install.proxy.Proxy`, for those that may name a wheel by its URL.

        Raises :class:`~mcpd.errors.SourceUnavailable` and :class:`~mcpd.errors.IntegrityMismatch`.
        """
        await self._create()
        wanted = self._write_wanted(requirements)
        report = await self._pip(
            ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", *_WHEELS, *_from(wanted)],
            doing=doing,
            network=True,
            public=public,
        )
        return parse_report(report)

    async def fetch(self, files: Sequence[LockedFile], *, doing: str) -> None:
        """Download *files* and unpack them into the environment, each checked against its hash.

        :meth:`compile` follows.
        """
        await self._pip(
            ["install", "--no-compile", *_LOCKED, *_WHEELS, *_from(self._write_lock(files))],
            doing=doing,
            network=True,
            public=True,
            on_line=self._counting(files),
        )

    async def download(self, files: Sequence[LockedFile], into: Path, *, doing: str) -> None:
        """Download *files* into the directory *into*, each checked against its hash."""
        if not files:
            return
        await self._pip(
            ["download", "--dest", str(into), *_LOCKED, *_WHEELS, *_from(self._write_lock(files))],
            doing=doing,
            network=True,
            public=True,
            on_line=self._counting(files),
        )
        self._bench.progress(1)

    def _counting(self, files: Sequence[LockedFile]) -> Callable[[str], None]:
        seen = 0

        def count(line: str) -> None:
            nonlocal seen
            if line.startswith("Collecting "):
                self._bench.progress(seen / len(files))
                seen += 1

        return count

    async def install(self, files: Sequence[LockedFile], *, doing: str) -> None:
        """Install *files* from :attr:`wheels`, offline, each checked against its hash again."""
        if not files:
            return
        await self._pip(
            ["install", "--no-compile", *_offline(self.wheels), *_LOCKED, *_WHEELS, *_from(self._write_lock(files))],
            doing=doing,
            network=False,
        )
        await self.compile(doing)

    async def compile(self, doing: str) -> None:
        """Write byte code that Python uses without a look at its source, as a generation never changes.

        The interpreter starts without the environment's packages, which could run code of theirs.
        """
        cache = self._bench.cache / "python"
        await self._bench.run(
            [SYSTEM_PYTHON, "-I", "-S", str(BYTECODE), str(self.directory / "lib"), str(cache)],
            doing=doing,
            network=False,
            readable=(BYTECODE,),
            cache=cache.name,
        )

    async def build_wheel(self, source: Path, requirements: Path, workspace: Path) -> LockedFile:
        """Build the project in *source* with the build requirements in *requirements*, offline; adds it to the wheels.

        The project's own code runs here. It can write below *workspace* (which holds *source*) and nowhere else.

        Raises :class:`~mcpd.errors.BuildFailed`.
        """
        built = workspace / "wheel"
        await self._pip(
            ["wheel", "--no-deps", *_offline(requirements), "--wheel-dir", str(built), "--", str(source)],
            doing=f"building {self._bench.entry.id}",
            network=False,
            writable=(workspace,),
        )
        wheel = _only_wheel(built)
        self.wheels.mkdir(exist_ok=True)
        digest = await in_thread(_take, wheel, self.wheels / wheel.name)
        name, version = wheel.name.split("-")[:2]
        return LockedFile(name, version, f"sha256:{digest}", wheel.name)

    def scripts(self, package: str) -> list[str]:
        """Console scripts that the installed *package* brings.

        Raises :class:`~mcpd.errors.InvalidManifest` if it brings far too many.
        """
        info = self._info(package)
        if info is None:
            return []
        read_project_file(info / "entry_points.txt")  # importlib.metadata knows no limit
        points = PathDistribution(info).entry_points.select(group="console_scripts")
        return sorted(point.name for point in points)

    def words(self, package: str) -> Words | None:
        """What the metadata of the installed *package* says of it; None if that cannot be read."""
        info = self._info(package)
        try:
            data = read_project_file(info / "METADATA") if info is not None else None
        except (InvalidManifest, OSError):
            return None
        if data is None:
            return None
        found = HeaderParser().parsestr(data.decode("utf-8", "replace"))
        return Words.of(found.get("Name"), found.get("Summary"))

    def _info(self, package: str) -> Path | None:
        """The directory of the metadata of the installed *package*."""
        wanted = normalise(package)
        found = self.directory.glob("lib/python3*/site-packages/*.dist-info")
        return next((info for info in found if normalise(info.name.split("-")[0]) == wanted), None)

    async def _pip(
        self, arguments: Sequence[str], *, doing: str, network: bool, public: bool = False, **options: Any
    ) -> bytes:
        pip = _pip_directory()
        runner = [str(WHEELS_ONLY)] if network else []
        return await self._bench.run(
            [str(self.directory / "bin/python"), "-I", *runner, str(pip / "__pip-runner__.py"), *arguments],
            doing=doing,
            network=network,
            readable=(
                *(() if pip.is_relative_to("/usr") else (pip.parent,)),
                *([WHEELS_ONLY] if network else ()),
                *(self._host.readable if network else _certificates()),
            ),
            cache="pip" if network else "",
            env=_STEADY | (self._host.env | {"PIP_CACHE_DIR": str(self._bench.cache / "pip")} if network else _OFFLINE),
            proxy=Proxy(self._host, public=public) if network else None,
            **options,
        )

    def _write_wanted(self, requirements: Iterable[str]) -> Path:
        wanted = self._bench.scratch / "requirements.txt"
        wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        return wanted

    def _write_lock(self, files: Iterable[LockedFile]) -> Path:
        lock = self._bench.scratch / "lock.txt"
        lines = (f"{file.name}=={file.version} --hash={file.integrity}\n" for file in files)
        lock.write_text("".join(lines), encoding="utf-8")
        return lock


def check_requirement(package: str, version: str, origin: str) -> str:
    """The requirement for *package* at *version* (empty: the newest).

    Raises :class:`~mcpd.errors.InvalidManifest` that names *origin* for what is no name or version; neither can be
    mistaken for an option or a path.
    """
    if not PACKAGE.fullmatch(package):
        raise InvalidManifest(f"{origin}: source.package {package[:100]!r} is not the name of a Python package")
    if version and not VERSION.fullmatch(version):
        raise InvalidManifest(f"{origin}: {version[:100]!r} is not a version of a Python package")
    return f"{package}=={version}" if version else package


def normalise(name: str) -> str:
    """The name of a Python package as it is compared (PEP 503), without extras."""
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


def parse_report(report: bytes) -> list[LockedFile]:
    """The files in an installation report of pip.

    Raises :class:`~mcpd.errors.SourceUnavailable` if it is none, :class:`~mcpd.errors.IntegrityMismatch` for a file
    without a strong hash, and :class:`~mcpd.errors.InvalidManifest` for anything that is not a wheel.
    """
    try:
        items = json.loads(report)["install"]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceUnavailable("pip's installation report cannot be read; is pip 23.1 or newer installed?") from error
    return [_locked(item) for item in items]


def _locked(item: dict[str, Any]) -> LockedFile:
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    info = item["download_info"]
    check_indexed(name, version)
    file = unquote(info["url"].partition("#")[0].rpartition("/")[2])
    if "archive_info" not in info or not file.endswith(".whl"):
        raise InvalidManifest(f"{name} {version} is not available as a wheel, and nothing else is installed")
    archive = info["archive_info"]
    hashes = archive.get("hashes") or dict([archive["hash"].split("=", 1)] if archive.get("hash") else [])
    strong = next((kind for kind in _STRENGTH if DIGEST.fullmatch(str(hashes.get(kind)))), None)
    if strong is None:
        raise IntegrityMismatch(f"the package index has no SHA-2 hash for {file}, so it cannot be checked")
    return LockedFile(name, version, f"{strong}:{hashes[strong]}", file)


def check_indexed(name: str, version: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` unless a package index may list *name* in *version*."""
    if not (PACKAGE.fullmatch(name) and VERSION.fullmatch(version)):
        raise InvalidManifest(
            f"the package index has a package of the impossible name {name[:100]!r} {version[:100]!r}"
        )


def _from(file: Path) -> tuple[str, str]:
    return ("--requirement", str(file))


def _offline(wheels: Path) -> tuple[str, str, str]:
    return ("--no-index", "--find-links", str(wheels))


def _only_wheel(directory: Path) -> Path:
    wheels = [] if directory.is_symlink() else [path for path in directory.glob("*.whl") if not path.is_symlink()]
    if len(wheels) != 1 or not wheels[0].is_file() or not WHEEL.fullmatch(wheels[0].name):
        raise BuildFailed("the build produced no wheel")
    return wheels[0]


def _take(wheel: Path, target: Path) -> str:
    """Copy *wheel*, which a hostile build may have left at any size, to *target*; returns its SHA-256."""
    if wheel.stat().st_size > MAX_WHEEL:
        raise BuildFailed(f"the build produced a wheel of more than {MAX_WHEEL // 1024**2} MiB")
    shutil.copyfile(wheel, target)
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _certificates() -> list[Path]:
    """What distributions' pip does not start without, network or not."""
    return [path for path in map(Path, CA_BUNDLES) if path.exists()]


def _pip_directory() -> Path:
    """The directory of the package pip in mcpd's own environment."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise BuildFailed("pip is not installed in mcpd's own Python environment; install it there")
    return Path(spec.origin).parent
