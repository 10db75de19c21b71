# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl doctor`` checks of the system service: users, sockets, bus and polkit as the package set them up."""

from __future__ import annotations

import grp
import pwd
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.bus.authorization import ACTION_PREFIX
from mcpd.bus.names import BUS_NAME
from mcpd.cli.checks import Check
from mcpd.cli.units import BOOTED, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mcpd.bus.client import Client
    from mcpd.cli.checks import Result
    from mcpd.paths import Layout

USER: Final = "mcpd"
USERS: Final = (USER, "mcp-server", "mcpd-bridge")
GROUP: Final = "mcp"
SHARED_GROUP: Final = "mcp-server"
"""Lets mcpd into the state directories of servers."""
SOCKETS: Final = (
    ("spawn.sock", "mcpd-spawn.socket", "mcpd", "", 0o600),
    ("build.sock", "mcpd-build.socket", "mcpd", "", 0o600),
    ("bridge.sock", "mcpd-bridge.socket", "root", GROUP, 0o660),
)
"""Name, unit, owner, group (empty: any) and mode of each."""
POLICY: Final = Path("usr/share/polkit-1/actions/org.mcpd.mcp1.policy")
BUS_POLICY: Final = tuple(Path(place) / f"dbus-1/system.d/{BUS_NAME}.conf" for place in ("/usr/share", "/etc"))
_SYSUSERS: Final = "run systemd-sysusers, or reinstall mcpd"
_TIMEOUT: Final = 20.0


def installed(layout: Layout) -> bool:
    """Whether the system service is set up here at all."""
    return layout.runtime.is_dir() and BOOTED.is_dir()


def service_checks(layout: Layout) -> Iterator[Check]:
    """Everything but what is asked on the bus."""
    yield _users()
    for name, unit, owner, group, mode in SOCKETS:
        yield _socket(layout.runtime / name, unit, owner, group, mode)
    yield _link(layout.installed)
    yield _actions()
    if not any(path.is_file() for path in BUS_POLICY):
        yield Check("bus policy", "fail", f"{BUS_POLICY[0]} is missing", "reinstall mcpd, then 'systemctl reload dbus'")


async def name_check(bus: Client) -> Check:
    """Who has the name on the system bus. Raises :class:`~mcpd.errors.McpdError` if nobody does."""
    uid = int(await bus.connection.call_bus("GetConnectionUnixUser", "s", BUS_NAME))
    name = _user_name(uid)
    if name == USER:
        return Check("bus name", "ok", f"{BUS_NAME} belongs to the user {USER}")
    return Check(
        "bus name", "fail", f"{BUS_NAME} belongs to the user {name}, not {USER}",
        f"stop that process; look for another policy than {BUS_POLICY[0]} that lets it have the name",
    )  # fmt: skip


def _users() -> Check:
    missing = [f"user {name}" for name in USERS if not _exists(pwd.getpwnam, name)]
    missing += [f"group {name}" for name in (GROUP, SHARED_GROUP) if not _exists(grp.getgrnam, name)]
    if missing:
        return Check("users", "fail", f"missing: {', '.join(missing)}", _SYSUSERS)
    root = [name for name in USERS if pwd.getpwnam(name).pw_uid == 0]
    if root:
        return Check("users", "fail", f"has the uid of root: {', '.join(root)}", "give it a uid of its own")
    return Check("users", "ok", ", ".join(USERS))


def _exists(look_up: Callable[[str], object], name: str) -> bool:
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def _socket(path: Path, unit: str, owner: str, group: str, mode: int) -> Check:
    start = f"run 'systemctl enable --now {unit}'"
    state = next(iter(show([unit], ["ActiveState", "LoadState"], system=True)), {})
    if state.get("LoadState") == "masked":
        return Check(unit, "warn", "masked, so it does not listen", f"run 'systemctl unmask {unit}'")
    if state.get("ActiveState") not in {"active", None}:
        # The machine may well do without a bridge.
        bad: Result = "warn" if owner == "root" else "fail"
        return Check(unit, bad, f"does not listen: {state['ActiveState']}", start)
    try:
        found = path.stat()
    except OSError as error:
        return Check(unit, "fail", f"{path}: {error.strerror}", start)
    if not stat.S_ISSOCK(found.st_mode):
        return Check(unit, "fail", f"{path} is no socket", f"remove it and restart {unit}")
    wanted = [f"{owner}:{group}".rstrip(":"), f"{mode:o}"]
    actual = [_user_name(found.st_uid) + (f":{_group_name(found.st_gid)}" if group else ""),
              f"{stat.S_IMODE(found.st_mode):o}"]  # fmt: skip
    if actual != wanted:
        said = f"{path} is {' '.join(actual)} instead of {' '.join(wanted)}"
        return Check(unit, "fail", said, f"restart {unit}; 'systemctl cat {unit}' shows what changes it")
    return Check(unit, "ok", f"{path} listens for {' '.join(wanted)}")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _link(path: Path) -> Check:
    """Where the servers really lie: ``/usr`` may be read-only."""
    if not path.is_symlink():
        return Check("installed", "fail", f"{path} is no symlink to where mcpd may write", "reinstall mcpd")
    if not path.is_dir():
        return Check("installed", "fail", f"{path} leads to {path.readlink()}, which is no directory",
                     "run systemd-tmpfiles --create")  # fmt: skip
    return Check("installed", "ok", f"{path} is {path.resolve()}")


def _actions() -> Check:
    """Every action that mcpd asks polkit about, and the right of mcpd to ask."""
    program = shutil.which("pkaction")
    if program is None:
        return Check("polkit actions", "warn", "pkaction was not found", "install polkitd")
    wanted = shipped_actions()
    try:
        listed = subprocess.run(
            [program, "--verbose"], capture_output=True, text=True, timeout=_TIMEOUT, check=True, errors="replace"
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Check("polkit actions", "fail", f"polkit does not answer: {error}", "see 'systemctl status polkit'")
    blocks = re.split(r"\n(?=\S+:\n)", listed.strip())
    known = {block.partition(":")[0]: block for block in blocks}
    missing = sorted(action for action in wanted if action not in known)
    if missing or not wanted:
        said = f"not registered: {', '.join(missing)}" if missing else f"/{POLICY} cannot be read"
        return Check("polkit actions", "fail", said, "reinstall mcpd, then 'systemctl restart polkit'")
    owner = f"org.freedesktop.policykit.owner -> unix-user:{USER}"
    foreign = sorted(action for action in wanted if owner not in known[action])
    if foreign:
        return Check("polkit actions", "fail", f"{USER} may not ask about: {', '.join(foreign)}", "reinstall mcpd")
    return Check("polkit actions", "ok", f"{len(wanted)} registered")


def shipped_actions(root: Path = Path("/")) -> Sequence[str]:
    """The ids of the actions in the package's policy file, empty if it cannot be read."""
    try:
        text = (root / POLICY).read_text(encoding="utf-8")
    except OSError:
        return []
    return re.findall(rf'<action id="({re.escape(ACTION_PREFIX)}[a-z-]+)">', text)
