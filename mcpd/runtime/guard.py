# SPDX-License-Identifier: LGPL-2.1-or-later
"""Protection against permissions that would expose mcpd's own files, or sockets that lead out of the sandbox."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from mcpd.errors import InvalidManifest, SpawnFailed, from_oserror
from mcpd.paths import Scope, make_private
from mcpd.runtime.launch import Mount, MountKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mcpd.paths import Layout, Paths
    from mcpd.runtime.permissions import PathGrant

MAX_SYMLINKS: Final = 40
"""Maximum number of symlinks in one path, as in the kernel."""
MOUNT_INFO: Final = Path("/proc/self/mountinfo")
KERNEL: Final = (Path("/proc"), Path("/sys"), Path("/dev"))
BINDS: Final = frozenset({MountKind.RO_BIND, MountKind.BIND, MountKind.DEV_BIND})
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
DISPLAYS: Final = (Path("/tmp/.X11-unix"), Path("/tmp/.ICE-unix"))  # noqa: S108 - the paths that the protocols define
"""Sockets of X servers and session managers. Their clients can type and start programs as the user."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The paths that grants are checked against: with symlinks resolved, and wherever bind mounts show them."""

    hidden: tuple[Path, ...]
    """Paths that are covered with an empty directory or ``/dev/null`` where a grant would expose them."""
    protected: tuple[Path, ...]
    """Paths that are mounted read-only where a grant would make them writable."""
    named: tuple[Path, ...]
    """All hidden, protected and optional paths, before symlinks are resolved."""
    home: Path
    scope: Scope
    optional: tuple[Path, ...] = ()
    """Paths that are protected if they exist; a package or an administrator creates them, not mcpd."""

    @classmethod
    def of(cls, paths: Paths, scope: Scope, *, signs: bool = False) -> Guard:
        """Return the guard of the instance of *scope*; *signs* is true for the server that signs client configurations.

        A server that can read the user's signing key, or write to its directory, can deploy anything in the user's
        name.
        """
        user, system = paths.user, paths.system
        hidden = [
            *_secret(system),
            system.secrets.parent / "tokens",
            Path("/run/dbus"),
            Path("/run/systemd"),
            *((*_secret(user), user.deployments) if scope is Scope.USER else ()),
            *((user.signing_keys,) if scope is Scope.USER and not signs else ()),
        ]
        protected = [system.settings.parent, system.installed, system.generations, system.cache, paths.vendor]
        if scope is Scope.USER:
            hidden.append(Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"))
            # systemd creates these directories at boot; one created by a user would block a display.
            hidden += [*_bus_sockets(), *(path for path in DISPLAYS if path.exists())]
            protected += [user.settings.parent, user.secrets.parent, user.installed, user.generations, user.cache]
            protected += [] if signs else [user.orchestration]
        optional = [paths.vendor_mcps, paths.vendor_scripts, paths.vendor_contents, system.contents]
        named = (*hidden, *protected, *optional)
        mounts = _mount_points()
        return cls(
            _everywhere(hidden, mounts),
            _everywhere(protected, mounts),
            named,
            paths.home,
            scope,
            _everywhere(optional, mounts),
        )

    def grants(self, server_id: str, wanted: Iterable[PathGrant], files: Sequence[Path] = ()) -> list[Mount]:
        """Return the mounts for *wanted*; a missing path is skipped if it is read-only or from a list.

        *files* are the server's own directories and its manifest. The server cannot replace them, nor write to the
        manifest, which contains its permissions.

        Raises :class:`~mcpd.errors.InvalidManifest` for a path that cannot be granted, and
        :class:`~mcpd.errors.SpawnFailed` if a writable path, or a directory of mcpd in it, is missing and cannot be
        created.
        """
        binds: dict[Path, Mount] = {}
        links: dict[Path, Mount] = {}
        for grant, real in self._reals(server_id, wanted):
            if grant.writable or real not in binds:
                kind = MountKind.BIND if grant.writable else MountKind.RO_BIND
                binds[real] = Mount(kind, str(real), str(real))
            named = self._named(grant.path)
            if named != real:
                links[named] = Mount(MountKind.SYMLINK, str(named), str(real))
        for pivot in self._pivots(server_id, binds, files):
            binds[pivot] = Mount(MountKind.BIND, str(pivot), str(pivot))
        for own in _resolved(files):
            if own.is_file() and self._open(own, binds):
                binds[own] = Mount(MountKind.RO_BIND, str(own), str(own))
        # Inside a mounted directory the symlink exists already.
        shown = [Path("/usr"), *binds]
        for named in sorted(links):
            if any(named.is_relative_to(path) for path in shown):
                del links[named]
            else:
                shown.append(named)
        return [binds[real] for real in sorted(binds)] + [links[named] for named in sorted(links)]

    def _pivots(self, server_id: str, binds: Mapping[Path, Mount], files: Sequence[Path]) -> set[Path]:
        """Return the directories between the writable *binds* and *files*, hidden or protected paths below them.

        As mount points they cannot be renamed or removed; otherwise the server could move such a directory away,
        together with the covers below it, and put another one in its place for the next start.
        """
        if not any(mount.kind is MountKind.BIND for mount in binds.values()):
            return set()
        for link in symlinks((*self.named, *files)):
            if self._open(link, binds):
                raise InvalidManifest(
                    f"{server_id}: {link} is a symlink in the path of files of mcpd or the server, and a permission"
                    " filesystem:rw: for a parent directory would allow the server to replace it; specify only the"
                    " directories that are needed"
                )
        found: set[Path] = set()
        for own in (*self.hidden, *self.protected):
            if self._open(own, binds):
                _require(server_id, own)
        for own in (*self.hidden, *self.protected, *self._existing(), *_resolved(files)):
            found |= {path for path in own.parents if self._open(path, binds) and os.access(path, os.F_OK)}
        return found - binds.keys()

    def _open(self, path: Path, binds: Mapping[Path, Mount]) -> bool:
        """Return whether *binds* let a server rename *path*, even though hidden and protected paths are covered."""
        mount = next((binds[place] for place in path.parents if place in binds), None)
        covered = any(own in path.parents for own in (*self.hidden, *self.protected, *self.optional))
        return mount is not None and mount.kind is MountKind.BIND and not covered

    def _existing(self) -> list[Path]:
        """Return the paths of :attr:`optional` that exist."""
        return [own for own in self.optional if os.access(own, os.F_OK)]

    def check(self, server_id: str, mounts: Iterable[Mount]) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` if one of *mounts* is in a hidden path.

        Hidden paths inside a mount are covered by :meth:`covers`.
        """
        for mount in mounts:
            if mount.kind in BINDS and any(_lies_in(mount.source, str(barred)) for barred in self.hidden):
                raise InvalidManifest(
                    f"{server_id}: {mount.target} belongs to mcpd, another server or the session, and is never shown to"
                    " a server; keep its program and its files elsewhere"
                )

    def check_grants(self, server_id: str, wanted: Iterable[PathGrant]) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` unless all of *wanted* can be granted, missing paths included.

        Raises :class:`~mcpd.errors.SpawnFailed` for a path that cannot be resolved.
        """
        for grant in wanted:
            where, path = self._wanted(server_id, grant)
            self._check(where, grant, *_resolve_leniently(where, grant, path))

    def _named(self, path: str) -> Path:
        return self.home / path[2:] if path == "~" or path.startswith("~/") else Path(path)

    def _wanted(self, server_id: str, grant: PathGrant) -> tuple[str, Path]:
        """Return a description of *grant* for messages, and its path."""
        where = f"{server_id}: permission {grant.permission!r}"
        if grant.path.startswith("~") and self.scope is Scope.SYSTEM:
            raise InvalidManifest(f"{where}: a system server has no home directory; specify a path outside /home")
        path = self._named(grant.path)
        if not path.is_absolute() or ".." in path.parts or "\0" in grant.path:
            raise InvalidManifest(f"{where}: {grant.shown} must be absolute or begin with ~/, and cannot contain '..'")
        return where, path

    def _reals(self, server_id: str, wanted: Iterable[PathGrant]) -> list[tuple[PathGrant, Path]]:
        """Return the grants of *wanted* that can be mounted, with their resolved paths.

        The server itself may have created symlinks in a directory that is granted for writing. Such symlinks may lead
        only to paths that it can write to anyway; otherwise a server could choose its grants for the next start.
        """
        found = [(grant, way) for grant in wanted if (way := self._real(server_id, grant)) is not None]
        open_to_it = {real for grant, (real, _) in found if grant.writable}

        def is_fixed(links: Sequence[Path]) -> bool:
            return open_to_it.isdisjoint(parent for link in links for parent in link.parents)

        fixed = {real for grant, (real, links) in found if grant.writable and is_fixed(links)}
        reals: list[tuple[PathGrant, Path]] = []
        for grant, (real, links) in found:
            if is_fixed(links) or not fixed.isdisjoint((real, *real.parents)):
                reals.append((grant, real))
            elif grant.writable and not grant.listed:
                raise SpawnFailed(
                    f"{server_id}: permission {grant.permission!r}: {grant.shown} leads elsewhere through a symlink in"
                    " a directory that the server may write to; grant the target of the symlink"
                )
        return reals

    def _real(self, server_id: str, grant: PathGrant) -> tuple[Path, list[Path]] | None:
        """Return the resolved path of *grant* and the symlinks in it; None if it is missing and may be skipped."""
        where, path = self._wanted(server_id, grant)
        if grant.create and not os.path.lexists(path):
            self._check(where, grant, *_resolve_leniently(where, grant, path))
            _create(where, grant, path)
        try:
            with _explained(where, grant):
                real, links = _resolve(path)
        except FileNotFoundError:
            if grant.writable and not grant.listed:
                raise SpawnFailed(
                    f"{where}: {grant.shown} does not exist; create it or change the configuration"
                ) from None
            return None
        except SpawnFailed:
            if not grant.listed:
                raise
            return None
        self._check(where, grant, real, links)
        return real, links

    def _check(self, where: str, grant: PathGrant, real: Path, links: Iterable[Path]) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` unless *grant* may give access to *real*, reached by *links*.

        A symlink in a hidden path is refused as well: the server may have created it in its state directory.
        """
        for barred in self.hidden:
            if any(place.is_relative_to(barred) for place in (real, *links)):
                raise InvalidManifest(
                    f"{where}: {grant.shown} belongs to mcpd, another server or the session, and is never shown to a"
                    " server"
                )
        if real == Path("/") or any(real.is_relative_to(kernel) for kernel in KERNEL):
            raise InvalidManifest(
                f"{where}: {grant.shown} cannot be granted; specify only the directories that are needed"
            )
        if grant.writable and any(real.is_relative_to(own) for own in (*self.protected, *self.optional)):
            raise InvalidManifest(f"{where}: {grant.shown} is mcpd's own and can only be granted with filesystem:ro")

    def covers(self, mounts: Sequence[Mount]) -> list[Mount]:
        """Return mounts that cover the hidden paths inside *mounts*, and make the protected ones read-only.

        Missing directories of mcpd are created first, so that they are covered, too.
        """
        found: dict[str, Mount] = {}
        for mount in mounts:
            if mount.kind not in BINDS:
                continue
            source = Path(mount.source)
            if mount.kind is not MountKind.RO_BIND:
                for own in (*self.protected, *self._existing()):
                    if _lies_in(str(own), mount.source) and _ensure(own):
                        target = str(Path(mount.target) / own.relative_to(source))
                        found[target] = Mount(MountKind.RO_BIND, target, str(own))
            for secret in self.hidden:
                if _lies_in(str(secret), mount.source) and _ensure(secret):
                    target = str(Path(mount.target) / secret.relative_to(source))
                    found[target] = (
                        Mount(MountKind.TMPFS, target)
                        if secret.is_dir()
                        else Mount(MountKind.DEV_BIND, target, os.devnull)
                    )
        return sorted(found.values(), key=lambda mount: mount.target.count("/"))


@contextmanager
def _explained(where: str, grant: PathGrant) -> Iterator[None]:
    """Convert errors in resolving the path of *grant* to SpawnFailed, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError) as error:
        reason = "it leads through too many symlinks"
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            reason = error.strerror or str(error)
        raise SpawnFailed(f"{where}: {grant.shown} cannot be resolved: {reason}") from error


def _resolve_leniently(where: str, grant: PathGrant, path: Path) -> tuple[Path, set[Path]]:
    """Resolve *path*, which may be missing; return its target and the symlinks in it, each by its real path."""
    with _explained(where, grant):
        return path.resolve(), symlinks([path])


def _resolve(path: Path) -> tuple[Path, list[Path]]:
    """Resolve *path*; return its target and the symlinks in it, each by its real path. Raises OSError."""
    here, links = Path("/"), []
    ahead = list(reversed(path.parts[1:]))
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = here.parent
            continue
        place = here / name
        try:
            target = place.readlink()
        except OSError as error:
            if error.errno != errno.EINVAL:  # not a symlink
                raise
            here = place
            continue
        links.append(place)
        if len(links) > MAX_SYMLINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        here = Path("/") if target.is_absolute() else here
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return here, links


def _create(where: str, grant: PathGrant, path: Path) -> None:
    try:
        make_private(path)
    except OSError as error:
        raise SpawnFailed(f"{where}: {grant.shown} cannot be created: {error.strerror}") from error


def _lies_in(path: str, directory: str) -> bool:
    """Return whether *path* is *directory* or below it; much faster than pathlib."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _secret(layout: Layout) -> tuple[Path, ...]:
    return layout.secrets, layout.overlay, layout.state, layout.runtime


def _bus_sockets() -> list[Path]:
    """Return the sockets in the address of the session bus, which is a list with escaped values."""
    found: list[Path] = []
    for place in os.environ.get("DBUS_SESSION_BUS_ADDRESS", "").split(";"):
        transport, _, fields = place.strip().partition(":")
        values = dict(field.partition("=")[::2] for field in fields.split(","))
        path = unquote_to_bytes(os.fsencode(values.get("path", ""))).partition(b"\0")[0]
        if transport == "unix" and path.startswith(b"/"):
            found.append(Path(os.fsdecode(path)))
    return found


def _resolved(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(Path(real) for real in dict.fromkeys(map(os.path.realpath, paths)))


class _MountPoint(NamedTuple):
    device: str
    """Major and minor number of the file system."""
    root: str
    """The directory of the file system that is mounted."""
    path: str


def _mount_points() -> list[_MountPoint]:
    """Return the mount points (proc_pid_mountinfo(5)), topmost first.

    Raises :class:`~mcpd.errors.McpdError` if they cannot be read: without them, paths behind bind mounts could not be
    hidden.
    """
    try:
        lines = MOUNT_INFO.read_bytes().splitlines()
    except OSError as error:
        raise from_oserror(error, f"reading {MOUNT_INFO}") from error
    rows = ([os.fsdecode(_unescaped(field)) for field in line.split(b" ", 5)[2:5]] for line in reversed(lines))
    return [_MountPoint(*row) for row in rows]


def _unescaped(field: bytes) -> bytes:
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), field) if b"\\" in field else field


