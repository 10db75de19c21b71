# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registries: ``sources.list`` and ``sources.list.d/`` of both scopes, and the addresses that may be used."""

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
from mcpd.model import SourceType, printable, strip_credentials
from mcpd.model.base import first_fault
from mcpd.paths import Paths, Scope
from mcpd.store.files import is_missing, make_directory, read_file, sync_directory, write_atomic
from mcpd.store.lock import WriteLock
from mcpd.toml import parse_toml
from mcpd.trust.keys import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.model import Entry

_STOPS: Final = re.compile("[\u3002\uff0e\uff61]")
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\"#%/<>?@\\^`{|}\[\]]")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC: Final = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("::/96"))
"""Addresses of a network's own translators (RFC 8215), which lead to private ones as well; an old way to write IPv4."""
_NAMES: Final = re.compile(r"(?:.+\.)?localhost|localhost\.localdomain|ip6-(?:localhost|loopback)")


def normal_host(host: str) -> str:
    """*host*, of a URL, in one spelling: letters, digits and full stops of other scripts count as those of ASCII.

    Raises ValueError for what no host can be called.
    """
    if ":" in host:
        return host  # an IPv6 address, which was in brackets
    found = unicodedata.normalize("NFKC", _STOPS.sub(".", host)).lower().rstrip(".")
    if _FORBIDDEN.search(found):
        raise ValueError("the host holds a character that none can have")
    return found


def is_loopback(host: str) -> bool:
    """Whether whoever is told the normal *host* stays on this machine, and needs no proxy or name server for that."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def is_here(host: str) -> bool:
    """Whether *host* may lead to this machine."""
    name = _asked(host)
    if _NAMES.fullmatch(name):
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or address.is_unspecified)


def is_beside(host: str) -> bool:
    """Whether *host* is a link-local address: of machines beside this one, and of what a cloud tells it alone."""
    address = _address(_asked(host))
    return address is not None and address.is_link_local


def is_public(address: str) -> bool:
    """Return whether the IP *address* is public: not one of this machine, its networks or a private network."""
    found = _address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.is_site_local or any(found in each for each in _NEVER_PUBLIC):
            return False
        found = (ipaddress.IPv4Address(found.packed[-4:]) if found in _NAT64 else found.sixtofour) or found
    return found is not None and found.is_global and not found.is_multicast


def _asked(host: str) -> str:
    """*host* as a name server would be asked for it, without what that leaves out."""
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
"""Ends of the path of an API like the official one."""


def check_source_url(url: str) -> str:
    """*url* in the form by which sources are compared: https, file, or http on this machine only.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    shown = printable(url)
    text = url.strip()
    if not text or not text.isprintable() or " " in text:
        raise InvalidArgument(f"source {shown!r}: empty, or holds spaces or control characters")
    try:
        parts = urlsplit(text)
        host, port = normal_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise InvalidArgument(f"source {shown!r}: {error}") from error
    if parts.scheme == "file":
        return _normal_file(parts, shown)
    if parts.scheme not in ("https", "http") or not host:
        raise InvalidArgument(f"source {shown!r}: use an https:// or file:// URL")
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidArgument(f"source {shown!r}: plain http can be changed on the way; use https")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(f"source {parts.scheme}://…@{host}: lists are public and cannot hold a password")
    default = 443 if parts.scheme == "https" else 80
    where = f"[{host}]" if ":" in host else host
    return urlunsplit(
        (parts.scheme, where if port in (None, default) else f"{where}:{port}", parts.path or "/", parts.query, "")
    )


def key_of(url: str) -> str:
    """What *url* is compared by: its normal form, or for one that cannot be a source itself."""
    try:
        return check_source_url(url)
    except InvalidArgument:
        return url.strip()


def type_of(url: str) -> RegistryType:
    """What is at *url*, a checked one as it is written, unless something else is said."""
    parts = urlsplit(url.strip())
    if parts.scheme == "file":
        return "directory" if parts.path.endswith("/") else "registry"
    return "official" if parts.path.rstrip("/").endswith(_OFFICIAL) else "registry"


def as_listed(url: str) -> str:
    """*url*, a checked one, as a list is to have it: that of a directory which is there ends with a slash."""
    parts = urlsplit(url.strip())
    if parts.scheme == "file" and not parts.path.endswith("/") and is_directory(url.strip()):
        return urlunsplit(parts._replace(path=f"{parts.path}/"))
    return url.strip()


def is_directory(url: str) -> bool:
    """Whether the file URL *url* names a directory that is there."""
    return os.path.isdir(file_path(url))  # noqa: PTH112 - of what cannot be looked at, Path's raises


