# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of the host's file system that a sandbox shows."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.runtime.guard import symlinks
from mcpd.runtime.launch import Mount, MountKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

ROOT_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories that are symlinks into ``/usr`` on merged systems."""
ETC: Final = (
    "alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "mime.types",
    "os-release", "timezone",
)  # fmt: skip
ETC_NETWORK: Final = (
    "ca-certificates", "gai.conf", "host.conf", "hosts", "npmrc", "nsswitch.conf", "pip.conf", "pki", "protocols",
    "resolv.conf", "services", "ssl",
)  # fmt: skip
NSSWITCH: Final = "passwd: files\ngroup: files\nhosts: files\n"

SYSTEM_USER: Final = "mcp-server"
"""The user that servers of the system instance run as."""


def bind(source: Path, target: Path | None = None, kind: MountKind = MountKind.RO_BIND) -> Mount:
    """Return a mount of *source*, symlinks resolved, at *target* (default: the resolved path)."""
    real = os.path.realpath(source)
    return Mount(kind, str(target or real), real)


def base(*, network: bool, home: str, runtime_dir: str, system: bool) -> list[Mount]:
    """Return the mounts of every sandbox: programs, parts of ``/etc``, and a private ``/tmp`` and runtime directory."""
    mounts = [bind(Path("/usr"))]
    for name in ROOT_LINKS:
        path = Path("/") / name
        if path.is_symlink():
            mounts.append(Mount(MountKind.SYMLINK, str(path), str(path.readlink())))
        elif path.is_dir():
            mounts.append(bind(path))
    for name in (*ETC, *(ETC_NETWORK if network else ())):
        path = Path("/etc") / name
        if path.exists():
            mounts.append(bind(path, path))
    if not network:
        mounts.append(Mount(MountKind.FILE, "/etc/nsswitch.conf", NSSWITCH))
    mounts += _accounts(home, system=system)
    mounts += [
        Mount(MountKind.TMPFS, "/tmp"),  # noqa: S108 - inside the sandbox, private
        Mount(MountKind.TMPFS, "/var/tmp"),  # noqa: S108
        Mount(MountKind.SYMLINK, "/var/run", "/run"),
        Mount(MountKind.TMPFS, runtime_dir),
    ]
    return mounts


def _accounts(home: str, *, system: bool) -> list[Mount]:
    """Return ``/etc/passwd`` and ``/etc/group`` with only root and the server's own user."""
    try:
        user = pwd.getpwnam(SYSTEM_USER) if system else pwd.getpwuid(os.getuid())
    except KeyError:
        user = pwd.struct_passwd(("user", "x", os.getuid(), os.getgid(), "", home, "/bin/sh"))
    try:
        group = grp.getgrgid(user.pw_gid).gr_name
    except KeyError:
        group = user.pw_name
    passwd = {
        0: "root:x:0:0:root:/root:/bin/sh",
        user.pw_uid: f"{user.pw_name}:x:{user.pw_uid}:{user.pw_gid}::{home}:/bin/sh",
    }
    groups = {0: "root:x:0:", user.pw_gid: f"{group}:x:{user.pw_gid}:"}
    return [
        Mount(MountKind.FILE, "/etc/passwd", "\n".join(passwd.values()) + "\n"),
        Mount(MountKind.FILE, "/etc/group", "\n".join(groups.values()) + "\n"),
    ]


def program(
    command: str,
    cwd: Path,
    search: Iterable[str],
    shown: Iterable[Path],
    homes: Iterable[Path],
    writable: Iterable[Path] = (),
) -> list[Mount]:
    """Return the mounts needed besides *shown* and *writable* to execute *command*.

    Symlinks, ``#!`` lines and ``pyvenv.cfg`` are followed. In *writable*, where the server can change them, they must
    not lead outside. In *shown*, ``#!`` lines and ``pyvenv.cfg`` must not lead outside, since a package could otherwise
    choose which files it gets. An interpreter elsewhere is mounted with its prefix (``/opt/x`` for
    ``/opt/x/bin/python`` next to ``/opt/x/lib``), unless that is or contains one of *homes*; then only its file is
    mounted.
    """
    seen: dict[Path, Mount] = {}
    changeable = [path.resolve() for path in writable]
    packages = [*(path.resolve() for path in shown), *changeable]
    pending = [_find(command, cwd, search)]
    for hop in pending:
        if hop is None or not hop.is_absolute() or len(pending) > 16:
            continue
        if changeable and _leads_out(hop, changeable):
            continue
        here = hop.parent.resolve() / hop.name
        packaged = _below(here, packages)
        is_shown = packaged or here.is_relative_to("/usr") or _below(here, seen)
        # Only files: os.access takes directories for executable, too, and the author of the program could name one.
        if not is_shown and here.is_file() and os.access(here, os.X_OK):
            mount = _prefix(here, homes)
            seen[Path(mount.target)] = mount
        if hop.is_symlink():
            pending.append(hop.parent / hop.readlink())
        named = [] if hop.is_symlink() or not hop.is_file() else _interpreters(hop)
        if here.parent.name == "bin":
            named += _venv_home(here.parent.parent / "pyvenv.cfg", here.name)
        pending += [one for one in named if not packaged or _below(one.parent.resolve(), packages)]
    return list(seen.values())


def _find(command: str, cwd: Path, search: Iterable[str]) -> Path | None:
    if "/" in command:
        return cwd / command
    found = (Path(directory) / command for directory in search if directory.startswith("/"))
    return next((path for path in found if path.is_file() and os.access(path, os.X_OK)), None)


def _below(path: Path, roots: Iterable[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _leads_out(path: Path, changeable: Collection[Path]) -> bool:
    """Return whether *path* leads outside the directories *changeable* through a symlink in one of them."""
    real = Path(os.path.realpath(path))
    return not _below(real, changeable) and any(_below(link, changeable) for link in symlinks([path]))


def _prefix(path: Path, homes: Iterable[Path]) -> Mount:
    prefix = path.parent.parent
    whole = path.parent.name in {"bin", "sbin"} and (prefix / "lib").is_dir()
    if whole and not any(home.is_relative_to(prefix) for home in homes):
        return bind(prefix, prefix)
    return bind(path, path)


def _interpreters(path: Path) -> list[Path]:
    try:
        with path.open("rb") as file:
            first = file.readline(512)
    except OSError:
        return []
    words = first[2:].split() if first.startswith(b"#!") else []
    return [Path(os.fsdecode(words[0]))] if words else []


def _venv_home(config: Path, name: str) -> list[Path]:
    try:
        lines = config.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    home = next(
        (value.strip() for key, _, value in (line.partition("=") for line in lines) if key.strip() == "home"), ""
    )
    return [Path(home) / name] if home else []
