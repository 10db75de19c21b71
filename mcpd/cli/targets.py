# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets of ``mcpctl install``: ids, packages, repositories, directories, files and URLs."""

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
from mcpd.package_sources import INDEXES, PackageIndex
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from io import BufferedReader

BUNDLES: Final = (".mcpb", ".dxt")
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_PIECE: Final = 1 << 18
_VERSIONED: Final = re.compile(r"(?:(.*?)[-_.])?v?([0-9]+(?:\.[0-9]+)+(?:[-.+][A-Za-z0-9.+-]+)?)", re.ASCII)
"""The usual name of an archive: a name and a version."""


def is_bundle(name: str) -> bool:
    """Return whether *name* has the suffix of a bundle."""
    return name.lower().endswith(BUNDLES)


def is_archive(name: str) -> bool:
    """Return whether *name* has the suffix of an archive."""
    return name.lower().endswith(ARCHIVES)


def remote_source(url: str, sha256: str) -> dict[str, str] | None:
    """Return the package source for the bundle or archive at *url*; ``None`` if *url* is neither.

    Raises :class:`~mcpd.errors.InvalidArgument` if *sha256* is empty.
    """
    parts = urlsplit(url)
    kind = "mcpb" if is_bundle(parts.path) else "archive" if is_archive(parts.path) else ""
    if not kind or parts.scheme.lower() not in {"http", "https"}:
        return None
    if not sha256:
        raise InvalidArgument(
            f"{url!r}: a URL needs --sha256, with the published hash or the 'sha256sum' of a copy that you trust; or "
            "download it and install the file"
        )
    source = {"type": kind, "url": urlunsplit(parts._replace(fragment="")), "sha256": sha256}
    return source | ({"path": unquote(parts.fragment)} if parts.fragment and kind == "archive" else {})


def local_source(path: Path, sha256: str) -> dict[str, str]:
    """Return the package source for the archive at *path*, pinned to its current hash.

    Raises :class:`~mcpd.errors.IntegrityMismatch` if *sha256* is given and differs.
    """
    with _open(path) as file:
        return {"type": "archive", "url": path.as_uri(), "sha256": _checked(path, file, sha256)}


@contextmanager
def piped(path: Path, sha256: str) -> Iterator[tuple[int, str]]:
    """Yield the reading end of a pipe with the content of *path*, and its SHA-256 digest.

    Raises the errors of :func:`local_source`.
    """
    with ExitStack() as stack:
        file = stack.enter_context(_open(path))
        digest = _checked(path, file, sha256)
        reader, writer = os.pipe()
        stack.callback(os.close, reader)
        # The thread has its own descriptors. It ends when all is written, or when the last reader is gone.
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
    """Return the SHA-256 digest of *file* and rewind it.

    Raises :class:`~mcpd.errors.IntegrityMismatch` if *wanted* is not empty and differs.
    """
    import hashlib  # rarely needed

    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    if wanted and found != wanted:
        raise IntegrityMismatch(f"{path} has the SHA-256 digest {found}, not {wanted}")
    return found


def _write(source: int, sink: int) -> None:
    with suppress(BrokenPipeError), open(sink, "wb") as out, open(source, "rb") as file:
        while piece := file.read(_PIECE):
            out.write(piece)


def name_and_version(file: str) -> tuple[str, str]:
    """Return the name and version of a server from the name of its *file*: ``time-server-1.2.tar.gz``.

    Either may be empty.
    """
    stem = next((file[: -len(end)] for end in (*ARCHIVES, *BUNDLES) if file.lower().endswith(end)), file)
    match = _VERSIONED.fullmatch(stem)
    return (match[1] or "", match[2]) if match else (stem, "")


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REMOTE = frozenset({"streamable-http", "sse", "websocket"})
"""Transports of remote servers."""
_SIGNATURE_LIMIT = 4096
"""Maximum bytes of a signature file; a valid one has 89."""


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """Options of the command line that change the manifest."""

    id: str = ""
    program: str = ""
    arguments: Sequence[str] = ()
    permissions: Sequence[str] = ()
    secrets: Sequence[str] = ()
    """Environment variables whose values the user is asked for."""
    env: Sequence[tuple[str, str]] = ()
    run_as: str = ""
    """``system``: run as mcp-server, for everyone; ``user``: run as the user who starts it."""

    sha256: str = ""
    """The required hash of a bundle or archive."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an installation: an id of the catalog, a bundle, or a manifest."""

    id: str = ""
    """Server id; empty for a bundle, which contains the id."""
    bundle: Path | None = None
    manifest: dict[str, Any] | None = None
    data: bytes = b""
    """The manifest as sent to mcpd; if it is signed, the unchanged content of its file."""
    signature: str = ""
    """The signature of :attr:`data` in base64; empty if there is none."""