def signature_url(url: str) -> str:
    """Where the signature of the file at *url* is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}.sig"))


def file_path(url: str) -> Path:
    """What the file URL *url* names on this machine."""
    return Path(unquote(urlsplit(url).path))


def _normal_file(parts: SplitResult, shown: str) -> str:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"source {shown!r}: a file URL needs an absolute path on this machine, file:///…")
    return f"file://{quote(posixpath.normpath(path).replace('//', '/'))}"


_FILE: Final = "file:"


def check_entry_url(url: str, registry: str) -> str:
    """*url*, which an entry of *registry* names, in its normal form; *registry* is empty for what a caller brought.

    A registry elsewhere can neither have files of this machine read nor the services of this machine, or of those
    beside it, asked. Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    checked = check_source_url(url)
    if not registry or registry.startswith(_FILE):
        return checked
    if checked.startswith(_FILE):
        raise InvalidArgument(f"{printable(url)}: a registry on the network cannot name files of this machine")
    host, asking = urlsplit(checked).hostname or "", urlsplit(registry).hostname or ""
    if is_here(host) and not is_here(asking):
        raise InvalidArgument(f"{printable(url)}: a registry on the network cannot name a service of this machine")
    if is_beside(host) and not is_beside(asking):
        raise InvalidArgument(f"{printable(url)}: a registry elsewhere cannot name a link-local address")
    return checked


def out_of_reach(entry: Entry, registry: str) -> str:
    """Why *entry* of *registry* cannot be installed from where it says, for people; empty if it may be.

    *registry* is as of :func:`check_entry_url`. One elsewhere would have files of this machine copied into its server's
    sight.
    """
    is_elsewhere = bool(registry) and not registry.startswith(_FILE)
    source, field, url = entry.source, "source.url", ""
    if entry.is_summary:
        field, url = "manifest", entry.manifest
    elif source is not None and source.type is SourceType.LOCAL and is_elsewhere:
        return "a registry on the network cannot name files of this machine as a source"
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
"""Bytes of one list."""
MAX_DESCRIPTION: Final = 64 * 1024
"""Bytes of a file that describes one."""
MANAGED_NAME: Final = "50-mcpd.list"
"""The one file of the system's lists that mcpd writes."""

_DESCRIBED: Final = ".toml"

State: TypeAlias = Literal["new", "ready", "offline", "refused", "partly", "failed", "untrusted", "invalid"]
Policy: TypeAlias = Literal["required", "warn", "off"]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of one list."""

    url: str
    """As it is written; empty where that cannot be told."""
    origin: Path
    """The file it is in."""
    scope: Scope
    read_only: bool
    """Whether the line is somebody else's to remove."""
    state: State = "new"
    """``ready``: fetched; ``offline``: an earlier copy is used; ``refused``: so it is, if there is one, as what is
    there now was changed or is older; ``partly``: so it is of some files of a directory; ``failed``: there is no copy;
    ``untrusted``: there is one, but not signed as it has to be; ``invalid``: refused."""
    updated: float = 0.0
    """Unix time of the copy in use, 0 if there is none."""
    problem: str = ""
    name: str = ""
    """Of the file ``NAME.toml`` that describes it, empty for a line of a list."""
    type: RegistryType = "registry"
    """``registry``: one file; ``official``: the API of the official registry; ``directory``: a directory of files."""
    signature: Policy = "warn"
    """What is to become of it if it is not signed by a trusted key."""
    key: str = ""
    """Name of the only key that may sign it, empty for any."""
    entries: int = 0
    """How many entries of it can be used."""
    faults: tuple[str, ...] = ()
    """What is wrong with its entries, the first hundred."""
    signed_by: str = ""
    """Name of the trusted key that signed the copy in use, empty if none did."""


