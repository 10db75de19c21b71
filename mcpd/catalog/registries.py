# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registries: ``sources.list`` and ``sources.list.d/`` of both scopes, and the addresses that entries may use."""

from __future__ import annotations

import ipaddress
import os
import posixpath
import re
import socket
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.errors import InvalidArgument, InvalidManifest, McpdError, NotFound, ReadOnly, from_oserror
from mcpd.files import WriteLock, is_missing, make_directory, read_file, sync_directory, write_atomic
from mcpd.model import SourceType, printable, strip_credentials
from mcpd.model.base import first_fault
from mcpd.paths import Paths, Scope
from mcpd.toml import parse_toml
from mcpd.trust.keys import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.model import Entry

_STOPS: Final = re.compile("[\u3002\uff0e\uff61]")
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\"#%/<>?@\\^`{|}\[\]]")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC: Final = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("::/96"))
"""Networks that are never public: prefixes of local translators (RFC 8215), which also lead to private addresses, and
IPv4 addresses in an old IPv6 notation."""
_NAMES: Final = re.compile(r"(?:.+\.)?localhost|localhost\.localdomain|ip6-(?:localhost|loopback)")


def normal_host(host: str) -> str:
    """Return the *host* of a URL in normal form: letters, digits and dots of other scripts become ASCII.

    Raises ValueError for an invalid host.
    """
    if ":" in host:
        return host  # an IPv6 address, which was in brackets
    found = unicodedata.normalize("NFKC", _STOPS.sub(".", host)).lower().rstrip(".")
    if _FORBIDDEN.search(found):
        raise ValueError("the host contains an invalid character")
    return found


def is_loopback(host: str) -> bool:
    """Return whether requests to the normalized *host* stay on this machine, without a proxy or name server."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def may_be_this_machine(host: str) -> bool:
    """Return whether *host* may lead to this machine."""
    name = _resolver_form(host)
    if _NAMES.fullmatch(name):
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or address.is_unspecified)


def is_link_local_host(host: str) -> bool:
    """Return whether *host* is a link-local address, such as that of a cloud's metadata service."""
    address = _address(_resolver_form(host))
    return address is not None and address.is_link_local


def is_public(address: str) -> bool:
    """Return whether the IP *address* is public: not one of this machine, its networks or a private network."""
    found = _address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.is_site_local or any(found in each for each in _NEVER_PUBLIC):
            return False
        found = (ipaddress.IPv4Address(found.packed[-4:]) if found in _NAT64 else found.sixtofour) or found
    return found is not None and found.is_global and not found.is_multicast


def _resolver_form(host: str) -> str:
    """Return *host* as it is sent to a name server."""
    with suppress(UnicodeError):
        host = host.encode("idna").decode("ascii")
    return host.lower().rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(OSError, UnicodeEncodeError):
        name = socket.inet_ntoa(socket.inet_aton(name))  # 127.1 and 0x7f000001 are addresses, too
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


RegistryType: TypeAlias = Literal["registry", "official", "directory"]
_OFFICIAL: Final = ("/v0.1/servers", "/v0/servers")
"""Final path segments in the URL of an API like the official registry's."""


def check_url(url: str) -> str:
    """Return *url* in the normal form for comparisons: https, file, or http on this machine only.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    shown = printable(url)
    text = url.strip()
    if not text or not text.isprintable() or " " in text:
        raise InvalidArgument(f"{shown!r}: empty, or contains spaces or control characters")
    try:
        parts = urlsplit(text)
        host, port = normal_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise InvalidArgument(f"{shown!r}: {error}") from error
    if parts.scheme == "file":
        return _normal_file(parts, shown)
    if parts.scheme not in ("https", "http") or not host:
        raise InvalidArgument(f"{shown!r}: use an https:// or file:// URL")
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidArgument(f"{shown!r}: plain http can be modified in transit; use https")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(f"{parts.scheme}://…@{host}: lists are public and cannot contain a password")
    default = 443 if parts.scheme == "https" else 80
    where = f"[{host}]" if ":" in host else host
    return urlunsplit(
        (parts.scheme, where if port in (None, default) else f"{where}:{port}", parts.path or "/", parts.query, "")
    )


def key_of(url: str) -> str:
    """Return the normal form of *url* for comparisons; an invalid URL stands for itself."""
    try:
        return check_url(url)
    except InvalidArgument:
        return url.strip()


def type_of(url: str) -> RegistryType:
    """Return the default type of the registry at the checked *url*."""
    parts = urlsplit(url.strip())
    if parts.scheme == "file":
        return "directory" if parts.path.endswith("/") else "registry"
    return "official" if parts.path.rstrip("/").endswith(_OFFICIAL) else "registry"


def as_listed(url: str) -> str:
    """Return the checked *url* in the form for a list: with a final slash if it is an existing directory."""
    parts = urlsplit(url.strip())
    if parts.scheme == "file" and not parts.path.endswith("/") and is_directory(url.strip()):
        return urlunsplit(parts._replace(path=f"{parts.path}/"))
    return url.strip()


def is_directory(url: str) -> bool:
    """Return whether the file URL *url* names an existing directory."""
    return os.path.isdir(file_path(url))  # noqa: PTH112 - Path.is_dir raises if it is not accessible


def signature_url(url: str) -> str:
    """Return the URL of the signature of the file at *url*."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}.sig"))


