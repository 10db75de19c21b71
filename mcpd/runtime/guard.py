# SPDX-License-Identifier: LGPL-2.1-or-later
"""What no permission may open: mcpd's own files, and the sockets that lead out of the sandbox."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from mcpd.errors import InvalidManifest, SpawnFailed
from mcpd.paths import Scope, make_private
from mcpd.runtime.launch import Mount, MountKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mcpd.paths import Layout, Paths
    from mcpd.runtime.permissions import PathGrant

MAX_SYMLINKS: Final = 40
"""The most symlinks in one path, as in the kernel."""
KERNEL: Final = (Path("/proc"), Path("/sys"), Path("/dev"))
BINDS: Final = frozenset({MountKind.RO_BIND, MountKind.BIND, MountKind.DEV_BIND})
DISPLAYS: Final = (Path("/tmp/.X11-unix"), Path("/tmp/.ICE-unix"))  # noqa: S108 - where the protocols have them
"""The sockets of X servers and of session managers. A client of one types and starts programs as the user does."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Paths, symlinks resolved, that grants are held against."""

    hidden: tuple[Path, ...]
    """Covered by an empty directory (or ``/dev/null``) wherever a grant would show them."""
    protected: tuple[Path, ...]
    """Read-only wherever a grant would make them writable."""
    named: tuple[Path, ...]
    """All of these, and :attr:`brought`, as mcpd knows them, symlinks and all."""
    home: Path
    scope: Scope
    brought: tuple[Path, ...] = ()
    """Protected as well where they exist: a package or an administrator makes them, and mcpd does not."""

    @classmethod
    def of(cls, paths: Paths, scope: Scope, *, signs: bool = False) -> Guard:
        """The guard of the instance of *scope*, for a server that *signs* configurations of clients or, like most, not.

        Who can read the user's signing key, or write beside it, can have anything deployed in the user's name.
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
            # systemd makes them at boot. One that a user made would be in the way of a display.
            hidden += [*_bus_sockets(), *(path for path in DISPLAYS if path.exists())]
            protected += [user.settings.parent, user.secrets.parent, user.installed, user.generations, user.cache]
            protected += [] if signs else [user.orchestration]
        brought = [paths.vendor_mcps, paths.vendor_scripts, paths.vendor_contents, system.contents]
        named = (*hidden, *protected, *brought)
        return cls(_resolved(hidden), _resolved(protected), named, paths.home, scope, _resolved(brought))

    def grants(self, server_id: str, wanted: Iterable[PathGrant], files: Sequence[Path] = ()) -> list[Mount]:
        """The mounts for *wanted*; a missing path is skipped if it is read-only or one of a list.

        *files* are the server's own directories and its manifest, which says what is granted. It can replace neither,
        nor write to the manifest.

        Raises :class:`~mcpd.errors.InvalidManifest` for a path that cannot be granted, and
        :class:`~mcpd.errors.SpawnFailed` if a writable one is missing, or if something of mcpd's in it is, and cannot
        be made.
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
        # Below what is shown anyway a symlink is there already.
        shown = [Path("/usr"), *binds]
        for named in sorted(links):
            if any(named.is_relative_to(path) for path in shown):
                del links[named]
            else:
                shown.append(named)
        return [binds[real] for real in sorted(binds)] + [links[named] for named in sorted(links)]

    def _pivots(self, server_id: str, binds: Mapping[Path, Mount], files: Sequence[Path]) -> set[Path]:
        """The directories between what *binds* make writable and *files* or what is hidden or protected in there.

        A mount point of its own cannot be renamed or removed: otherwise the server would move such a directory away,
        with the covers below it, and put another one in its place for the next start.
        """
        if not any(mount.kind is MountKind.BIND for mount in binds.values()):
            return set()
        for link in _links((*self.named, *files)):
            if self._open(link, binds):
                raise InvalidManifest(
                    f"{server_id}: {link} is a symlink on the way to files of mcpd or of the server, which one with"
                    " a permission filesystem:rw: for a directory above could replace; name the directories that are"
                    " needed"
                )
        found: set[Path] = set()
        for own in (*self.hidden, *self.protected):
            if self._open(own, binds):
                _require(server_id, own)
        for own in (*self.hidden, *self.protected, *self._there(), *_resolved(files)):
            found |= {path for path in own.parents if self._open(path, binds) and os.access(path, os.F_OK)}
        return found - binds.keys()

    def _open(self, path: Path, binds: Mapping[Path, Mount]) -> bool:
        """Whether *binds* let a server rename *path*, once what is hidden and protected is covered."""
        mount = next((binds[place] for place in path.parents if place in binds), None)
        covered = any(own in path.parents for own in (*self.hidden, *self.protected, *self.brought))
        return mount is not None and mount.kind is MountKind.BIND and not covered

    def _there(self) -> list[Path]:
        """Those of :attr:`brought` that exist."""
        return [own for own in self.brought if os.access(own, os.F_OK)]

    def check(self, server_id: str, mounts: Iterable[Mount]) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` if one of *mounts* shows something hidden, whoever asked for it.

        Where something hidden is only a part of what is shown, :meth:`covers` sees to it.
        """
        for mount in mounts:
            if mount.kind in BINDS and any(_lies_in(mount.source, str(barred)) for barred in self.hidden):
                raise InvalidManifest(
                    f"{server_id}: {mount.target} belongs to mcpd, another server or the session, and is never shown to"
                    " a server; keep its program and its files elsewhere"
                )

    def check_grants(self, server_id: str, wanted: Iterable[PathGrant]) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` if one of *wanted* cannot be granted, even if it is missing.

        Raises :class:`~mcpd.errors.SpawnFailed` for one that cannot be looked at.
        """
        for grant in wanted:
            where, path = self._wanted(server_id, grant)
            self._check(where, grant, *_end(where, grant, path))

    def _named(self, path: str) -> Path:
        return self.home / path[2:] if path == "~" or path.startswith("~/") else Path(path)

    def _wanted(self, server_id: str, grant: PathGrant) -> tuple[str, Path]:
        """What messages call *grant*, and its path."""
        where = f"{server_id}: permission {grant.permission!r}"
        if grant.path.startswith("~") and self.scope is Scope.SYSTEM:
            raise InvalidManifest(f"{where}: a server of the system has no home; name a path outside of homes")
        path = self._named(grant.path)
        if not path.is_absolute() or ".." in path.parts or "\0" in grant.path:
            raise InvalidManifest(f"{where}: {grant.shown} must be absolute or begin with ~/, and cannot hold '..'")
        return where, path

    def _reals(self, server_id: str, wanted: Iterable[PathGrant]) -> list[tuple[PathGrant, Path]]:
        """Those of *wanted* that can be mounted, each with where it leads.

        The server itself may have made what lies in a directory that is granted for writing. A symlink in there leads
        nowhere that it could not write anyway: otherwise a server would choose what it is granted the next time.
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
                    f"{server_id}: permission {grant.permission!r}: {grant.shown} leads elsewhere by a symlink in a"
                    " directory that the server may write to; grant the place where it leads"
                )
        return reals

    def _real(self, server_id: str, grant: PathGrant) -> tuple[Path, list[Path]] | None:
        """Where *grant* leads, with the symlinks on the way; None for one that is left out if it is missing."""
        where, path = self._wanted(server_id, grant)
        if grant.create and not os.path.lexists(path):
            self._check(where, grant, *_end(where, grant, path))
            _make(where, grant, path)
        try:
            with _explained(where, grant):
                real, links = _way(path)
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
        """Raise :class:`~mcpd.errors.InvalidManifest` if *real*, to which *grant* leads by *links*, cannot be granted.

        A symlink in what is hidden is refused as well: in its state directory the server itself may have made it.
        """
        for barred in self.hidden:
            if any(place.is_relative_to(barred) for place in (real, *links)):
                raise InvalidManifest(
                    f"{where}: {grant.shown} belongs to mcpd, another server or the session, and is never shown to a"
                    " server"
                )
        if real == Path("/") or any(real.is_relative_to(kernel) for kernel in KERNEL):
            raise InvalidManifest(f"{where}: {grant.shown} cannot be granted; name the directories that are needed")
        if grant.writable and any(real.is_relative_to(own) for own in (*self.protected, *self.brought)):
            raise InvalidManifest(f"{where}: {grant.shown} is mcpd's own and can only be granted with filesystem:ro")

    def covers(self, mounts: Sequence[Mount]) -> list[Mount]:
        """The mounts that keep *mounts* from showing what is hidden, or from opening what is protected.

        Directories of mcpd's that do not exist yet are made, lest a running server see them come.
        """
        found: dict[str, Mount] = {}
        for mount in mounts:
            if mount.kind not in BINDS:
                continue
            source = Path(mount.source)
            if mount.kind is not MountKind.RO_BIND:
                for own in (*self.protected, *self._there()):
                    if _lies_in(str(own), mount.source) and _made(own):
                        target = str(Path(mount.target) / own.relative_to(source))
                        found[target] = Mount(MountKind.RO_BIND, target, str(own))
            for secret in self.hidden:
                if _lies_in(str(secret), mount.source) and _made(secret):
                    target = str(Path(mount.target) / secret.relative_to(source))
                    found[target] = (
                        Mount(MountKind.TMPFS, target)
                        if secret.is_dir()
                        else Mount(MountKind.DEV_BIND, target, os.devnull)
                    )
        return sorted(found.values(), key=lambda mount: mount.target.count("/"))


