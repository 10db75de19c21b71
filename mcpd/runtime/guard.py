# SPDX-License-Identifier: LGPL-2.1-or-later
"""What no permission may open: mcpd's own files, and the sockets that lead out of the sandbox (design §6)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, SpawnFailed
from mcpd.paths import Scope
from mcpd.runtime.launch import Mount, MountKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcpd.paths import Layout, Paths
    from mcpd.runtime.permissions import PathGrant

KERNEL: Final = (Path("/proc"), Path("/sys"), Path("/dev"))
BINDS: Final = frozenset({MountKind.RO_BIND, MountKind.BIND, MountKind.DEV_BIND})


@dataclass(frozen=True, slots=True)
class Guard:
    """Paths, symlinks resolved, that grants are held against."""

    hidden: tuple[Path, ...]
    """Covered by an empty directory (or ``/dev/null``) wherever a grant would show them."""
    protected: tuple[Path, ...]
    """Read-only wherever a grant would make them writable."""
    home: Path
    scope: Scope

    @classmethod
    def of(cls, paths: Paths, scope: Scope) -> Guard:
        """The guard of the instance of *scope*."""
        user, system = paths.user, paths.system
        hidden = [
            *_secret(system),
            system.secrets.parent / "tokens",
            Path("/run/dbus"),
            Path("/run/systemd"),
            *(_secret(user) if scope is Scope.USER else ()),
        ]
        protected = [system.settings.parent, system.installed, system.generations, system.cache, paths.vendor]
        if scope is Scope.USER:
            hidden.append(Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"))
            hidden += _bus_socket()
            protected += [user.settings.parent, user.secrets.parent, user.installed, user.generations, user.cache]
        return cls(_resolved(hidden), _resolved(protected), paths.home, scope)

    def grants(self, server_id: str, wanted: Iterable[PathGrant]) -> list[Mount]:
        """The mounts for *wanted*; a missing read-only path is skipped.

        Raises :class:`~mcpd.errors.InvalidManifest` for a path that cannot be granted, and
        :class:`~mcpd.errors.SpawnFailed` if a writable one is missing.
        """
        binds: dict[Path, Mount] = {}
        links: dict[Path, Mount] = {}
        for grant in wanted:
            real = self._real(server_id, grant)
            if real is not None and (grant.writable or real not in binds):
                kind = MountKind.BIND if grant.writable else MountKind.RO_BIND
                binds[real] = Mount(kind, str(real), str(real))
            named = self._named(grant.path)
            if real is not None and named != real:
                links[named] = Mount(MountKind.SYMLINK, str(named), str(real))
        # Below what is shown anyway a symlink is there already.
        shown = [Path("/usr"), *binds]
        for named in sorted(links):
            if any(named.is_relative_to(path) for path in shown):
                del links[named]
            else:
                shown.append(named)
        return [binds[real] for real in sorted(binds)] + [links[named] for named in sorted(links)]

    def _named(self, path: str) -> Path:
        return self.home / path[2:] if path == "~" or path.startswith("~/") else Path(path)

    def _real(self, server_id: str, grant: PathGrant) -> Path | None:
        where = f"{server_id}: permission {grant.permission!r}"
        if grant.path.startswith("~") and self.scope is Scope.SYSTEM:
            raise InvalidManifest(f"{where}: a server of the system has no home; name a path outside of homes")
        path = self._named(grant.path)
        if not path.is_absolute() or ".." in path.parts or "\0" in grant.path:
            raise InvalidManifest(f"{where}: {grant.path!r} must be absolute or begin with ~/, and cannot hold '..'")
        try:
            real = path.resolve(strict=True)
        except FileNotFoundError:
            if grant.writable:
                raise SpawnFailed(f"{where}: {path} does not exist; create it or change the configuration") from None
            return None
        except (OSError, RuntimeError) as error:
            raise SpawnFailed(f"{where}: {path}: {error}") from error
        for barred in self.hidden:
            if real.is_relative_to(barred):
                raise InvalidManifest(f"{where}: {real} belongs to mcpd or the session and is never shown to a server")
        if real == Path("/") or any(real.is_relative_to(kernel) for kernel in KERNEL):
            raise InvalidManifest(f"{where}: {real} cannot be granted; name the directories that are needed")
        if grant.writable and any(real.is_relative_to(own) for own in self.protected):
            raise InvalidManifest(f"{where}: {real} is mcpd's own and can only be granted with filesystem:ro")
        return real

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
                for own in self.protected:
                    if own.is_relative_to(source) and _made(own):
                        target = str(Path(mount.target) / own.relative_to(source))
                        found[target] = Mount(MountKind.RO_BIND, target, str(own))
            for secret in self.hidden:
                if secret.is_relative_to(source) and _made(secret):
                    target = str(Path(mount.target) / secret.relative_to(source))
                    found[target] = (
                        Mount(MountKind.TMPFS, target)
                        if secret.is_dir()
                        else Mount(MountKind.DEV_BIND, target, os.devnull)
                    )
        return sorted(found.values(), key=lambda mount: mount.target.count("/"))


def _secret(layout: Layout) -> tuple[Path, ...]:
    return layout.secrets, layout.overlay, layout.state, layout.runtime


def _bus_socket() -> list[Path]:
    address = os.environ.get("DBUS_SESSION_BUS_ADDRESS", "")
    fields = dict(part.partition("=")[::2] for part in address.removeprefix("unix:").split(","))
    return [Path(fields["path"])] if "path" in fields else []


def _resolved(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path.resolve() for path in paths))


def _made(path: Path) -> bool:
    """Whether *path* exists, if need be from now on."""
    if not path.exists():
        try:
            path.mkdir(mode=0o700, parents=True)
        except OSError:
            return False
    return True