def _everywhere(paths: Iterable[Path], mounts: Sequence[_MountPoint]) -> tuple[Path, ...]:
    """Return *paths* with symlinks resolved, and all other paths at which bind mounts show them."""
    found: dict[Path, None] = {}
    for path in _resolved(paths):
        found[path] = None
        around = [mount for mount in mounts if _lies_in(str(path), mount.path)]
        if not around:
            continue
        own = max(around, key=lambda mount: len(mount.path))
        place = _moved(str(path), own.path, own.root)
        for mount in mounts:
            if mount is not own and mount.device == own.device and _lies_in(place, mount.root):
                other = Path(_moved(place, mount.root, mount.path))
                if other not in found and _is_same(path, other):
                    found[other] = None
    return tuple(found)


def _moved(path: str, old: str, new: str) -> str:
    """Return *path* with its leading directory *old* replaced with *new*."""
    rest = path[len(old) :].strip("/")
    return f"{new.rstrip('/')}/{rest}" if rest else new


def _is_same(path: Path, other: Path) -> bool:
    """Return whether *other* is the same file as *path*, which may be missing; a mount on top of it may hide it."""
    for one, two in zip((path, *path.parents), (other, *other.parents), strict=False):
        if os.path.lexists(one):
            try:
                return os.path.samestat(one.lstat(), two.lstat())
            except OSError:
                return False
    return False


def symlinks(paths: Iterable[Path]) -> set[Path]:
    """Return the symlinks in *paths*, each by its real path."""
    found: set[Path] = set()
    pending = list(paths)
    for path in pending:
        for place in (path, *path.parents):
            here = place.parent.resolve() / place.name
            if here not in found and os.path.islink(here):  # noqa: PTH114 - no error for inaccessible paths
                found.add(here)
                pending.append(here.parent / here.readlink())
    return found


def _ensure(path: Path) -> bool:
    """Return whether *path* exists and is accessible; create it if it is missing."""
    try:
        if not path.exists():
            make_private(path)
    except OSError:
        return False
    return True


def _require(server_id: str, path: Path) -> None:
    """Raise :class:`~mcpd.errors.SpawnFailed` if *path* cannot be created in a directory that belongs to this user.

    In a directory of another user the server, which has our uid, could not create it either.
    """
    if _ensure(path):
        return
    nearest = next(place for place in path.parents if os.path.lexists(place))
    if nearest.lstat().st_uid == os.getuid():
        raise SpawnFailed(
            f"{server_id}: {path} cannot be created, and a server that may write to a directory above could create it;"
            f" check the permissions of {nearest}"
        )
