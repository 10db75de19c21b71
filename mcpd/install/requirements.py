# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a Python project says it needs, with everything refused that would make pip run code while it resolves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from mcpd.errors import InvalidManifest
from mcpd.install.projectfiles import read_project_file
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEFAULT_BUILD: Final = ("setuptools>=40.8.0", "wheel")
"""What PEP 518 assumes where a project says nothing."""
MAX_INCLUDES: Final = 32
"""Files that ``requirements.txt`` may include, directly or not."""
MAX_REQUIREMENTS: Final = 10_000
MAX_PYPROJECT: Final = 256 * 1024
"""Bytes of ``pyproject.toml``. The parser takes up to 1.5 s and 130 MB for these, if somebody wants it to."""
_NAME: Final = re.compile(r"[A-Za-z0-9]", re.ASCII)
_URL: Final = re.compile(r"@\s*(\S+)")


@dataclass(frozen=True, slots=True)
class PythonProject:
    """The Python side of a project directory."""

    is_package: bool
    """Whether there is something to build and install."""
    build_requirements: tuple[str, ...]
    requirements: tuple[str, ...]
    """``requirements.txt``, and the dependencies of a project that is no package."""

    @property
    def needs_environment(self) -> bool:
        """Whether the system's Python alone does not do."""
        return self.is_package or bool(self.requirements)

    @classmethod
    def read(cls, root: Path) -> Self:
        """Look at the project in *root*; :class:`~mcpd.errors.InvalidManifest` for files that cannot be used."""
        pyproject = _pyproject(root / "pyproject.toml")
        project, build = pyproject.get("project", {}), pyproject.get("build-system")
        if not isinstance(project, dict) or not (build is None or isinstance(build, dict)):
            raise InvalidManifest("pyproject.toml: [project] and [build-system] must be tables")
        is_package = bool(
            build or project.get("scripts") or _is_file(root / "setup.py") or _is_file(root / "setup.cfg")
        )
        required = _strings((build or {}).get("requires", DEFAULT_BUILD), "build-system.requires")
        if any(line.startswith("setuptools") for line in required):
            required.append("wheel")  # older setuptools ask for it in the middle of a build
        lines = [] if is_package else _strings(project.get("dependencies", ()), "project.dependencies")
        lines += _RequirementFiles(root).read(root / "requirements.txt")
        if len(lines) > MAX_REQUIREMENTS:
            raise InvalidManifest(f"the project has more than {MAX_REQUIREMENTS:,} requirements")
        for line in (*required, *lines):
            check_line(line, "the project's requirements")
        return cls(is_package, tuple(required), tuple(lines))


def check_line(line: str, origin: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` unless *line* names packages of an index, or a wheel by https."""
    requirement = line.partition(";")[0]
    # pip takes more characters than \n for the end of a line, and fills in variables: a mirror's password, for one.
    if not _NAME.match(line) or len(line.splitlines()) != 1 or line.endswith("\\") or "${" in line:
        raise InvalidManifest(f"{origin}: {line[:100]!r} is not supported; only names of packages are")
    url = _URL.search(requirement)
    if url and not (url[1].startswith("https://") and url[1].partition("#")[0].endswith(".whl")):
        raise InvalidManifest(
            f"{origin}: {line[:100]!r} is not supported; name a package of an index, or a wheel by https"
        )
    if not url and re.search(r"[/\\]|://|\.(whl|zip|tar|gz|bz2|tgz)\b", requirement.partition(" --hash")[0]):
        raise InvalidManifest(f"{origin}: {line[:100]!r} is a path, and only names of packages are supported")
    options = [word for word in requirement.split() if word.startswith("-")]
    if any(not option.startswith("--hash=") for option in options):
        raise InvalidManifest(f"{origin}: the option in {line[:100]!r} is not supported")


class _RequirementFiles:
    """``requirements.txt`` and what it includes; files that include each other twice multiply, so all are counted."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._left = MAX_INCLUDES + 1

    def read(self, path: Path) -> list[str]:
        """The requirements in *path*, none if it is missing."""
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
        raise InvalidManifest(f"pyproject.toml of the project cannot be read: {error}") from error


def _strings(value: object, key: str) -> list[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise InvalidManifest(f"pyproject.toml: {key} must be a list of strings")
    return list(value)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