def file_path(url: str) -> Path:
    """Return the path that the file URL *url* names."""
    return Path(unquote(urlsplit(url).path))


def _normal_file(parts: SplitResult, shown: str) -> str:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"{shown!r}: a file URL needs an absolute path on this machine, file:///…")
    return f"file://{quote(posixpath.normpath(path).replace('//', '/'))}"


_FILE: Final = "file:"


def check_entry_url(url: str, registry: str) -> str:
    """Return *url*, named by an entry of *registry* (empty if user-supplied), in its normal form.

    A registry on the network cannot refer to files or services on this machine, or to link-local addresses. Raises
    :class:`~mcpd.errors.InvalidArgument`.
    """
    checked = check_url(url)
    if not registry or registry.startswith(_FILE):
        return checked
    if checked.startswith(_FILE):
        raise InvalidArgument(f"{printable(url)}: a registry on the network cannot refer to files on this machine")
    host, asking = urlsplit(checked).hostname or "", urlsplit(registry).hostname or ""
    if may_be_this_machine(host) and not may_be_this_machine(asking):
        raise InvalidArgument(f"{printable(url)}: a registry on the network cannot refer to a service on this machine")
    if is_link_local_host(host) and not is_link_local_host(asking):
        raise InvalidArgument(f"{printable(url)}: a registry on the network cannot refer to a link-local address")
    return checked


def address_fault(entry: Entry, registry: str) -> str:
    """Return why *entry* of *registry* cannot be installed from its address; empty if it can.

    *registry* is as in :func:`check_entry_url`. A registry on the network must not cause files on this machine to be
    copied to where a server of its choice can read them.
    """
    is_elsewhere = bool(registry) and not registry.startswith(_FILE)
    source, field, url = entry.source, "source.url", ""
    if entry.is_summary:
        field, url = "manifest", entry.manifest
    elif source is not None and source.type is SourceType.LOCAL and is_elsewhere:
        return "a registry on the network cannot refer to files on this machine as a source"
    elif source is not None and source.is_file:
        url = source.url
    elif source is not None and is_elsewhere:
        url = strip_credentials(source.url)
    try:
        if url:
            check_entry_url(url, registry)
    except InvalidArgument as error:
        return f"{field}: {error.message}"
    return ""


MAX_LIST: Final = 1024 * 1024
"""Maximum size of one list in bytes."""
MAX_DESCRIPTION: Final = 64 * 1024
"""Maximum size in bytes of a file that describes one registry."""
MANAGED_NAME: Final = "50-mcpd.list"
"""The only file in the system's directory of lists that mcpd writes."""

_DESCRIBED: Final = ".toml"

State: TypeAlias = Literal["new", "ready", "offline", "refused", "partly", "failed", "untrusted", "invalid"]
Policy: TypeAlias = Literal["required", "warn", "off"]