def target_of(target: str, options: ManifestOptions) -> Target:
    """Parse *target*, and apply the *options* of the command line.

    Raises :class:`~mcpd.errors.InvalidArgument` for an invalid target or option,
    :class:`~mcpd.errors.InvalidManifest` for a file that is not a manifest or entry, and
    :class:`~mcpd.errors.IntegrityMismatch` for a file with a wrong hash.
    """
    for name in (*options.secrets, *(name for name, _ in options.env)):
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r} is not a valid name of an environment variable")
    if options.permissions:
        from mcpd.cli import permissions  # rarely needed

        permissions.check(options.permissions)
    found = _plain_target(target, options)
    if found.manifest is None:
        return found
    manifest = _with_options(found.manifest, options)
    return replace(found, id=str(manifest.get("id", "")), manifest=manifest, data=found.data or _json(manifest))


def _json(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest).encode()


def _plain_target(target: str, options: ManifestOptions) -> Target:
    if found := _archive(target, options):
        return found
    if options.sha256:
        raise InvalidArgument(f"{target!r}: --sha256 applies only to bundles and archives")
    kind, _, spec = target.partition(":")
    if kind in INDEXES:
        return _package(INDEXES[kind], spec, options)
    if target.startswith("git+"):
        return _git(target, options)
    if url := _URL.fullmatch(target):
        raise InvalidArgument(_not_a_target(target, url[1], url[2]))
    path = Path(target).expanduser()
    if "/" in target or target in {".", "..", "~"} or (target.endswith(".json") and path.is_file()):
        return _path(path.resolve(), options)
    if "==" in target:
        raise InvalidArgument(f"{target!r} is not an id; for a package from PyPI, use pypi:{target}")
    if ":" in target:
        known = ", ".join(f"{index}:NAME" for index in INDEXES)
        raise InvalidArgument(f"{target!r} is not an id; for a package, use {known} or git+URL")
    if options != ManifestOptions():
        raise InvalidArgument(
            f"{target!r} is an id from the catalog, and its entry defines how the server is installed; "
            "omit --id, --command, --arg, --permission, --secret, --env and --run-as"
        )
    return Target(target)


def _archive(target: str, options: ManifestOptions) -> Target | None:
    """Return the target for a bundle or archive; ``None`` if *target* is neither."""
    url = bool(_URL.fullmatch(target))
    path = Path(urlsplit(target).path if url else target).expanduser()
    bundle = is_bundle(path.name)
    if bundle and replace(options, id="", sha256="") != ManifestOptions():
        raise InvalidArgument(
            f"{target!r} is a bundle, and its manifest defines how the server is started; omit --command, "
            "--arg, --permission, --secret, --env and --run-as"
        )
    if url:
        source = remote_source(target, options.sha256)
    elif (bundle or is_archive(path.name)) and ("/" in target or path.is_file()):
        if bundle and options.id:
            raise InvalidArgument(f"{target!r} is a bundle, which has its own id; omit --id")
        if bundle:
            return Target(bundle=path)
        source = local_source(path.resolve(), options.sha256)
    else:
        return None
    if source is None:
        return None
    name, version = name_and_version(path.name)
    if not (name or options.id):
        raise InvalidArgument(f"{target!r} contains no name for the server; set one with --id")
    return _manifest(name, options, source=source, version=version)


def _not_a_target(target: str, scheme: str, rest: str) -> str:
    if scheme.lower() == "file":
        return f"{target!r} is a URL; use the path of the directory, {rest!r}, or git+{target} for a git repository"
    return (
        f"{target!r} is a URL; use git+{target} for a git repository, or the path of a directory with the server. "
        "'mcpctl source add URL' adds a registry"
    )


def _with_options(manifest: dict[str, Any], options: ManifestOptions) -> dict[str, Any]:
    """Add the permissions, variables, secrets and account of the command line to *manifest*, and return it."""
    if options.permissions:
        manifest["permissions"] = list(dict.fromkeys([*_field(manifest, "permissions", list), *options.permissions]))
    if options.env:
        manifest["env"] = _field(manifest, "env", dict) | dict(options.env)
    if options.run_as:
        manifest["runtime"] = _field(manifest, "runtime", dict) | {"runAs": options.run_as}
    if options.secrets:
        others = _field(manifest, "configurableProperties", list)
        others = [known for known in others if not (isinstance(known, dict) and known.get("key") in options.secrets)]
        manifest["configurableProperties"] = [*others, *map(_secret, dict.fromkeys(options.secrets))]
    return manifest


def _field(manifest: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = manifest.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidManifest(f"{manifest.get('id', '')}: {name} is not {'a list' if kind is list else 'an object'}")
    return value or kind()


def _secret(key: str) -> dict[str, Any]:
    return {"key": key, "label": key, "type": "string", "sensitive": True, "required": True, "target": "env"}


def _package(index: PackageIndex, spec: str, options: ManifestOptions) -> Target:
    name, version = index.split(spec) or ("", "")
    if not name or (version and not index.is_version(version)):
        raise InvalidArgument(f"'{index.type}:{spec}' is not a package; use {index.type}:NAME or {index.form('')}")
    source = {"type": str(index.type), "package": name} | ({"version": version} if version else {})
    if options.arguments and not options.program:
        # The package's own program, written as in the entries of registries.
        options = ManifestOptions(options.id, index.runner, (name, *options.arguments))
    return _manifest(name, options, source=source, version=version)


def _git(target: str, options: ManifestOptions) -> Target:
    parts = urlsplit(target.removeprefix("git+"))
    path, found, rev = parts.path.rpartition("@")
    if not found:
        path, rev = parts.path, ""
    if not parts.scheme or not path.strip("/"):
        raise InvalidArgument(f"{target!r} is not a repository; use git+URL, git+URL@REV or git+URL@REV#PATH")
    if parts.scheme == "file" and not Path(unquote(path)).is_dir():
        raise InvalidArgument(f"{target!r}: {unquote(path)!r} is not a directory with a git repository")
    source = {"type": "git", "url": urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))}
    source |= {key: value for key, value in (("rev", rev), ("path", parts.fragment)) if value}
    name = (parts.fragment or path).rstrip("/").rpartition("/")[2].removesuffix(".git")
    return _manifest(name, options, source=source)


