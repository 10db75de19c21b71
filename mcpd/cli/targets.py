# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl install TARGET`` can name beside an id: packages, repositories, directories, files and URLs."""

from __future__ import annotations

import json
import os
import re
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from mcpd.cli.output import warn
from mcpd.cli.user_input import read_input
from mcpd.errors import IntegrityMismatch, InvalidArgument, InvalidManifest, NotFound, from_oserror
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from io import BufferedReader

BUNDLES: Final = (".mcpb", ".dxt")
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_PIECE: Final = 1 << 18
_VERSIONED: Final = re.compile(r"(?:(.*?)[-_.])?v?([0-9]+(?:\.[0-9]+)+(?:[-.+][A-Za-z0-9.+-]+)?)", re.ASCII)
"""A name with a version behind it, as people call archives."""


def is_bundle(name: str) -> bool:
    """Whether *name* is that of an MCP bundle."""
    return name.lower().endswith(BUNDLES)


def is_archive(name: str) -> bool:
    """Whether *name* is that of an archive."""
    return name.lower().endswith(ARCHIVES)


def remote_source(url: str, sha256: str) -> dict[str, str] | None:
    """The source for the bundle or archive behind *url*, with *sha256*; ``None`` if its name is that of neither.

    Raises :class:`~mcpd.errors.InvalidArgument` if nothing says what it has to hash to.
    """
    parts = urlsplit(url)
    kind = "mcpb" if is_bundle(parts.path) else "archive" if is_archive(parts.path) else ""
    if not kind or parts.scheme.lower() not in {"http", "https"}:
        return None
    if not sha256:
        raise InvalidArgument(
            f"{url!r}: --sha256 has to say what it hashes to, as it was published or as 'sha256sum' says of a copy "
            "that you trust; or fetch it and install the file"
        )
    source = {"type": kind, "url": urlunsplit(parts._replace(fragment="")), "sha256": sha256}
    return source | ({"path": unquote(parts.fragment)} if parts.fragment and kind == "archive" else {})


def local_source(path: Path, sha256: str) -> dict[str, str]:
    """The source for the archive at *path*, pinned to what it is now.

    Raises :class:`~mcpd.errors.IntegrityMismatch` if that is not *sha256*, where one is given.
    """
    with _open(path) as file:
        return {"type": "archive", "url": path.as_uri(), "sha256": _checked(path, file, sha256)}


@contextmanager
def sending(path: Path, sha256: str) -> Iterator[tuple[int, str]]:
    """The reading end of a pipe that the file at *path* comes through, and what that hashes to.

    Raises as :func:`local_source` does.
    """
    with ExitStack() as stack:
        file = stack.enter_context(_open(path))
        digest = _checked(path, file, sha256)
        reader, writer = os.pipe()
        stack.callback(os.close, reader)
        # It ends with what it has to write, or with the last reader; its file is its own from here on.
        threading.Thread(target=_write, args=(os.dup(file.fileno()), writer), daemon=True).start()
        yield reader, digest


def _open(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}") from error
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error


def _checked(path: Path, file: BufferedReader, wanted: str) -> str:
    """What *file* hashes to, from its beginning, where it stands again then."""
    import hashlib  # noqa: PLC0415 - few installations hash anything here

    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    if wanted and found != wanted:
        raise IntegrityMismatch(f"{path} hashes to sha256 {found}, not {wanted}: it is another file than it should be")
    return found


def _write(source: int, sink: int) -> None:
    with suppress(BrokenPipeError), open(sink, "wb") as out, open(source, "rb") as file:
        while piece := file.read(_PIECE):
            out.write(piece)


def name_and_version(file: str) -> tuple[str, str]:
    """What the server in *file* is called, by the name of that: ``time-server-1.2.tar.gz`` is time-server, at 1.2.

    Either is empty if the name does not say it.
    """
    stem = next((file[: -len(end)] for end in (*ARCHIVES, *BUNDLES) if file.lower().endswith(end)), file)
    match = _VERSIONED.fullmatch(stem)
    return (match[1] or "", match[2]) if match else (stem, "")


_PYPI = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?", re.ASCII)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ELSEWHERE = frozenset({"streamable-http", "sse", "websocket"})
"""Transports of servers that have no files here."""
_SIGNATURE_LIMIT = 4096
"""Bytes of a file with a signature, which has 89."""
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

    sha256: str = ""
    """What a bundle or archive has to hash to."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be installed: a server of the catalog, a bundle, or what a manifest describes."""

    id: str = ""
    """Empty if only the bundle says it."""
    bundle: Path | None = None
    manifest: dict[str, Any] | None = None
    data: bytes = b""
    """The manifest as it is sent: where it is signed, the very bytes of its file."""
    signature: str = ""
    """Base64 of the signature of :attr:`data`; empty without one."""


def target_of(target: str, wishes: Wishes) -> Target:
    """What *target* names, with the *wishes* of the command line.

    Raises :class:`~mcpd.errors.InvalidArgument` for a target or wish nobody can read,
    :class:`~mcpd.errors.InvalidManifest` for a file that is not a manifest or entry, and
    :class:`~mcpd.errors.IntegrityMismatch` for one that is another than it should be.
    """
    for name in (*wishes.secrets, *(name for name, _ in wishes.env)):
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r} cannot be the name of an environment variable")
    if wishes.permissions:
        from mcpd.cli import permissions  # noqa: PLC0415 - few installations name any

        permissions.check(wishes.permissions)
    found = _unwished(target, wishes)
    if found.manifest is None:
        return found
    manifest = _with_wishes(found.manifest, wishes)
    return replace(found, id=str(manifest.get("id", "")), manifest=manifest, data=found.data or _json(manifest))