class _Description(BaseModel):
    """What ``NAME.toml`` holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    type: RegistryType | None = None
    signature: Policy = "warn"
    key: Annotated[str, Field(pattern=rf"^{NAME.pattern}$")] = ""


class Sources:
    """The lists one instance reads, and what of them it writes."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        self._paths = paths
        layout = paths.layout(scope)
        self._scope = scope
        self._scopes = (Scope.USER, Scope.SYSTEM) if scope is Scope.USER else (Scope.SYSTEM,)
        self.writable: Final = layout.sources_list if scope is Scope.USER else layout.sources_dir / MANAGED_NAME
        self._directory = layout.sources_dir
        self._lock = WriteLock(layout.cache / ".sources.lock")

    def lines(self) -> list[SourceLine]:
        """Every source once, the user's before the system's.

        Of one that is listed twice in a scope, a file that describes it counts more than a line that only names it, and
        most if it is not mcpd's. A user's line that only names it leaves what the system asks of it in force. So what
        an administrator asks of a source is not undone by adding it.
        """
        found: dict[str, SourceLine] = {}
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
        """Path, size and time of change of every list and description: a change of it tells that one was edited."""
        found: list[tuple[str, int, int]] = []
        for scope in self._scopes:
            layout = self._paths.layout(scope)
            with suppress(OSError):
                for path in (layout.sources_list, *_fragments(layout.sources_dir)):
                    with suppress(OSError):
                        status = path.stat()
                        found.append((str(path), status.st_size, status.st_mtime_ns))
        return found

    def add(self, url: str, *, name: str = "", type: str = "", signature: str = "", key: str = "") -> None:  # noqa: A002 - what the file calls it
        """List *url*: in the list that this instance writes, or described in ``sources.list.d/NAME.toml``.

        It is described if anything is said of it; *name* is needed then, unless it is described already. What is empty
        stays as it was. The values are those of :class:`SourceLine`. A directory that is there is listed as one.

        Raises :class:`~mcpd.errors.InvalidArgument` for what cannot be a source, and for a *name* that is taken;
        :class:`~mcpd.errors.ReadOnly` for one that somebody else listed otherwise.
        """
        normal, written = check_source_url(url), url.strip() if type else as_listed(url)
        said = {field: value for field, value in (("type", type), ("signature", signature), ("key", key)) if value}
        with self._lock.hold():
            own = [line for line in self._all(self._scope) if key_of(line.url) == normal]
            foreign = next((line for line in own if line.read_only), None)
            described = next((line for line in own if line.name), None)
            if not (name or said):
                if any(line.state == "invalid" for line in own):
                    raise InvalidArgument("; ".join(line.problem for line in own if line.problem))
                if not own:
                    text = _read(self.writable)
                    self._write(f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{written}\n")
            elif foreign is not None:
                raise _foreign(foreign)
            elif described is not None and name in ("", described.name):
                self._describe(described.origin, described.url, said)
            elif described is not None:
                raise InvalidArgument(
                    f"{printable(url)} is described in {described.origin}: call it {described.name!r}, or remove that"
                )
            else:
                self._describe(self._new_file(url, name), written, said)
                self._unlist(normal)

    def remove(self, url: str) -> None:
        """Remove *url* from the files this instance writes; every other line stays as it is.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.ReadOnly` if only other files list it.
        """
        key = key_of(url)
        with self._lock.hold():
            lines = [line for scope in self._scopes for line in self._all(scope) if key_of(line.url) == key]
            if not key or not lines:
                raise NotFound(f"{printable(url)} is not among the sources")
            if all(line.read_only for line in lines):
                raise _foreign(lines[0])
            for line in lines:
                if line.name and not line.read_only:
                    _delete(line.origin)
            self._unlist(key)

    def _new_file(self, url: str, name: str) -> Path:
        """The file for the description of *url*, not there yet."""
        if not name:
            raise InvalidArgument(
                f"{printable(url)}: a type, a signature or a key are kept in a file of its own; give it a name"
            )
        if not NAME.fullmatch(name):
            raise InvalidArgument(
                f"{printable(name)!r} is no name for a source: use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a "
                "letter or digit"
            )
        file = self._directory / f"{name}{_DESCRIBED}"
        if os.path.lexists(file):
            raise InvalidArgument(f"{file} describes another source; choose another name than {name!r}, or remove it")
        return file

    def _describe(self, file: Path, url: str, said: dict[str, str]) -> None:
        """Write to *file* what is *said* of *url*, beside what it says already."""
        import tomlkit  # noqa: PLC0415 - needed for changes only

        try:
            kept = _read(file)
            parse_toml(kept)  # which fails where the other takes its time
            document = tomlkit.parse(kept)
            document.update({"url": url} | said)
            data = document.as_string().encode()
            _settled(_parse(parse_toml(data)))
        except ValueError as error:
            raise InvalidArgument(f"source {printable(url)}: {error}") from error
        path = file.resolve()
        make_directory(path.parent)
        write_atomic(path, data)

    def _unlist(self, key: str) -> None:
        """Remove the lines with the source *key* from the list that this instance writes."""
        text = _read(self.writable)
        kept = "".join(line for line in text.splitlines(keepends=True) if key_of(line.strip()) != key)
        if kept != text:
            self._write(kept)

    def _write(self, text: str) -> None:
        # Many people keep their dot files elsewhere and link to them.
        path = self.writable.resolve()
        make_directory(path.parent)
        write_atomic(path, text.encode("utf-8", "surrogateescape"))

    def _of(self, scope: Scope) -> dict[str, SourceLine]:
        """The sources of *scope*, each once, by what they are compared by."""
        found: dict[str, SourceLine] = {}
        for line in self._all(scope):
            key = key_of(line.url) or str(line.origin)
            if _weight(line) > _weight(found.setdefault(key, line)):
                found[key] = line
        return found

    def _all(self, scope: Scope) -> Iterator[SourceLine]:
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

    def _listed(self, path: Path, scope: Scope) -> Iterator[SourceLine]:
        """The sources in the list *path*."""
        try:
            text = _read(path)
        except McpdError as error:
            yield _unreadable(path, scope, error.message)
            return
        for url in _urls(text):
            yield _line(url, path, scope, read_only=path != self.writable)


def _weight(line: SourceLine) -> int:
    return 0 if not line.name else 2 if line.read_only else 1


def _foreign(line: SourceLine) -> ReadOnly:
    return ReadOnly(f"{printable(line.url)} is listed in {line.origin}, which is not mcpd's to change; edit that file")


def _line(url: str, path: Path, scope: Scope, *, read_only: bool) -> SourceLine:
    try:
        check_source_url(url)
    except InvalidArgument as error:
        return SourceLine(printable(url), path, scope, read_only, "invalid", problem=f"{path}: {error.message}")
    return SourceLine(url, path, scope, read_only, type=type_of(url))


def _unreadable(path: Path, scope: Scope, problem: str) -> SourceLine:
    """What stands for the sources of a list or directory that nobody can tell."""
    return SourceLine("", path, scope, read_only=True, state="invalid", problem=printable(problem))


def _described(path: Path, scope: Scope, *, read_only: bool) -> SourceLine:
    """The source that *path* describes; ``invalid`` if it does not do so rightly."""
    name, url = printable(path.stem), ""
    try:
        content = parse_toml(read_file(path, MAX_DESCRIPTION))
        url = str(content.get("url", ""))
        description = _parse(content)
        kind = _settled(description)
    except (InvalidArgument, InvalidManifest) as error:
        problem = error.message.removeprefix(f"{path}: ")
    except OSError as error:
        problem = error.strerror or str(error)
    except ValueError as error:
        problem = str(error)
    else:
        return SourceLine(
            description.url, path, scope, read_only,
            name=name, type=kind, signature=description.signature, key=description.key,
        )  # fmt: skip
    problem = f"{path}: {problem}"
    shown = problem if problem.isprintable() else printable(problem)
    return SourceLine(printable(url), path, scope, read_only, "invalid", problem=shown, name=name)


def _parse(content: dict[str, Any]) -> _Description:
    """Raises ValueError, whose text names the key."""
    try:
        return _Description.model_validate(content)
    except ValidationError as error:
        raise ValueError(_plain(error)) from error


def _plain(error: ValidationError) -> str:
    """The first fault of a description, in words for whoever wrote it."""
    fault = error.errors(include_url=False)[0]
    key, given = str(fault["loc"][0]), printable(str(fault["input"]))[:40]
    match fault["type"]:
        case "extra_forbidden":
            return f"there is no key {printable(key)!r}; there are {', '.join(_Description.model_fields)}"
        case "missing":
            return f"{key!r} is missing"
        case "literal_error":
            return f"{key}: use {fault['ctx']['expected']}, not {given!r}"
        case "string_type":
            return f"{key}: not a text"
        case "string_pattern_mismatch":
            return f"{key}: {given!r} is no name of a key: 1 to 64 of A-Z a-z 0-9 . _ -, first a letter or digit"
    return first_fault(error)


def _settled(description: _Description) -> RegistryType:
    """The type of the source. Raises ValueError, whose text names the key, for what does not go together."""
    try:
        normal = check_source_url(description.url)
    except InvalidArgument as error:
        raise ValueError(f"url: {error.message}") from error
    kind = description.type or type_of(description.url)
    is_file = normal.startswith("file:")
    if kind == "official" and is_file:
        raise ValueError("type: an official API is reached over https")
    if kind == "official" and description.signature == "required":
        raise ValueError("signature: the answers of an official API are not signed; use warn or off")
    if kind == "official" and description.key:
        raise ValueError("key: the answers of an official API are not signed; leave it out")
    if kind == "directory" and not is_file:
        raise ValueError("type: a directory is one of this machine; use a file:/// URL")
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
    """The text of *path*, empty if there is none; whatever is not UTF-8 comes back as it was when written."""
    try:
        return read_file(path, MAX_LIST).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except OSError as error:
        if is_missing(error):
            return ""
        raise from_oserror(error, f"reading {path}") from error
