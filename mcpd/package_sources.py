# SPDX-License-Identifier: LGPL-2.1-or-later
"""The types of package source: one object each, with everything but the recipe.

The recipes are in :mod:`mcpd.install.sources`. HACKING.md says how to add a type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Full id of a git commit: a ``rev`` that never changes its meaning."""


class SourceType(StrEnum):
    """Types of package source."""

    GIT = "git"
    NPM = "npm"
    PYPI = "pypi"
    MCPB = "mcpb"
    ARCHIVE = "archive"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSource:
    """One type of package source."""

    type: SourceType
    pin: str = ""
    """The field that pins the files: ``version``, ``rev`` or ``sha256``; empty if the type cannot be pinned."""
    exact: str = "(?!)"
    """Pattern of the pins that always refer to the same files, unlike tags and branches."""
    describes_itself: bool = False
    """True if the files define how the server is started, so that an entry needs no transports."""
    requires: tuple[tuple[str, str], ...] = ()
    """Programs that an installation runs, each with the Debian package that contains it."""

    def is_exact(self, pin: str) -> bool:
        """Return whether *pin* always refers to the same files."""
        return re.fullmatch(self.exact, pin, re.ASCII) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageIndex(PackageSource):
    """A package source that offers named, versioned packages, such as npm."""

    pin: str = "version"
    describes_itself: bool = True
    noun: str
    """Phrase for one of its packages in messages: ``an npm package``."""
    name: str
    """Pattern of package names; no match can be mistaken for an option or a path."""
    version: str
    """Pattern of versions and tags."""
    separators: tuple[str, ...]
    """Accepted separators between a name and a version; mcpd writes the first."""
    normalise: Callable[[str], str] = str
    """Function that converts all spellings of a package name to the same text."""
    urls: frozenset[str]
    """URLs of the public index that a ``server.json`` may contain."""
    programs: str
    """Directory of a generation with the programs of the installed packages.

    It is in the ``PATH`` of all servers, so it must not come from the project itself: either no project has a directory
    of this name, or the installation replaces it.
    """
    runners: tuple[tuple[str, ...], ...]
    """Commands that fetch a package and run its program. The first is the usual command, a single word.

    In an entry, the first stands for the package's own program, so this must not be empty.
    """
    flags: frozenset[str] = frozenset()
    """Options of the runners that do not change which program runs."""
    value_options: frozenset[str] = frozenset()
    """Like :attr:`flags`, but followed by a value."""
    package_options: frozenset[str] = frozenset()
    """Options of the runners that name the package if its program has a different name."""
    runs_git: bool = False
    """True if the runners also take ``git+URL`` in place of a package."""

    @property
    def runner(self) -> str:
        """The usual command that fetches a package and runs its program."""
        return self.runners[0][0]

    def form(self, optional: str = "[]") -> str:
        """Return the syntax of a package as a target: ``npm:NAME[@VERSION]``."""
        return f"{self.type}:NAME{optional[:1]}{self.separators[0]}VERSION{optional[1:]}"

    def split(self, spec: str) -> tuple[str, str] | None:
        """Split *spec*, such as ``NAME@VERSION``, into name and version (empty if missing); None if it has no name.

        The version can also be a range or a tag, so it may not match :attr:`version`.
        """
        separators = "|".join(map(re.escape, self.separators))
        found = re.fullmatch(rf"({self.name})(?:(?:{separators})((?!=)[^\s/:,;]+))?", spec, re.ASCII)
        return (found[1], found[2] or "") if found else None

    def is_name(self, text: str) -> bool:
        """Return whether *text* is the name of a package."""
        return re.fullmatch(self.name, text, re.ASCII) is not None

    def is_version(self, text: str) -> bool:
        """Return whether *text* is a version or a tag."""
        return re.fullmatch(self.version, text, re.ASCII) is not None

    def check(self, package: str, version: str, where: str) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest`, beginning with *where*, for an invalid name or version."""
        if not self.is_name(package):
            raise InvalidManifest(f"{where}: source.package {package[:100]!r} is not the name of {self.noun}")
        if version and not self.is_version(version):
            raise InvalidManifest(f"{where}: {version[:100]!r} is not a version of {self.noun}")

    def runner_length(self, words: Sequence[str]) -> int:
        """Return how many of the first *words* of a command are a runner; 0 if it does not begin with one."""
        return next((len(runner) for runner in self.runners if tuple(words[: len(runner)]) == runner), 0)

    def arguments_after(self, words: Sequence[str], package: str) -> list[str] | None:
        """Return the arguments for the program of *package* in the command *words*, which begins with a runner.

        Returns None if the command runs another package.
        """
        rest = list(words[(length := self.runner_length(words)) :])
        while rest and rest[0] in self.flags:
            del rest[0]
        found = self.split(rest[0]) if length and rest else None
        return rest[1:] if found and self.normalise(found[0]) == self.normalise(package) else None


def normalise_python(name: str) -> str:
    """Return the normalized name of a Python package (PEP 503), without extras."""
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


PYPI: Final = PackageIndex(
    type=SourceType.PYPI,
    noun="a Python package",
    name=r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._,-]+\])?",
    version=r"[A-Za-z0-9][A-Za-z0-9.!+_-]*",
    exact=r"(?:\d+!)?\d+(?:\.\d+)*[0-9A-Za-z.+_-]*",
    separators=("==", "@"),
    normalise=normalise_python,
    urls=frozenset({"https://pypi.org", "https://pypi.org/simple"}),
    programs=".venv/bin",
    runners=(("uvx",), ("uv", "tool", "run"), ("pipx", "run")),
    flags=frozenset(
        {"-q", "--quiet", "-v", "--verbose", "--frozen", "--locked", "--no-sync", "--no-dev", "--isolated"}
        | {"--native-tls", "--offline", "--no-progress", "--active", "--no-cache", "-n", "--no-config"}
        | {"--no-editable", "--exact", "--refresh", "--reinstall", "--system-certs"}
    ),
    value_options=frozenset({"-p", "--python", "--python-preference", "--color", "--cache-dir"}),
    package_options=frozenset({"--from", "--spec"}),
    runs_git=True,
)

NPM: Final = PackageIndex(
    type=SourceType.NPM,
    noun="an npm package",
    name=r"(?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*",
    version=r"[A-Za-z0-9][A-Za-z0-9.+-]*",
    exact=r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?",
    separators=("@",),
    urls=frozenset({"https://registry.npmjs.org"}),
    programs="node_modules/.bin",
    runners=(
        ("npx",), ("bunx",), ("pnpx",), ("npm", "exec"), ("npm", "x"), ("pnpm", "dlx"), ("yarn", "dlx"), ("bun", "x"),
    ),
    flags=frozenset(
        {"-y", "--yes", "-q", "--quiet", "-s", "--silent", "--prefer-online", "--prefer-offline", "--bun"}
        | {"--no-install"}
    ),
    package_options=frozenset({"-p", "--package"}),
    requires=(("node", "nodejs"), ("npm", "npm")),
)  # fmt: skip

INDEXES: Final[dict[str, PackageIndex]] = {index.type: index for index in (PYPI, NPM)}

PACKAGE_SOURCES: Final[dict[str, PackageSource]] = {
    source.type: source
    for source in (
        PackageSource(type=SourceType.GIT, pin="rev", exact=COMMIT.pattern, requires=(("git", "git"),)),
        *INDEXES.values(),
        PackageSource(type=SourceType.MCPB, pin="sha256", exact="[0-9a-f]{64}", describes_itself=True),
        PackageSource(type=SourceType.ARCHIVE, pin="sha256", exact="[0-9a-f]{64}"),
        PackageSource(type=SourceType.LOCAL),
    )
}
