# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package source ``pypi``, and the virtual environments of Python servers."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import re
import shutil
import sysconfig
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from mcpd.errors import BuildFailed, IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.install.complaints import Program, no_package
from mcpd.install.hostconfig import pip_config, uv_config
from mcpd.install.proxy import PROXY_URL, Proxy
from mcpd.install.sources.base import LockedFile, Outcome, PackageTexts, Resolution, read_project_file
from mcpd.install.workbench import SYSTEM_PYTHON
from mcpd.package_sources import PYPI, normalise_python
from mcpd.runtime.bundled import PYTHON as SERVERS_PYTHON
from mcpd.runtime.sandbox import CA_BUNDLES
from mcpd.threads import in_thread
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mcpd.install.hostconfig import HostConfig
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source

VENV: Final = ".venv"
"""Directory of the virtual environment in a generation; its ``bin`` comes first in the server's ``PATH``."""

WHEEL: Final = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.!+]+(?:-[A-Za-z0-9_.]+){3,4}\.whl", re.ASCII)
BYTECODE: Final = Path(__file__).parents[1] / "bytecode.py"
WHEELS_ONLY: Final = Path(__file__).parents[1] / "wheels_only.py"
MAX_WHEEL: Final = 512 * 1024 * 1024
"""Maximum size in bytes of a wheel built from a project."""
DIGEST: Final = re.compile(r"[0-9A-Fa-f]{64,128}")
"""A SHA-2 hash. Checked since it is written to a requirements file, where a line break would add requirements."""
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
"""Settings of pip that override configuration files."""
_OFFLINE: Final = {"PIP_CONFIG_FILE": "/dev/null"}


_NO_WHEEL: Final = re.compile(r"requirement ([\w.-]+)\S* \(from versions: none\)")
"""pip's message for a missing package, for one without a suitable wheel, and for a registry that is not reachable."""
_UNREACHED: Final = re.compile(r"WARNING: (?:Retrying|Could not fetch) ")
_UV_ABSENT: Final = re.compile(r"Because (\S+) was not found in the package registry")


def _absence(stderr: str) -> str:
    found = _NO_WHEEL.search(stderr)
    if found is None or _UNREACHED.search(stderr):
        return ""
    return f"{no_package(found[1])}, or it has no wheel for this system"


def _uv_absence(stderr: str) -> str:
    found = _UV_ABSENT.search(stderr)
    return no_package(found[1]) if found else ""


PIP: Final = Program("pip", mismatch=("DO NOT MATCH THE HASHES", "Hashes are required"), absence=_absence)
UV: Final = Program("pip", mismatch=("Hash mismatch for ",), absence=_uv_absence)