def _path(path: Path, options: ManifestOptions) -> Target:
    if path.is_file():
        return _file(path, options)
    if not path.is_dir():
        raise InvalidArgument(f"{str(path)!r}: no such file or directory; to install from the catalog, specify an id")
    if (path / "manifest.json").is_file():
        return _file(path / "manifest.json", options)
    if (path / "pyproject.toml").is_file():
        project = _read(path / "pyproject.toml").get("project", {})
    elif (path / "package.json").is_file():
        project = _read(path / "package.json")
    elif options.program:
        project = {}
    else:
        raise InvalidArgument(f"{str(path)!r} does not define a program; specify one with --command")
    return _manifest(
        str(project.get("name") or path.name),
        options,
        source={"type": "local", "path": str(path)},
        version=str(project.get("version") or ""),
        summary=str(project.get("description") or ""),
    )


def _file(path: Path, options: ManifestOptions) -> Target:
    from mcpd.formats import server_json  # pydantic, which an id of the catalog does not need

    data = read_input(str(path))
    manifest = _parsed(path, data)
    _refuse_many(path, manifest)
    if server_json.is_server_json(manifest):
        manifest, is_moved = server_json.entry_of(manifest, str(path)).to_json(), False
    elif is_moved := _names_directory(manifest, options):
        source = manifest.setdefault("source", {"type": "local"})
        source["path"] = str(path.parent / str(source.get("path") or ""))
    if options.id:
        manifest["id"] = options.id
    if options.program:
        others = [other for other in manifest.get("transports", []) if other.get("type") != "stdio"]
        manifest["transports"] = [_stdio(options.program, options.arguments), *others]
    signature = _signature(path)
    if not signature:
        return Target(manifest=manifest)
    if options != ManifestOptions() or is_moved:
        warn(
            f"{path}.sig is not used: {path.name} is changed before it is installed, by an option or because it "
            "refers to its own directory, so the signature does not apply"
        )
        return Target(manifest=manifest)
    return Target(manifest=manifest, data=data, signature=signature)


def _refuse_many(path: Path, document: Mapping[str, Any]) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` for a file with more than one server."""
    if isinstance(document.get("servers"), list | dict):
        raise InvalidArgument(
            f"{str(path)!r} is a registry; 'mcpctl import {path}' installs its servers, and 'mcpctl source add "
            f"file://{path}' adds them to the catalog"
        )
    if "mcpServers" in document:
        raise InvalidArgument(
            f"{str(path)!r} is a client's configuration file; 'mcpctl import {path}' installs its servers"
        )


def _names_directory(manifest: Mapping[str, Any], options: ManifestOptions) -> bool:
    """Return whether the files of the server are in the directory of its *manifest*, or below."""
    if "source" in manifest:
        return isinstance(manifest["source"], dict) and manifest["source"].get("type") == "local"
    transports = manifest.get("transports")
    kinds = (
        {item.get("type") for item in transports if isinstance(item, dict)} if isinstance(transports, list) else set()
    )
    return bool(options.program) or not (kinds and kinds <= _REMOTE)


def _signature(path: Path) -> str:
    """Return the content of ``FILE.sig``; empty if there is none."""
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
                f"{path}: not a manifest or registry entry in JSON; to install a program, specify its directory: "
                f"mcpctl install {path.parent} --command PROGRAM --arg {path.name}"
            ) from error
        raise InvalidManifest(f"{path}: not {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidManifest(f"{path}: expected one object, with 'id', 'name' and 'transports'")
    return value


def _manifest(
    name: str, options: ManifestOptions, *, source: dict[str, str], version: str = "", summary: str = ""
) -> Target:
    """Return the target with a manifest for *source*; without a program, mcpd uses that of the package."""
    from mcpd.model import id_from_name  # pydantic, which an id of the catalog does not need

    manifest: dict[str, Any] = {
        "id": options.id or id_from_name(name),
        "name": name,
        "summary": summary,
        "version": version,
        "source": source,
    }
    if options.arguments and not options.program:
        raise InvalidArgument("--arg requires --command")
    if options.program:
        manifest["transports"] = [_stdio(options.program, options.arguments)]
    return Target(manifest=manifest)


def _stdio(program: str, arguments: Sequence[str]) -> dict[str, Any]:
    return {"type": "stdio", "command": program, "args": list(arguments)}
