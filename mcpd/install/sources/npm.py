# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package source ``npm``, and the dependencies of node projects: locked first, then installed exactly as locked.

No script of any package runs (``--ignore-scripts``), and only registry tarballs with an integrity value are accepted.
npm works in a directory of its own, so that a project's ``.npmrc`` has no effect.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import BuildFailed, IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.files import read_file
from mcpd.install.complaints import Program, no_package
from mcpd.install.hostconfig import NPM_REGISTRY, npm_config
from mcpd.install.proxy import PROXY_URL, Proxy, origin, origins
from mcpd.install.sources.base import (
    MAX_FILE,
    MAX_LOCK,
    LockedFile,
    Outcome,
    PackageTexts,
    Resolution,
    read_project_file,
)
from mcpd.install.trees import readable
from mcpd.install.workbench import find_program
from mcpd.package_sources import NPM
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source

DEFAULT_HOST: Final = origin(NPM_REGISTRY)[0]
MODULES: Final = "node_modules"
_HASH: Final = re.compile(r"(?<!\S)sha(?:1|256|384|512)-[A-Za-z0-9+/]+={0,2}(?:\?\S*)?(?!\S)", re.ASCII)
"""A hash in an integrity value. npm checks nothing if the value contains no known hash."""
_NO_HASH: Final = f"sha512-{'A' * 86}=="
"""An integrity value that no file matches."""
_QUIET: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--omit=dev")
_DEVELOPMENT: Final = "devDependencies"
_NO_GIT: Final = "/bin/false"
"""Program that npm runs instead of git, which would fail only after several attempts."""
_GIT_NEEDED: Final = re.compile(re.escape(f"command {_NO_GIT} ") + r".*?(\S+:\S+)")
_LINE: Final = re.compile(r"npm err(?:or|!) ?(.*)", re.IGNORECASE)
_NOISE: Final = re.compile(
    # its log, its stack, the fields of its error object, general advice, and words without a text after them
    r"A complete log|\s+at |\s+\w+: |[{}\s]*$|If you are behind a proxy|\w+$|(code|errno|syscall|path|dest) "
    rf"|command (?!{re.escape(_NO_GIT)} )|(notarget|404)\s+(In most cases|a package version that|Note that|tarball,|\*)"
)
_ABSENT: Final = re.compile(
    r"npm err(?:or|!) 404\s+(?:The requested resource )?'(@?[^'@]+)@[^']*' (?:is not in|could not be found)",
    re.IGNORECASE,
)


def _absence(stderr: str) -> str:
    found = _ABSENT.search(stderr)
    return no_package(found[1]) if found else ""


def _reasons(lines: Sequence[str]) -> list[str]:
    texts = [match[1] for line in lines if (match := _LINE.match(line))]
    return [text for text in texts if not _NOISE.match(text)] or [text for text in texts if text.startswith("code ")]


PROGRAM: Final = Program("npm", mismatch=("EINTEGRITY",), absence=_absence, reasons=_reasons)