@contextmanager
def _explained(where: str, grant: PathGrant) -> Iterator[None]:
    """Turn the errors of resolving the path of *grant* into SpawnFailed, but for FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError) as error:
        reason = "it leads through too many symlinks"
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            reason = error.strerror or str(error)
        raise SpawnFailed(f"{where}: {grant.shown} cannot be looked at: {reason}") from error


def _end(where: str, grant: PathGrant, path: Path) -> tuple[Path, set[Path]]:
    """Resolve *path*, which may be missing; return its target and the symlinks on the way, each by its real place."""
    with _explained(where, grant):
        return path.resolve(), _links([path])


def _way(path: Path) -> tuple[Path, list[Path]]:
    """Resolve *path*; return its target and the symlinks on the way, each by its real place. Raises OSError."""
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


def _make(where: str, grant: PathGrant, path: Path) -> None:
    try:
        make_private(path)
    except OSError as error:
        raise SpawnFailed(f"{where}: {grant.shown} cannot be made: {error.strerror}") from error


def _lies_in(path: str, directory: str) -> bool:
    """Whether *path* is *directory* or below it; pathlib would take most of the time of a spawn for this."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _secret(layout: Layout) -> tuple[Path, ...]:
    return layout.secrets, layout.overlay, layout.state, layout.runtime