@dataclass(frozen=True, slots=True)
class RegistryLine:
    """One registry in a listing."""

    url: str
    """The URL as written; empty if unknown."""
    origin: Path
    """The file that lists the registry."""
    scope: Scope
    read_only: bool
    """True if this instance must not remove the line."""
    state: State = "new"
    """State of the registry and its copy.

    ``new``: not fetched yet; ``ready``: fetched; ``offline``: an earlier copy is used; ``refused``: an earlier copy is
    used, as the current file was changed or is older; ``partly``: an earlier copy is used for some files of a
    directory; ``failed``: there is no copy; ``untrusted``: the copy is not signed as required; ``invalid``: the line
    cannot be used.
    """
    updated: float = 0.0
    """Unix time of the copy in use, 0 if there is none."""
    problem: str = ""
    name: str = ""
    """Name of the file ``NAME.toml`` that describes the registry; empty for a line of a list."""
    type: RegistryType = "registry"
    """``registry``: one file; ``official``: the API of the official registry; ``directory``: a directory of files."""
    signature: Policy = "warn"
    """Policy for copies that no trusted key signed."""
    key: str = ""
    """Name of the only key that may sign the registry; empty for any."""
    entries: int = 0
    """Number of usable entries."""
    faults: tuple[str, ...] = ()
    """The first hundred faults of the registry's entries."""
    signed_by: str = ""
    """Name of the trusted key that signed the copy in use, empty if none did."""