def _json(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest).encode()


def _unwished(target: str, wishes: Wishes) -> Target:
    if found := _archive(target, wishes):
        return found
    if wishes.sha256:
        raise InvalidArgument(f"{target!r} is no bundle or archive, which alone have a --sha256")
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
    if "==" in target:
        raise InvalidArgument(f"{target!r} is no id; a package of PyPI is written pypi:{target}")
    if wishes != Wishes():
        raise InvalidArgument(
            f"{target!r} is an id of the catalog, whose entry says how it is called and started and what it needs; "
            "leave out --id, --command, --arg, --permission, --secret, --env and --run-as"
        )
    return Target(target)


def _archive(target: str, wishes: Wishes) -> Target | None:
    """The bundle or archive that *target* names; ``None`` if it names neither."""
    url = bool(_URL.fullmatch(target))
    path = Path(urlsplit(target).path if url else target).expanduser()
    bundle = is_bundle(path.name)
    if bundle and replace(wishes, id="", sha256="") != Wishes():
        raise InvalidArgument(
            f"{target!r} is a bundle, which says itself how it is started and what it needs; leave out --command, "
            "--arg, --permission, --secret, --env and --run-as"
        )
    if url:
        source = remote_source(target, wishes.sha256)
    elif (bundle or is_archive(path.name)) and ("/" in target or path.is_file()):
        if bundle and wishes.id:
            raise InvalidArgument(f"{target!r} is a bundle, which says itself what it is called; leave out --id")
        if bundle:
            return Target(bundle=path)
        source = local_source(path.resolve(), wishes.sha256)
    else:
        return None
    if source is None:
        return None
    name, version = name_and_version(path.name)
    if not (name or wishes.id):
        raise InvalidArgument(f"{target!r} does not say what the server is called; give it a name with --id")
    return _manifest(name, wishes, source=source, version=version)


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


def _package(kind: str, target: str, pattern: re.Pattern[str], form: str, wishes: Wishes) -> Target:
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


def _git(target: str, wishes: Wishes) -> Target:
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


def _path(path: Path, wishes: Wishes) -> Target:
    if path.is_file():
        return _file(path, wishes)
    if not path.is_dir():
        raise InvalidArgument(f"{str(path)!r}: no such file or directory; to install from the catalog give an id")
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


def _file(path: Path, wishes: Wishes) -> Target:
    from mcpd.formats import server_json  # noqa: PLC0415 - pydantic, which an id of the catalog does not need

    data = read_input(str(path))
    manifest = _parsed(path, data)
    _refuse_many(path, manifest)
    if server_json.is_server_json(manifest):
        manifest, is_moved = server_json.entry_of(manifest, str(path)).to_json(), False
    elif is_moved := _names_directory(manifest, wishes):
        source = manifest.setdefault("source", {"type": "local"})
        source["path"] = str(path.parent / str(source.get("path") or ""))
    if wishes.id:
        manifest["id"] = wishes.id
    if wishes.program:
        others = [other for other in manifest.get("transports", []) if other.get("type") != "stdio"]
        manifest["transports"] = [_stdio(wishes.program, wishes.arguments), *others]
    signature = _signature(path)
    if not signature:
        return Target(manifest=manifest)
    if wishes != Wishes() or is_moved:
        warn(
            f"{path}.sig is not used: {path.name} is changed before it is installed, by an option or because it names "
            "its own directory, and that is not what was signed"
        )
        return Target(manifest=manifest)
    return Target(manifest=manifest, data=data, signature=signature)


def _refuse_many(path: Path, said: Mapping[str, Any]) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` for a file with more than one server."""
    if isinstance(said.get("servers"), list | dict):
        raise InvalidArgument(
            f"{str(path)!r} is a registry; 'mcpctl import {path}' installs its servers, and 'mcpctl source add "
            f"file://{path}' lets you choose from them"
        )
    if "mcpServers" in said:
        raise InvalidArgument(f"{str(path)!r} is the file of a client; 'mcpctl import {path}' installs its servers")


def _names_directory(said: Mapping[str, Any], wishes: Wishes) -> bool:
    """Whether the place of its file belongs to what a manifest says: its files are there, or below."""
    if "source" in said:
        return isinstance(said["source"], dict) and said["source"].get("type") == "local"
    transports = said.get("transports")
    kinds = (
        {item.get("type") for item in transports if isinstance(item, dict)} if isinstance(transports, list) else set()
    )
    return bool(wishes.program) or not (kinds and kinds <= _ELSEWHERE)


def _signature(path: Path) -> str:
    """What ``FILE.sig`` holds; empty if there is none."""
    file = path.with_name(path.name + ".sig")
    if not file.exists():
        return ""
    return read_input(str(file), _SIGNATURE_LIMIT).decode("ascii", "replace").strip()


def _read(path: Path) -> dict[str, Any]:
    return _parsed(path, read_input(str(path)))


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = parse_toml(data) if path.suffix == ".toml" else json.loads(data)
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


def _manifest(name: str, wishes: Wishes, *, source: dict[str, str], version: str = "", summary: str = "") -> Target:
    """A manifest for *source*; without a program, mcpd takes the one that the package brings."""
    from mcpd.model import id_from_name  # noqa: PLC0415 - pydantic, which an id of the catalog does not need

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
    return Target(manifest=manifest)


def _stdio(program: str, arguments: Sequence[str]) -> dict[str, Any]:
    return {"type": "stdio", "command": program, "args": list(arguments)}