class PythonEnvironment:
    """The virtual environment of one generation."""

    def __init__(self, bench: Workbench, host: HostConfig | None = None) -> None:
        """*host* is the host's configuration for the installer; by default pip's."""
        self._bench = bench
        self._host = host or pip_config(bench.tools.scope, bench.tools.paths.home)
        self.directory = bench.root / VENV
        self.wheels = bench.scratch / "wheels"

    async def _create(self) -> None:
        """Create the virtual environment, without pip and with the system's interpreter, unless it exists."""
        if self.directory.exists():
            return
        await self._bench.run(
            [SYSTEM_PYTHON, "-I", "-m", "venv", "--without-pip", str(self.directory)],
            doing="creating the virtual environment",
            network=False,
        )

    async def resolve(self, requirements: Sequence[str], *, doing: str, public: bool = False) -> list[LockedFile]:
        """Return the files that *requirements* (PEP 508) resolve to, with hashes; nothing is installed.

        *public*, which is passed to :class:`~mcpd.install.proxy.Proxy`, is for requirements that may name a wheel by
        its URL.

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
        """Download *files*, check their hashes, and unpack them into the environment.

        Call :meth:`compile` afterwards.
        """
        await self._pip(
            ["install", "--no-compile", *_LOCKED, *_WHEELS, *_from(self._write_lock(files))],
            doing=doing,
            network=True,
            public=True,
            on_line=self._counting(files),
        )

    async def download(self, files: Sequence[LockedFile], into: Path, *, doing: str) -> None:
        """Download *files* into the directory *into* and check their hashes."""
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
        """Install *files* from :attr:`wheels`, offline, and check their hashes again."""
        if not files:
            return
        await self._pip(
            ["install", "--no-compile", *_offline(self.wheels), *_LOCKED, *_WHEELS, *_from(self._write_lock(files))],
            doing=doing,
            network=False,
        )
        await self.compile(doing)

    async def compile(self, doing: str) -> None:
        """Write byte code that Python does not compare with its source, as a generation never changes.

        The interpreter starts without the environment's packages, whose code could run at its start.
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
        """Build the project in *source*, offline, with the wheels in *requirements*; copy the result to :attr:`wheels`.

        The project's own code runs here. It can write only below *workspace*, which contains *source*.

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
        """Return the console scripts of the installed *package*.

        Raises :class:`~mcpd.errors.InvalidManifest` if the file that lists them is too large.
        """
        info = self._info(package)
        if info is None:
            return []
        read_project_file(info / "entry_points.txt")  # checks the size, which importlib.metadata does not
        points = PathDistribution(info).entry_points.select(group="console_scripts")
        return sorted(point.name for point in points)

    def texts(self, package: str) -> PackageTexts | None:
        """Return name and summary of the installed *package*; None if its metadata cannot be read."""
        info = self._info(package)
        try:
            data = read_project_file(info / "METADATA") if info is not None else None
        except (InvalidManifest, OSError):
            return None
        if data is None:
            return None
        found = HeaderParser().parsestr(data.decode("utf-8", "replace"))
        return PackageTexts.of(found.get("Name"), found.get("Summary"))

    def _info(self, package: str) -> Path | None:
        """Return the metadata directory of the installed *package*."""
        wanted = normalise_python(package)
        found = self.directory.glob("lib/python3*/site-packages/*.dist-info")
        return next((info for info in found if normalise_python(info.name.split("-")[0]) == wanted), None)

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
            env=_STEADY | (self._online() if network else _OFFLINE),
            proxy=Proxy(self._host, public=public) if network else None,
            program=PIP,
            **options,
        )

    def _online(self) -> dict[str, str]:
        return {**self._host.env, "PIP_CACHE_DIR": str(self._bench.cache / "pip"), "PIP_PROXY": PROXY_URL}

    def _write_wanted(self, requirements: Iterable[str]) -> Path:
        wanted = self._bench.scratch / "requirements.txt"
        wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        return wanted

    def _write_lock(self, files: Iterable[LockedFile]) -> Path:
        lock = self._bench.scratch / "lock.txt"
        lines = (f"{file.name}=={file.version} --hash={file.integrity}\n" for file in files)
        lock.write_text("".join(lines), encoding="utf-8")
        return lock


def parse_report(report: bytes) -> list[LockedFile]:
    """Return the files in an installation report of pip.

    Raises :class:`~mcpd.errors.SourceUnavailable` if it cannot be read, :class:`~mcpd.errors.IntegrityMismatch` for a
    file without a strong hash, and :class:`~mcpd.errors.InvalidManifest` for anything that is not a wheel.
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
        raise InvalidManifest(f"{name} {version} is not available as a wheel; only wheels are installed")
    archive = info["archive_info"]
    hashes = archive.get("hashes") or dict([archive["hash"].split("=", 1)] if archive.get("hash") else [])
    strong = next((kind for kind in _STRENGTH if DIGEST.fullmatch(str(hashes.get(kind)))), None)
    if strong is None:
        raise IntegrityMismatch(f"the package index has no SHA-2 hash for {file}, so it cannot be checked")
    return LockedFile(name, version, f"{strong}:{hashes[strong]}", file)


