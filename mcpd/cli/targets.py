# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl install TARGET`` can name beside an id: packages, repositories, directories and files."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from mcpd.errors import InvalidArgument, InvalidManifest, from_oserror

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYPI = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?", re.ASCII)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NPM = re.compile(r"((?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*)(?:@([A-Za-z0-9.+_-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says about a manifest."""

    id: str = ""
    program: str = ""
    arguments: Sequence[str] = ()
    permissions: Sequence[str] = ()
    secrets: Sequence[str] = ()
    """Names of environment variables that the user is asked a value for."""
    env: Sequence[tuple[str, str]] = ()
    run_as: str = ""
    """``system``: as the machine's own, for everybody; ``user``: as whoever starts it."""


def manifest_of(target: str, wishes: Wishes) -> dict[str, Any] | None:
    """The manifest to install for *target*; ``None`` if it is an id of the catalogue.

    Raises :class:`~mcpd.errors.InvalidArgument` for a target or wish nobody can read, and
    :class:`~mcpd.errors.InvalidManifest` for a file that is not a manifest or entry.
    """
    for name in (*wishes.secrets, *(name for name, _ in wishes.env)):
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r} cannot be the name of an environment variable")
    if wishes.permissions:
        from mcpd.cli import permissions  # noqa: PLC0415 - few installations name any

        permissions.check(wishes.permissions)
    manifest = _unwished(target, wishes)
    return None if manifest is None else _with_wishes(manifest, wishes)


def _unwished(target: str, wishes: Wishes) -> dict[str, Any] | None:
    if target.startswith("pypi:"):
        return _package("pypi", target, _PYPI, "pypi:NAME or pypi:NAME==VERSION", wishes)
    if target.startswith("npm:"):
        return _package("npm", target, _NPM, "npm:NAME or npm:NAME@VERSION", wishes)
    if target.startswith("git+"):
        return _git(target, wishes)
    if url := _URL.fullmatch(target):
        raise InvalidArgument(_not_a_target(target, url[1], url[2]))
    path = Path(target).expanduser()
    if "/" in target or target in {".", "..", "~"} or (target.endswith(".json") and path.is_file()):
        return _path(path.resolve(), wishes)
    if wishes != Wishes():
        raise InvalidArgument(
            f"{target!r} is an id of the catalogue, whose entry says how it is called and started and what it needs; "
            "leave out --id, --command, --arg, --permission, --secret, --env and --run-as"
        )
    return None


def _not_a_target(target: str, scheme: str, rest: str) -> str:
    if scheme.lower() == "file":
        return f"{target!r} is a URL; write the path of the directory, {rest!r}, or git+{target} for a git repository"
    return (
        f"{target!r} is a URL; write git+{target} for a git repository, or the path of a directory with the server. "
        "'mcpctl source add URL' adds a registry"
    )


def _with_wishes(manifest: dict[str, Any], wishes: Wishes) -> dict[str, Any]:
    """*manifest* with the permissions, variables, secrets and account of the command line beside its own."""
    if wishes.permissions:
        manifest["permissions"] = list(dict.fromkeys([*_field(manifest, "permissions", list), *wishes.permissions]))
    if wishes.env:
        manifest["env"] = _field(manifest, "env", dict) | dict(wishes.env)
    if wishes.run_as:
        manifest["runtime"] = _field(manifest, "runtime", dict) | {"runAs": wishes.run_as}
    if wishes.secrets:
        others = _field(manifest, "configurableProperties", list)
        others = [known for known in others if not (isinstance(known, dict) and known.get("key") in wishes.secrets)]
        manifest["configurableProperties"] = [*others, *map(_secret, dict.fromkeys(wishes.secrets))]
    return manifest


def _field(manifest: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = manifest.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidManifest(f"{manifest.get('id', '')}: {name} is not {'a list' if kind is list else 'an object'}")
    return value or kind()


def _secret(key: str) -> dict[str, Any]:
    return {"key": key, "label": key, "type": "string", "sensitive": True, "required": True, "target": "env"}


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
    if parts.scheme == "file" and not Path(unquote(path)).is_dir():
        raise InvalidArgument(f"{target!r}: there is no directory {unquote(path)!r} with a git repository")
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
        if path.suffix not in {".json", ".toml"}:
            raise InvalidManifest(
                f"{path}: not a manifest or registry entry, which are JSON; to install the program give its directory: "
                f"mcpctl install {path.parent} --command PROGRAM --arg {path.name}"
            ) from error
        raise InvalidManifest(f"{path}: not {path.suffix[1:].upper()}: {error}") from error
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