class _Description(BaseModel):
    """Content of ``NAME.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    type: RegistryType | None = None
    signature: Policy = "warn"
    key: Annotated[str, Field(pattern=rf"^{NAME.pattern}$")] = ""


class RegistryLists:
    """The lists of registries that one instance reads, some of which it also writes."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        self._paths = paths
        layout = paths.layout(scope)
        self._scope = scope
        self._scopes = (Scope.USER, Scope.SYSTEM) if scope is Scope.USER else (Scope.SYSTEM,)
        self.writable: Final = layout.sources_list if scope is Scope.USER else layout.sources_dir / MANAGED_NAME
        self._directory = layout.sources_dir
        self._lock = WriteLock(layout.cache / ".sources.lock")

    def lines(self) -> list[RegistryLine]:
        """Return every registry once, the user's before the system's.

        If one is listed twice in a scope, a file that describes it overrides a plain line, and a file that mcpd does
        not own overrides one that it does. A plain line of a user leaves the system's description in force. So adding a
        registry again cannot undo what an administrator requires of it.
        """
        found: dict[str, RegistryLine] = {}
        for scope in self._scopes:
            for key, line in self._of(scope).items():
                first = found.setdefault(key, line)
                if first is not line and line.name and not first.name:
                    found[key] = replace(
                        first, type=line.type, signature=line.signature, key=line.key, state=line.state,
                        problem=line.problem,
                    )  # fmt: skip
        return list(found.values())

    def signature(self) -> list[tuple[str, int, int]]:
        """Return path, size and modification time of every list and description, to detect changes."""
        found: list[tuple[str, int, int]] = []
        for scope in self._scopes:
            layout = self._paths.layout(scope)
            with suppress(OSError):
                for path in (layout.sources_list, *_fragments(layout.sources_dir)):
                    with suppress(OSError):
                        status = path.stat()
                        found.append((str(path), status.st_size, status.st_mtime_ns))
        return found

    def add(self, url: str, *, name: str = "", type: str = "", signature: str = "", key: str = "") -> None:  # noqa: A002 - the key in the file
        """Add *url* to the list that this instance writes, or describe it in ``sources.list.d/NAME.toml``.

        It is described if any option is given; this needs a *name*, unless it is described already. Empty options keep
        their previous values. The values are those of :class:`RegistryLine`. An existing directory is listed as a
        directory.

        Raises :class:`~mcpd.errors.InvalidArgument` for an invalid registry and for a *name* that is taken;
        :class:`~mcpd.errors.ReadOnly` for one that someone else's file lists with other options.
        """
        normal, written = check_url(url), url.strip() if type else as_listed(url)
        fields = {field: value for field, value in (("type", type), ("signature", signature), ("key", key)) if value}
        with self._lock.hold():
            own = [line for line in self._all(self._scope) if key_of(line.url) == normal]
            other = next((line for line in own if line.read_only), None)
            described = next((line for line in own if line.name), None)
            if not (name or fields):
                if any(line.state == "invalid" for line in own):
                    raise InvalidArgument("; ".join(line.problem for line in own if line.problem))
                if not own:
                    text = _read(self.writable)
                    self._write(f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{written}\n")
            elif other is not None:
                raise _not_ours(other)
            elif described is not None and name in ("", described.name):
                self._describe(described.origin, described.url, fields)
            elif described is not None:
                raise InvalidArgument(
                    f"{printable(url)} is described in {described.origin}; use the name {described.name!r}"
                )
            else:
                self._describe(self._new_file(url, name), written, fields)
                self._unlist(normal)

    def remove(self, url: str) -> None:
        """Remove *url* from the files this instance writes; all other lines stay as they are.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.ReadOnly` if only other files list it.
        """
        key = key_of(url)
        with self._lock.hold():
            lines = [line for scope in self._scopes for line in self._all(scope) if key_of(line.url) == key]
            if not key or not lines:
                raise NotFound(f"{printable(url)} is not a listed registry")
            if all(line.read_only for line in lines):
                raise _not_ours(lines[0])
            for line in lines:
                if line.name and not line.read_only:
                    _delete(line.origin)
            self._unlist(key)

    def _new_file(self, url: str, name: str) -> Path:
        """Return the path of the new description of *url*."""
        if not name:
            raise InvalidArgument(
                f"{printable(url)}: type, signature and key are stored in its own file; specify a name"
            )
        if not NAME.fullmatch(name):
            raise InvalidArgument(
                f"{printable(name)!r} is not a valid name: use 1 to 64 characters from A-Z a-z 0-9 . _ -, beginning"
                " with a letter or digit"
            )
        file = self._directory / f"{name}{_DESCRIBED}"
        if os.path.lexists(file):
            raise InvalidArgument(f"{file} describes another registry; choose a name other than {name!r}, or remove it")
        return file

    def _describe(self, file: Path, url: str, fields: dict[str, str]) -> None:
        """Write *fields* of *url* to *file*, keeping its other content."""
        import tomlkit  # needed for changes only

        try:
            kept = _read(file)
            parse_toml(kept)  # it rejects hostile input on which tomlkit would take long
            document = tomlkit.parse(kept)
            document.update({"url": url} | fields)
            data = document.as_string().encode()
            _checked_type(_parse(parse_toml(data)))
        except ValueError as error:
            raise InvalidArgument(f"registry {printable(url)}: {error}") from error
        path = file.resolve()
        make_directory(path.parent)
        write_atomic(path, data)

    def _unlist(self, key: str) -> None:
        """Remove the lines with the registry *key* from the list that this instance writes."""
        text = _read(self.writable)
        kept = "".join(line for line in text.splitlines(keepends=True) if key_of(line.strip()) != key)
        if kept != text:
            self._write(kept)

    def _write(self, text: str) -> None:
        # The list may be a symlink to a file in a repository of dot files.
        path = self.writable.resolve()
        make_directory(path.parent)
        write_atomic(path, text.encode("utf-8", "surrogateescape"))

    def _of(self, scope: Scope) -> dict[str, RegistryLine]:
        """Return the registries of *scope*, each once, by the normal form of their URL."""
        found: dict[str, RegistryLine] = {}
        for line in self._all(scope):
            key = key_of(line.url) or str(line.origin)
            if _weight(line) > _weight(found.setdefault(key, line)):
                found[key] = line
        return found

    def _all(self, scope: Scope) -> Iterator[RegistryLine]:
        layout = self._paths.layout(scope)
        yield from self._listed(layout.sources_list, scope)
        try:
            fragments = _fragments(layout.sources_dir)
        except OSError as error:
            yield _unreadable(layout.sources_dir, scope, f"{layout.sources_dir}: {error.strerror or error}")
            return
        for path in fragments:
            if path.suffix == _DESCRIBED:
                yield _described(path, scope, read_only=scope is not self._scope or not _is_own(path))
            else:
                yield from self._listed(path, scope)

    def _listed(self, path: Path, scope: Scope) -> Iterator[RegistryLine]:
        """Yield the registries in the list *path*."""
        try:
            text = _read(path)
        except McpdError as error:
            yield _unreadable(path, scope, error.message)
            return
        for url in _urls(text):
            yield _line(url, path, scope, read_only=path != self.writable)


def _weight(line: RegistryLine) -> int:
    return 0 if not line.name else 2 if line.read_only else 1


def _not_ours(line: RegistryLine) -> ReadOnly:
    return ReadOnly(f"{printable(line.url)} is listed in {line.origin}, which mcpd does not manage; edit that file")


def _line(url: str, path: Path, scope: Scope, *, read_only: bool) -> RegistryLine:
    try:
        check_url(url)
    except InvalidArgument as error:
        return RegistryLine(printable(url), path, scope, read_only, "invalid", problem=f"{path}: {error.message}")
    return RegistryLine(url, path, scope, read_only, type=type_of(url))


def _unreadable(path: Path, scope: Scope, problem: str) -> RegistryLine:
    """Return a line that stands for an unreadable list or directory."""
    return RegistryLine("", path, scope, read_only=True, state="invalid", problem=printable(problem))


def _described(path: Path, scope: Scope, *, read_only: bool) -> RegistryLine:
    """Return the registry that *path* describes; its state is ``invalid`` if the description is invalid."""
    name, url = printable(path.stem), ""
    try:
        content = parse_toml(read_file(path, MAX_DESCRIPTION))
        url = str(content.get("url", ""))
        description = _parse(content)
        kind = _checked_type(description)
    except (InvalidArgument, InvalidManifest) as error:
        problem = error.message.removeprefix(f"{path}: ")
    except OSError as error:
        problem = error.strerror or str(error)
    except ValueError as error:
        problem = str(error)
    else:
        return RegistryLine(
            description.url, path, scope, read_only,
            name=name, type=kind, signature=description.signature, key=description.key,
        )  # fmt: skip
    problem = f"{path}: {problem}"
    shown = problem if problem.isprintable() else printable(problem)
    return RegistryLine(printable(url), path, scope, read_only, "invalid", problem=shown, name=name)


def _parse(content: dict[str, Any]) -> _Description:
    """Parse the description *content*; raise ValueError naming the key that is wrong."""
    try:
        return _Description.model_validate(content)
    except ValidationError as error:
        raise ValueError(_fault_text(error)) from error


def _fault_text(error: ValidationError) -> str:
    """Return the first fault of a description as a message."""
    fault = error.errors(include_url=False)[0]
    key, given = str(fault["loc"][0]), printable(str(fault["input"]))[:40]
    match fault["type"]:
        case "extra_forbidden":
            return f"there is no key {printable(key)!r}; known keys: {', '.join(_Description.model_fields)}"
        case "missing":
            return f"{key!r} is missing"
        case "literal_error":
            return f"{key}: use {fault['ctx']['expected']}, not {given!r}"
        case "string_type":
            return f"{key}: not a string"
        case "string_pattern_mismatch":
            return (
                f"{key}: {given!r} is not a key name: use 1 to 64 characters from A-Z a-z 0-9 . _ -, beginning with a"
                " letter or digit"
            )
    return first_fault(error)


def _checked_type(description: _Description) -> RegistryType:
    """Return the type of the registry. Raises ValueError that names a contradictory key."""
    try:
        normal = check_url(description.url)
    except InvalidArgument as error:
        raise ValueError(f"url: {error.message}") from error
    kind = description.type or type_of(description.url)
    is_file = normal.startswith("file:")
    if kind == "official" and is_file:
        raise ValueError("type: an official API requires https")
    if kind == "official" and description.signature == "required":
        raise ValueError("signature: the responses of an official API are not signed; use warn or off")
    if kind == "official" and description.key:
        raise ValueError("key: the responses of an official API are not signed; omit it")
    if kind == "directory" and not is_file:
        raise ValueError("type: a directory must be on this machine; use a file:/// URL")
    return kind


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise from_oserror(error, f"removing {path}") from error


def _urls(text: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield stripped


def _fragments(directory: Path) -> list[Path]:
    try:
        found = (path for path in directory.iterdir() if path.suffix in (".list", _DESCRIBED))
        return sorted(path for path in found if not path.name.startswith("."))
    except OSError as error:
        if not is_missing(error):
            raise
        return []


def _read(path: Path) -> str:
    """Return the text of *path*, empty if it is missing; bytes that are not UTF-8 survive a round trip."""
    try:
        return read_file(path, MAX_LIST).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except OSError as error:
        if is_missing(error):
            return ""
        raise from_oserror(error, f"reading {path}") from error