class NodeModules:
    """The ``node_modules`` directory of one generation."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._host = npm_config(bench.tools.scope, bench.tools.paths.home)
        self.directory = bench.scratch / "node"

    async def lock(self, package_json: Mapping[str, Any], existing: bytes = b"") -> list[LockedFile]:
        """Resolve the dependencies of *package_json*; follow the *existing* ``package-lock.json`` unless it is empty.

        Raises :class:`~mcpd.errors.SourceUnavailable`, :class:`~mcpd.errors.InvalidManifest` for a dependency that is
        not from the registry, and :class:`~mcpd.errors.IntegrityMismatch` for one without a hash.
        """
        self.directory.mkdir()
        needed = {key: value for key, value in package_json.items() if key != _DEVELOPMENT}
        (self.directory / "package.json").write_text(json.dumps(needed), encoding="utf-8")
        lock = self.directory / "package-lock.json"
        if existing:
            lock.write_bytes(without_development(existing))
        else:
            doing = f"resolving {self._bench.entry.id}"
            try:
                await self._npm(["install", "--package-lock-only", *_QUIET], doing=doing)
            except SourceUnavailable as error:
                if found := _GIT_NEEDED.search(error.message):
                    raise InvalidManifest(PROGRAM.refusal(doing, [found[1]])) from error
                raise
        return await in_thread(_read_lock, lock, self._host.locations)

    async def install(self, files: Sequence[LockedFile]) -> None:
        """Download and unpack the *files* returned by :meth:`lock`, checked against their integrity values."""
        try:
            await self._npm(["ci", *_QUIET], doing=f"downloading {self._bench.entry.id}", public=True)
        except IntegrityMismatch as error:
            differing = next((file for file in files if file.integrity in error.message), None)
            if differing is None:
                raise
            outer = differing.file.rpartition(f"/{MODULES}/")[0].rpartition(f"{MODULES}/")[2]
            raise IntegrityMismatch(
                f"the registry's file of {differing.name} {differing.version} does not match the hash in the lock"
                f" file of {outer or self._bench.entry.id}; nothing was installed. Choose another version, or"
                " regenerate that lock file from the registry"
            ) from error
        (self.directory / MODULES).mkdir(exist_ok=True)
        missing = [file.name for file in files if not (self.directory / file.file).is_dir()]
        # Optional dependencies for other platforms are locked but not installed, so some files may be missing.
        if len(missing) == len(files) and files:
            raise BuildFailed(f"npm installed none of the locked packages ({', '.join(missing[:5])})")

    async def hashes(self, spec: str) -> tuple[str, str]:
        """Return the SHA-256 of the registry's tarball of *spec* (``name@version``), and its integrity value."""
        answer = await self._npm(["pack", "--json", *_QUIET, "--", spec], doing=f"downloading {spec}", public=True)
        try:
            name = json.loads(answer)[0]["filename"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise SourceUnavailable(f"cannot parse npm's output for {spec}") from error
        file = self.directory / str(name).replace("@", "").replace("/", "-")
        found = await in_thread(_hashes, file)
        file.unlink()
        return found

    def pin(self, file: LockedFile) -> None:
        """Write the integrity value of *file* to the lock, in place of the registry's."""
        path = self.directory / "package-lock.json"
        lock = json.loads(read_file(path, MAX_LOCK))
        lock["packages"][file.file]["integrity"] = file.integrity
        path.write_text(json.dumps(lock), encoding="utf-8")

    def adopt(self) -> None:
        """Move the finished ``node_modules`` and its lock into the generation."""
        for name in (MODULES, "package-lock.json"):
            (self.directory / name).rename(self._bench.root / name)

    async def _npm(self, arguments: Sequence[str], *, doing: str, public: bool = False) -> bytes:
        return await self._bench.run(
            [find_program("npm"), *arguments],
            doing=doing,
            network=True,
            cwd=self.directory,
            readable=self._host.readable,
            cache="npm",
            env={
                **self._host.env,
                "NPM_CONFIG_CACHE": str(self._bench.cache / "npm"),
                "NPM_CONFIG_LOGS_MAX": "0",
                "NPM_CONFIG_GIT": _NO_GIT,
                **dict.fromkeys(("NPM_CONFIG_PROXY", "NPM_CONFIG_HTTPS_PROXY"), PROXY_URL),
                # Overrides noproxy of a configuration file, which an empty value would not.
                "NPM_CONFIG_NOPROXY": "none.invalid",
            },
            proxy=Proxy(self._host, public=public),
            program=PROGRAM,
        )


class NpmRecipe:
    """Recipe for ``source.package`` at ``source.version``, in its own ``node_modules``."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        self._node = NodeModules(bench)
        self._files: list[LockedFile] = []

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        NPM.check(source.package, source.version, entry.id)

    async def resolve(self) -> Resolution:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        package = self._source.package
        self._files = await self._node.lock(
            {"name": "mcp-server", "private": True, "dependencies": {package: self._source.version or "latest"}}
        )
        main = self._main()
        others = (file for file in self._files if file is not main)
        return Resolution((main, *others), version=main.version)

    async def fetch(self) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        if self._source.sha256:
            await self._check_sha256(self._main())
        self._bench.stage(25, 55)
        await self._node.install(self._files)

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        self._node.adopt()
        (self._node.directory / "package.json").rename(self._bench.root / "package.json")
        main = self._main()
        return Outcome(
            version=main.version,
            resolved={"version": main.version, "integrity": main.integrity},
            files=tuple(self._files),
            package=main.name,
            scripts=tuple(await in_thread(declared_commands, self._bench.root / MODULES / main.name)),
            texts=await in_thread(_package_texts, self._bench.root / MODULES / main.name),
        )

    async def _check_sha256(self, main: LockedFile) -> None:
        found, integrity = await self._node.hashes(f"{main.name}@{main.version}")
        if found != self._source.sha256:
            raise IntegrityMismatch(
                f"{main.name} {main.version} has sha256:{found}, but the entry pins sha256:{self._source.sha256}; "
                "nothing was installed"
            )
        # Pin the tarball that was checked, since the registry may send another one the next time.
        pinned = replace(main, integrity=integrity)
        await in_thread(self._node.pin, pinned)
        self._files = [pinned if file is main else file for file in self._files]

    def _main(self) -> LockedFile:
        return next(file for file in self._files if file.file == f"{MODULES}/{self._source.package}")


def without_development(data: bytes) -> bytes:
    """Return the ``package-lock.json`` *data* without the packages that are marked as development dependencies.

    If another package needs one of them, npm would install it although it is not checked here; without it in the lock,
    npm fails. Invalid *data* is returned unchanged.
    """
    try:
        lock = json.loads(data)
        lock["packages"] = {path: dict(item) for path, item in lock["packages"].items() if not item.get("dev")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data
    lock["packages"].get("", {}).pop(_DEVELOPMENT, None)
    # Used by npm 6 only.
    lock.pop("dependencies", None)
    return json.dumps(lock).encode()


def parse_lock(data: bytes, registries: Iterable[str]) -> list[LockedFile]:
    """Return the packages of a ``package-lock.json``.

    Raises :class:`~mcpd.errors.InvalidManifest` for a lock that is damaged or was written by npm 6 or older, and for
    packages other than tarballs with an integrity value from one of the *registries* (URLs). Raises
    :class:`~mcpd.errors.IntegrityMismatch` for an integrity value without a usable hash.
    """
    try:
        packages = json.loads(data)["packages"]
        items = [(path, dict(item)) for path, item in packages.items() if path]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidManifest("package-lock.json cannot be read; regenerate it with npm 7 or newer") from error
    allowed = origins(registries)
    return [_locked(path, item, allowed) for path, item in items]


def _read_lock(path: Path, registries: Iterable[str]) -> list[LockedFile]:
    """Return the packages of the lock at *path*, and rewrite it so that npm fetches no other packages."""
    data = read_project_file(path, MAX_LOCK) or b""
    files = parse_lock(data, registries)
    lock = json.loads(data)
    lock["packages"] = {key: _fetched_by_hash(dict(item)) if key else item for key, item in lock["packages"].items()}
    path.write_text(json.dumps(lock), encoding="utf-8")
    return files


def _fetched_by_hash(item: dict[str, Any]) -> dict[str, Any]:
    # npm would follow the lock inside a package with a shrinkwrap once it is unpacked.
    item.pop("hasShrinkwrap", None)
    if item.get("inBundle") and not item.get("resolved"):
        # npm fetches a bundled package unless the package around it declares that it contains it.
        item["integrity"] = _NO_HASH
    return item


def _hashes(path: Path) -> tuple[str, str]:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        sha512 = hashlib.file_digest(file, "sha512").digest()
    return sha256, f"sha512-{base64.b64encode(sha512).decode()}"


def _locked(path: str, item: dict[str, Any], allowed: Container[tuple[str, int]]) -> LockedFile:
    name = readable(str(item.get("name") or path.rpartition(f"{MODULES}/")[2]))
    if not path.isprintable():
        raise InvalidManifest(f"package-lock.json places {name} at a path with control characters")
    if ".." in path.split("/") or not path.startswith(f"{MODULES}/"):
        raise InvalidManifest(f"package-lock.json places {name} at {path[:200]!r}, outside node_modules")
    resolved = str(item.get("resolved") or "")
    if item.get("inBundle") and not resolved and path.count(f"{MODULES}/") > 1:
        # A bundled package is part of the package around it.
        return LockedFile(name, str(item.get("version", "")), "bundled", path)
    if item.get("link") or not _is_of_registry(resolved, allowed) or not item.get("integrity"):
        raise InvalidManifest(
            f"{name} is not from an npm registry ({readable(resolved)}); packages from elsewhere are not installed"
        )
    integrity = str(item["integrity"])
    if not _HASH.search(integrity):
        raise IntegrityMismatch(f"the integrity value of {name}, {readable(integrity)!r}, has no usable hash")
    return LockedFile(name, str(item.get("version", "")), integrity, path)


def _is_of_registry(resolved: str, allowed: Container[tuple[str, int]]) -> bool:
    """Return whether npm fetches *resolved* (empty if the lock has none) from one of the origins in *allowed*."""
    # npm reads a backslash as a slash, which ends the host, and ignores whitespace.
    if "\\" in resolved or not resolved.isprintable():
        return False
    try:
        host, port = origin(resolved)
    except ValueError:
        return False
    # npm replaces the default registry with the configured one.
    is_default = host == DEFAULT_HOST
    return not resolved or (resolved.startswith(("https:", "http:")) and (is_default or (host, port) in allowed))


def declared_commands(package: Path) -> list[str]:
    """Return the commands that the npm package in the directory *package* declares in ``bin``."""
    declared = _declared(package)
    commands = declared.get("bin")
    if isinstance(commands, str):
        return [str(declared.get("name", "")).rpartition("/")[2]]
    return sorted(commands) if isinstance(commands, dict) else []


def _package_texts(package: Path) -> PackageTexts:
    """Return name and summary of the npm package in the directory *package*."""
    declared = _declared(package)
    return PackageTexts.of(declared.get("name"), declared.get("description"))


def _declared(package: Path) -> dict[str, Any]:
    """Return the ``package.json`` in *package*; empty if it cannot be read."""
    try:
        declared = json.loads(read_file(package / "package.json", MAX_FILE))
    except (OSError, InvalidManifest, ValueError, RecursionError):
        return {}
    return declared if isinstance(declared, dict) else {}