def _bus_sockets() -> list[Path]:
    """The sockets of the session bus: an address is a list of places, with escapes in their values."""
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


def _links(paths: Iterable[Path]) -> set[Path]:
    """The symlinks on the way to *paths*, each where it really lies."""
    found: set[Path] = set()
    pending = list(paths)
    for path in pending:
        for place in (path, *path.parents):
            here = place.parent.resolve() / place.name
            if here not in found and os.path.islink(here):  # noqa: PTH114 - no error where we may not look
                found.add(here)
                pending.append(here.parent / here.readlink())
    return found


def _made(path: Path) -> bool:
    """Whether *path* exists and can be reached, if need be from now on."""
    try:
        if not path.exists():
            make_private(path)
    except OSError:
        return False
    return True


def _require(server_id: str, path: Path) -> None:
    """Raise :class:`~mcpd.errors.SpawnFailed` if *path* is missing, and only we ourselves are in the way of making it.

    Where somebody else's directory is in the way a server, which has our uid, could not make it either.
    """
    if _made(path):
        return
    nearest = next(place for place in path.parents if os.path.lexists(place))
    if nearest.lstat().st_uid == os.getuid():
        raise SpawnFailed(
            f"{server_id}: {path} cannot be made, so that a server that may write to a directory above could make it;"
            f" see what is wrong with {nearest}"
        )
