# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers from a Python package index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.errors import IntegrityMismatch
from mcpd.install.outcome import LockedFile, Outcome, Resolution
from mcpd.install.python import PythonEnvironment, check_requirement, normalise
from mcpd.install.uv import UvEnvironment, find_uv
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source


class PypiRecipe:
    """``source.package`` at ``source.version``, in a virtual environment of its own."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        uv = find_uv()
        self._python = PythonEnvironment(bench) if uv is None else UvEnvironment(bench, uv)
        self._files: list[LockedFile] = []

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.outcome.Recipe`."""
        check_requirement(source.package, source.version, entry.id)

    async def resolve(self) -> Resolution:
        """See :class:`~mcpd.install.outcome.Recipe`."""
        requirement = check_requirement(self._source.package, self._source.version, self._bench.entry.id)
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
        """See :class:`~mcpd.install.outcome.Recipe`."""
        self._bench.stage(15, 55)
        await self._python.fetch(self._files, doing=f"downloading {self._source.package}")

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.outcome.Recipe`."""
        await self._python.compile(f"compiling {self._source.package}")
        main = self._main()
        return Outcome(
            version=main.version,
            resolved={"version": main.version, "file": main.file, "integrity": main.integrity},
            files=tuple(self._files),
            package=normalise(self._source.package),
            scripts=tuple(await in_thread(self._python.scripts, self._source.package)),
            words=await in_thread(self._python.words, self._source.package),
        )

    def _main(self) -> LockedFile:
        wanted = normalise(self._source.package)
        return next(file for file in self._files if normalise(file.name) == wanted)
