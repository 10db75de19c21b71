# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wheels by uv instead of pip, which takes a third of the time; the rules are the same.

uv resolves to a lock with hashes and installs what it lists. It accepts wheels only, so no code of any package runs
while there is a network. It does not read pip's configuration, so it gets what that says in variables of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.install.hostconfig import uv_config
from mcpd.install.outcome import LockedFile
from mcpd.install.proxy import Proxy
from mcpd.install.python import DIGEST, PythonEnvironment, check_indexed
from mcpd.install.workbench import SYSTEM_PYTHON
from mcpd.runtime.bundled import PYTHON as SERVERS_PYTHON
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.install.workbench import Workbench

_WHEELS: Final = "--no-build"
_STEADY: Final = {
    "UV_NO_CONFIG": "1",
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_KEYRING_PROVIDER": "disabled",
    "UV_SYSTEM_CERTS": "1",
    # Files share their blocks with the cache where the file system can, and are copied elsewhere.
    "UV_LINK_MODE": "clone",
    # As pip does, which knows no order of indexes.
    "UV_INDEX_STRATEGY": "unsafe-best-match",
}


def find_uv() -> Path | None:
    """The program uv: in mcpd's own environment, in that of the bundled servers, or the system's; None without any."""
    own = [Path(sysconfig.get_path("scripts"))] if importlib.util.find_spec("uv") is not None else []
    places = [*own, SERVERS_PYTHON.parent, Path("/usr/bin")]
    return next((path for place in places if (path := place / "uv").is_file()), None)


class UvEnvironment(PythonEnvironment):
    """The virtual environment of one generation, filled by uv."""

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
            env.pop("UV_CONSTRAINT", None)  # what is locked keeps to it, and what has no hash is refused
        return await self._bench.run(
            [str(self._uv), "pip", command, _WHEELS, *self._host.options, *arguments],
            doing=doing,
            network=True,
            readable=self._host.readable,
            cache="uv",
            env={**env, **_STEADY, "UV_CACHE_DIR": str(self._bench.cache / "uv")},
            proxy=Proxy(self._host, public=public),
            expected=expected,
        )


def parse_pylock(data: bytes) -> list[LockedFile]:
    """The files in a ``pylock.toml`` (PEP 751) for one platform, of each package the wheel that fits best.

    Raises :class:`~mcpd.errors.SourceUnavailable` if it is none, :class:`~mcpd.errors.IntegrityMismatch` for a file
    without a SHA-256, and :class:`~mcpd.errors.InvalidManifest` for anything that is not a wheel.
    """
    try:
        packages = parse_toml(data).get("packages", [])
        return [_locked(str(package["name"]), package) for package in packages]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceUnavailable("uv's lock file cannot be read; is uv 0.7 or newer installed?") from error


def _locked(name: str, package: dict[str, Any]) -> LockedFile:
    version = str(package.get("version", ""))
    check_indexed(name, version)
    wheels = {_file(wheel): wheel for wheel in package.get("wheels", ())}
    if not wheels:
        raise InvalidManifest(f"{name} {version} is not available as a wheel, and nothing else is installed")
    file = max(wheels, key=_preference)
    sha256 = wheels[file].get("hashes", {}).get("sha256")
    if not DIGEST.fullmatch(str(sha256)):
        raise IntegrityMismatch(f"the package index has no SHA-256 for {file}, so it cannot be checked")
    size = wheels[file].get("size", 0)
    return LockedFile(name, version, f"sha256:{sha256}", file, size if isinstance(size, int) else 0)


def _file(wheel: dict[str, Any]) -> str:
    return str(wheel.get("name") or str(wheel.get("url") or wheel["path"]).partition("#")[0].rpartition("/")[2])


def _preference(file: str) -> tuple[bool, list[tuple[str, int]]]:
    """What is larger for the better one of two wheels that both fit: what is compiled, for the newest interfaces."""
    parts = re.findall(r"(\D*)(\d*)", file)
    return not file.endswith("-any.whl"), [(word, int(number or 0)) for word, number in parts]