def check_indexed(name: str, version: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` unless *name* and *version*, from a package index, are valid."""
    if not (PYPI.is_name(name) and PYPI.is_version(version)):
        raise InvalidManifest(
            f"the package index lists a package with the invalid name {name[:100]!r} {version[:100]!r}"
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
    """Copy *wheel* to *target* and return its SHA-256; raise :class:`~mcpd.errors.BuildFailed` if it is too large."""
    if wheel.stat().st_size > MAX_WHEEL:
        raise BuildFailed(f"the build produced a wheel of more than {MAX_WHEEL // 1024**2} MiB")
    shutil.copyfile(wheel, target)
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _certificates() -> list[Path]:
    """Return the certificate bundles; pip does not start without them on some distributions."""
    return [path for path in map(Path, CA_BUNDLES) if path.exists()]


def _pip_directory() -> Path:
    """Return the directory of the package pip in mcpd's own environment."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise BuildFailed("pip is not installed in mcpd's own Python environment; install it there")
    return Path(spec.origin).parent


DEFAULT_BUILD: Final = ("setuptools>=40.8.0", "wheel")
"""The default build requirements of PEP 518."""
MAX_INCLUDES: Final = 32
"""Maximum number of files that ``requirements.txt`` may include, directly or indirectly."""
MAX_REQUIREMENTS: Final = 10_000
MAX_PYPROJECT: Final = 256 * 1024
"""Maximum size of ``pyproject.toml`` in bytes; the parser takes at most 1.5 s and 130 MB for that."""
_NAME: Final = re.compile(r"[A-Za-z0-9]", re.ASCII)
_URL: Final = re.compile(r"@\s*(\S+)")


@dataclass(frozen=True, slots=True)
class PythonProject:
    """The Python part of a project directory."""

    is_package: bool
    """True if the project is built and installed as a package."""
    build_requirements: tuple[str, ...]
    requirements: tuple[str, ...]
    """The requirements in ``requirements.txt``, and the dependencies of a project that is not a package."""

    @property
    def needs_environment(self) -> bool:
        """True if the project needs more than the system's Python."""
        return self.is_package or bool(self.requirements)

    @classmethod
    def read(cls, root: Path) -> Self:
        """Read the project in *root*; raise :class:`~mcpd.errors.InvalidManifest` for invalid files."""
        pyproject = _pyproject(root / "pyproject.toml")
        project, build = pyproject.get("project", {}), pyproject.get("build-system")
        if not isinstance(project, dict) or not (build is None or isinstance(build, dict)):
            raise InvalidManifest("pyproject.toml: [project] and [build-system] must be tables")
        is_package = bool(
            build or project.get("scripts") or _is_file(root / "setup.py") or _is_file(root / "setup.cfg")
        )
        required = _strings((build or {}).get("requires", DEFAULT_BUILD), "build-system.requires")
        if any(line.startswith("setuptools") for line in required):
            required.append("wheel")  # older setuptools request it during the build
        lines = [] if is_package else _strings(project.get("dependencies", ()), "project.dependencies")
        lines += _RequirementFiles(root).read(root / "requirements.txt")
        if len(lines) > MAX_REQUIREMENTS:
            raise InvalidManifest(f"the project has more than {MAX_REQUIREMENTS:,} requirements")
        for line in (*required, *lines):
            check_line(line, "the project's requirements")
        return cls(is_package, tuple(required), tuple(lines))


def check_line(line: str, origin: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` unless *line* names an indexed package, or a wheel by https URL."""
    requirement = line.partition(";")[0]
    # pip splits lines at more characters than \n, and expands variables, which may hold a mirror's password.
    if not _NAME.match(line) or len(line.splitlines()) != 1 or line.endswith("\\") or "${" in line:
        raise InvalidManifest(f"{origin}: {line[:100]!r} is not supported; only package names are")
    url = _URL.search(requirement)
    if url and not (url[1].startswith("https://") and url[1].partition("#")[0].endswith(".whl")):
        raise InvalidManifest(
            f"{origin}: {line[:100]!r} is not supported; use a package from an index, or an https URL of a wheel"
        )
    if not url and re.search(r"[/\\]|://|\.(whl|zip|tar|gz|bz2|tgz)\b", requirement.partition(" --hash")[0]):
        raise InvalidManifest(f"{origin}: {line[:100]!r} is a path; only package names are supported")
    options = [word for word in requirement.split() if word.startswith("-")]
    if any(not option.startswith("--hash=") for option in options):
        raise InvalidManifest(f"{origin}: the option in {line[:100]!r} is not supported")


class _RequirementFiles:
    """Reads ``requirements.txt`` and the files that it includes, at most :data:`MAX_INCLUDES`."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._left = MAX_INCLUDES + 1

    def read(self, path: Path) -> list[str]:
        """Return the requirements in *path*, empty if it is missing."""
        content = read_project_file(path)
        if content is None:
            return []
        self._left -= 1
        if self._left < 0 or not path.resolve().is_relative_to(self._root):
            raise InvalidManifest(
                f"{path.name} includes itself, a file outside the project or more than {MAX_INCLUDES} files"
            )
        found: list[str] = []
        for line in _logical_lines(content.decode("utf-8", errors="replace")):
            include = re.fullmatch(r"(?:-r\s*|--requirement[=\s]\s*)(\S+)", line)
            if include:
                included = path.parent / include[1]
                if not _is_file(included):
                    raise InvalidManifest(f"{path.name} includes {include[1][:200]!r}, which is not in the project")
                found += self.read(included)
            elif line not in {".", "-e .", "--editable ."}:  # the project itself is installed anyway
                found.append(line)
        return found


def _logical_lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        stripped = re.sub(r"(^|\s)#.*$", "", line).strip()
        if stripped:
            yield stripped


def _pyproject(path: Path) -> dict[str, Any]:
    content = read_project_file(path, MAX_PYPROJECT)
    if content is None:
        return {}
    try:
        return parse_toml(content)
    except ValueError as error:
        raise InvalidManifest(f"the project's pyproject.toml cannot be read: {error}") from error


def _strings(value: object, key: str) -> list[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise InvalidManifest(f"pyproject.toml: {key} must be a list of strings")
    return list(value)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


_UV_WHEELS: Final = "--no-build"
_UV_STEADY: Final = {
    "UV_NO_CONFIG": "1",
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_KEYRING_PROVIDER": "disabled",
    "UV_SYSTEM_CERTS": "1",
    # Files share their blocks with the cache where the file system supports it, and are copied otherwise.
    "UV_LINK_MODE": "clone",
    # As in pip, which does not rank indexes.
    "UV_INDEX_STRATEGY": "unsafe-best-match",
}


def find_uv() -> Path | None:
    """Return the path of uv in mcpd's environment, the bundled servers' environment, or the system; None if missing."""
    own = [Path(sysconfig.get_path("scripts"))] if importlib.util.find_spec("uv") is not None else []
    places = [*own, SERVERS_PYTHON.parent, Path("/usr/bin")]
    return next((path for place in places if (path := place / "uv").is_file()), None)


class UvEnvironment(PythonEnvironment):
    """A virtual environment whose packages are installed by uv."""

    def __init__(self, bench: Workbench, uv: Path) -> None:
        super().__init__(bench, uv_config(bench.tools.scope, bench.tools.paths.home))
        self._uv = uv

    async def resolve(self, requirements: Sequence[str], *, doing: str, public: bool = False) -> list[LockedFile]:
        """See :meth:`PythonEnvironment.resolve`."""
        wanted = str(self._write_wanted(requirements))
        options = ("--quiet", "--no-header", "--python", SYSTEM_PYTHON, "--format", "pylock.toml")
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._create())
                lock = both.create_task(self._run("compile", *options, wanted, doing=doing, public=public))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return parse_pylock(lock.result())

    async def fetch(self, files: Sequence[LockedFile], *, doing: str) -> None:
        """See :meth:`PythonEnvironment.fetch`."""
        await self._run(
            "sync", "--python", str(self.directory / "bin/python"), "--require-hashes", str(self._write_lock(files)),
            doing=doing, public=True, expected=sum(file.size for file in files),
        )  # fmt: skip

    async def _run(self, command: str, *arguments: str, doing: str, public: bool, expected: int = 0) -> bytes:
        env = dict(self._host.env)
        if command != "compile":
            env.pop(
                "UV_CONSTRAINT", None
            )  # the locked files satisfy it, and constraints without hashes would be refused
        return await self._bench.run(
            [str(self._uv), "pip", command, _UV_WHEELS, *self._host.options, *arguments],
            doing=doing,
            network=True,
            readable=self._host.readable,
            cache="uv",
            env={**env, **_UV_STEADY, "UV_CACHE_DIR": str(self._bench.cache / "uv")},
            proxy=Proxy(self._host, public=public),
            expected=expected,
            program=UV,
        )


def parse_pylock(data: bytes) -> list[LockedFile]:
    """Return the files in a ``pylock.toml`` (PEP 751) for one platform: the best wheel of each package.

    Raises :class:`~mcpd.errors.SourceUnavailable` if it cannot be read, :class:`~mcpd.errors.IntegrityMismatch` for a
    file without a SHA-256, and :class:`~mcpd.errors.InvalidManifest` for anything that is not a wheel.
    """
    try:
        packages = parse_toml(data).get("packages", [])
        return [_uv_locked(str(package["name"]), package) for package in packages]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceUnavailable("uv's lock file cannot be read; is uv 0.7 or newer installed?") from error


def _uv_locked(name: str, package: dict[str, Any]) -> LockedFile:
    version = str(package.get("version", ""))
    check_indexed(name, version)
    wheels = {_file(wheel): wheel for wheel in package.get("wheels", ())}
    if not wheels:
        raise InvalidManifest(f"{name} {version} is not available as a wheel; only wheels are installed")
    file = max(wheels, key=_preference)
    sha256 = wheels[file].get("hashes", {}).get("sha256")
    if not DIGEST.fullmatch(str(sha256)):
        raise IntegrityMismatch(f"the package index has no SHA-256 for {file}, so it cannot be checked")
    size = wheels[file].get("size", 0)
    return LockedFile(name, version, f"sha256:{sha256}", file, size if isinstance(size, int) else 0)


def _file(wheel: dict[str, Any]) -> str:
    return str(wheel.get("name") or str(wheel.get("url") or wheel["path"]).partition("#")[0].rpartition("/")[2])


def _preference(file: str) -> tuple[bool, list[tuple[str, int]]]:
    """Return a sort key for wheels that fit, the best last: compiled ones first, then the newest platform tags."""
    parts = re.findall(r"(\D*)(\d*)", file)
    return not file.endswith("-any.whl"), [(word, int(number or 0)) for word, number in parts]


class PypiRecipe:
    """Recipe for ``source.package`` at ``source.version``, in its own virtual environment."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        uv = find_uv()
        self._python = PythonEnvironment(bench) if uv is None else UvEnvironment(bench, uv)
        self._files: list[LockedFile] = []

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        PYPI.check(source.package, source.version, entry.id)

    async def resolve(self) -> Resolution:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        package, version = self._source.package, self._source.version
        requirement = f"{package}=={version}" if version else package
        self._files = await self._python.resolve([requirement], doing=f"resolving {requirement}")
        main = self._main()
        if self._source.sha256 and main.integrity != f"sha256:{self._source.sha256}":
            raise IntegrityMismatch(
                f"{main.file} has {main.integrity}, but the entry pins sha256:{self._source.sha256};"
                " nothing was installed"
            )
        others = (file for file in self._files if file is not main)
        return Resolution((main, *others), size=sum(file.size for file in self._files), version=main.version)

    async def fetch(self) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        self._bench.stage(15, 55)
        await self._python.fetch(self._files, doing=f"downloading {self._source.package}")

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        await self._python.compile(f"compiling {self._source.package}")
        main = self._main()
        return Outcome(
            version=main.version,
            resolved={"version": main.version, "file": main.file, "integrity": main.integrity},
            files=tuple(self._files),
            package=normalise_python(self._source.package),
            scripts=tuple(await in_thread(self._python.scripts, self._source.package)),
            texts=await in_thread(self._python.texts, self._source.package),
        )

    def _main(self) -> LockedFile:
        wanted = normalise_python(self._source.package)
        return next(file for file in self._files if normalise_python(file.name) == wanted)
