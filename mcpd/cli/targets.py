# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl install TARGET`` can name beside an id: packages, repositories, directories and files."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from mcpd.errors import InvalidArgument, InvalidManifest, from_oserror

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYPI = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?", re.ASCII)
_NPM = re.compile(r"((?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*)(?:@([A-Za-z0-9.+_-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says about a manifest."""

    id: str = ""
    program: str = ""
    arguments: Sequence[str] = ()


def manifest_of(target: str, wishes: Wishes) -> dict[str, Any] | None:
    """The manifest to install for *target*; ``None`` if it is an id of the catalogue.

    Raises :class:`~mcpd.errors.InvalidArgument` for a target nobody can read, and
    :class:`~mcpd.errors.InvalidManifest` for a file that is not a manifest or entry.
    """
    if target.startswith("pypi:"):
        return _package("pypi", target, _PYPI, "pypi:NAME or pypi:NAME==VERSION", wishes)
    if target.startswith("npm:"):
        return _package("npm", target, _NPM, "npm:NAME or npm:NAME@VERSION", wishes)
    if target.startswith("git+"):
        return _git(target, wishes)
    path = Path(target).expanduser()
    if "/" in target or target in {".", "..", "~"} or (target.endswith(".json") and path.is_file()):
        return _path(path.resolve(), wishes)
    if wishes != Wishes():
        raise InvalidArgument(
            f"{target!r} is an id of the catalogue, whose entry says how it is called and started; "
            "leave out --id, --command and --arg"
        )
    return None


def _package(kind: str, target: str, pattern: re.Pattern[str], form: str, wishes: Wishes) -> dict[str, Any]:
    match = pattern.fullmatch(target.removeprefix(kind + ":"))
    if not match:
        raise InvalidArgument(f"{target!r} is not a package; write {form}")
    name, version = match[1], match[2] or ""
    source = {"type": kind, "package": name} | ({"version": version} if version else {})
    if wishes.arguments and not wishes.program:
        # The package's own program, by the name that stands for it in the entries of registries.
        runner = "uvx" if kind == "pypi" else "npx"
        wishes = Wishes(wishes.id, runner, (name, *wishes.arguments))
    return _manifest(name, wishes, source=source, version=version)


def _git(target: str, wishes: Wishes) -> dict[str, Any]:
    parts = urlsplit(target.removeprefix("git+"))
    path, found, rev = parts.path.rpartition("@")
    if not found:
        path, rev = parts.path, ""
    if not parts.scheme or not path.strip("/"):
        raise InvalidArgument(f"{target!r} is not a repository; write git+URL, git+URL@REV or git+URL@REV#PATH")
    source = {"type": "git", "url": urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))}
    source |= {key: value for key, value in (("rev", rev), ("path", parts.fragment)) if value}
    name = (parts.fragment or path).rstrip("/").rpartition("/")[2].removesuffix(".git")
    return _manifest(name, wishes, source=source)


def _path(path: Path, wishes: Wishes) -> dict[str, Any]:
    if path.is_file():
        return _file(path, wishes)
    if not path.is_dir():
        raise InvalidArgument(f"{str(path)!r}: no such file or directory; to install from the catalogue give an id")
    if (path / "manifest.json").is_file():
        return _file(path / "manifest.json", wishes)
    if (path / "pyproject.toml").is_file():
        project = _read(path / "pyproject.toml").get("project", {})
    elif (path / "package.json").is_file():
        project = _read(path / "package.json")
    elif wishes.program:
        project = {}
    else:
        raise InvalidArgument(f"{str(path)!r} does not say what to start; name its program with --command")
    return _manifest(
        str(project.get("name") or path.name),
        wishes,
        source={"type": "local", "path": str(path)},
        version=str(project.get("version") or ""),
        summary=str(project.get("description") or ""),
    )


def _file(path: Path, wishes: Wishes) -> dict[str, Any]:
    manifest = _read(path)
    if isinstance(manifest.get("servers"), list | dict):
        raise InvalidArgument(f"{str(path)!r} is a registry; add it with 'mcpctl source add file://{path}'")
    source = manifest.setdefault("source", {"type": "local", "path": str(path.parent)})
    if isinstance(source, dict) and source.get("type") == "local":
        source["path"] = str(path.parent / str(source.get("path") or ""))
    if wishes.id:
        manifest["id"] = wishes.id
    if wishes.program:
        others = [other for other in manifest.get("transports", []) if other.get("type") != "stdio"]
        manifest["transports"] = [_stdio(wishes.program, wishes.arguments), *others]
    return manifest


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    try:
        value = tomllib.loads(data.decode()) if path.suffix == ".toml" else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidManifest(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidManifest(f"{path}: one object is expected, with 'id', 'name' and 'transports'")
    return value


def _manifest(
    name: str, wishes: Wishes, *, source: dict[str, str], version: str = "", summary: str = ""
) -> dict[str, Any]:
    """A manifest for *source*; without a program, mcpd takes the one that the package brings."""
    from mcpd.model import id_from_name  # noqa: PLC0415 - pydantic, which an id of the catalogue does not need

    manifest: dict[str, Any] = {
        "id": wishes.id or id_from_name(name),
        "name": name,
        "summary": summary,
        "version": version,
        "source": source,
    }
    if wishes.arguments and not wishes.program:
        raise InvalidArgument("--arg needs --command, to say whose argument it is")
    if wishes.program:
        manifest["transports"] = [_stdio(wishes.program, wishes.arguments)]
    return manifest


def _stdio(program: str, arguments: Sequence[str]) -> dict[str, Any]:
    return {"type": "stdio", "command": program, "args": list(arguments)}
