# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks of ``mcpctl doctor``, most of them without mcpd."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal

from mcpd.bus.authorization import ACTION_PREFIX
from mcpd.bus.names import BUS_NAME
from mcpd.cli.commands.sources import count_faults, shown_faults
from mcpd.cli.units import BOOTED, show
from mcpd.errors import McpdError, NotSupported
from mcpd.package_sources import PACKAGE_SOURCES
from mcpd.paths import Scope
from mcpd.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mcpd.bus.client import Client
    from mcpd.paths import Layout, Paths

Result = Literal["ok", "warn", "fail"]

BUBBLEWRAP: Final = (0, 8)
"""The first version with ``--disable-userns``."""
PROBE: Final = "/usr/bin/true"
"""The program that is run to test the sandbox."""
PYTHON: Final = "/usr/bin/python3"
"""The interpreter that creates the environments of Python servers."""
_POLKITD: Final = ("/usr/lib/polkit-1/polkitd", "/usr/libexec/polkitd", "/usr/libexec/polkit-1/polkitd")
_TIMEOUT: Final = 20.0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    result: Result
    message: str
    advice: str = ""
    """How to fix the problem."""


def local_checks(paths: Paths, scope: Scope) -> Iterator[Check]:
    """Run the checks that do not need the bus."""
    settings, check = _settings(paths, scope)
    yield check
    confined = settings.runtime.sandbox == "on"
    usable = True
    for check in _bubblewrap(confined=confined):
        usable = usable and check.result == "ok"
        yield check
    if confined and usable:
        yield _sandbox(paths, scope)
        yield _landlock()
    elif not confined:
        yield Check(
            "sandbox",
            "warn",
            "off: servers run with all privileges of their user",
            f'remove sandbox = "off" from {paths.layout(scope).settings}',
        )
    yield _program_runs(
        "python",
        [PYTHON, "-c", "import venv, ensurepip"],
        "environments for Python servers can be created",
        "Python servers cannot be installed; install python3 and python3-venv",
    )
    with TemporaryDirectory() as scratch:  # npm creates its cache even for --version
        required = ((source.type, *each) for source in PACKAGE_SOURCES.values() for each in source.requires)
        for kind, program, package in required:
            yield _program_runs(
                program,
                [program, "--version"],
                "",
                f"servers from {kind} cannot be installed; install {package}",
                environ={"npm_config_cache": scratch, "npm_config_update_notifier": "false"},
            )
    yield scripts_check()
    yield _polkit()
    yield from _directories(paths.layout(scope))
    yield _secrets(paths.layout(scope).secrets)


def _settings(paths: Paths, scope: Scope) -> tuple[Settings, Check]:
    files = [paths.system.settings, *([paths.user.settings] if scope is Scope.USER else [])]
    try:
        return load(files), Check("settings", "ok", "valid")
    except McpdError as error:
        return Settings(), Check("settings", "fail", error.message, "correct the value; mcpd does not start with it")


def _bubblewrap(*, confined: bool) -> Iterator[Check]:
    bad: Result = "fail" if confined else "warn"
    version = _output(["bwrap", "--version"])
    if version is None:
        yield Check("bubblewrap", bad, "not found, so no server can be confined", "install bubblewrap")
        return
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < BUBBLEWRAP:
        yield Check("bubblewrap", bad, f"{version} is too old", "install bubblewrap 0.8 or later")
        return
    yield Check("bubblewrap", "ok", version)
    yield _program_runs(
        "namespaces",
        ["bwrap", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--ro-bind", "/", "/",
         "true"],
        "user namespaces can be used",
        "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns; in a container: its seccomp profile)",
        bad=bad,
    )  # fmt: skip


def _landlock() -> Check:
    from mcpd.servers.landlock import version

    known = version()
    if known > 0:
        return Check("landlock", "ok", f"version {known}")
    return Check(
        "landlock",
        "warn",
        "not in this kernel or container, so a server can leave a directory that is passed to it while it runs",
        "add landlock to lsm= on the kernel command line, or allow landlock_* in the container's seccomp filter",
    )


def _sandbox(paths: Paths, scope: Scope) -> Check:
    """Build a sandbox as mcpd does, and run a program in it."""
    from mcpd.runtime.launchers import PlainLauncher  # only this check starts a sandbox
    from mcpd.runtime.run import run
    from mcpd.runtime.sandbox import build_spec

    try:
        spec = build_spec("doctor", [PROBE], Path("/"), [], [], False, {}, paths=paths, scope=scope)
        done = asyncio.run(run(PlainLauncher(), spec, timeout=_TIMEOUT))
    except McpdError as error:
        return Check("sandbox", "fail", error.message, "no server can be started until this works")
    if done.code:
        error_text = done.stderr_tail.strip() or f"{PROBE} exited with {done.code}"
        return Check("sandbox", "fail", error_text.splitlines()[-1], "no server can be started until this works")
    return Check("sandbox", "ok", "a program ran in it")


def _program_runs(
    name: str,
    argv: Sequence[str],
    good: str,
    advice: str,
    *,
    bad: Result = "warn",
    environ: Mapping[str, str] | None = None,
) -> Check:
    if shutil.which(argv[0]) is None:
        return Check(name, bad, f"{argv[0]} was not found", advice)
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            errors="replace",
            env={**os.environ, **(environ or {})},
        )
    except subprocess.TimeoutExpired:
        again = "run 'mcpctl doctor' again when the machine is less busy"
        return Check(name, bad, f"{argv[0]} timed out ({_TIMEOUT:.0f} s)", again)
    except OSError as error:
        return Check(name, bad, f"{argv[0]}: {error}", advice)
    if done.returncode:
        last = (done.stderr.strip() or f"exited with {done.returncode}").splitlines()[-1]
        return Check(name, bad, f"{argv[0]}: {last}", advice)
    return Check(name, "ok", good or done.stdout.strip().partition("\n")[0])


def scripts_check() -> Check:
    """Check that ``mcp-scripts``, which runs script servers and has its own package, is installed."""
    from mcpd.runtime.bundled import scripts_program  # slow to import

    try:
        program = scripts_program("a script", "")
    except NotSupported as error:
        # The error is about one script, but its advice applies to all.
        advice = error.message.partition("; ")[2]
        return Check("scripts", "warn", "mcp-scripts, which runs script servers, is not installed", advice)
    return Check("scripts", "ok", f"{program.argv[0]} runs script servers")


def _output(argv: Sequence[str]) -> str | None:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _polkit() -> Check:
    if any(Path(program).exists() for program in _POLKITD):
        return Check("polkit", "ok", "installed")
    return Check("polkit", "warn", "not found, so only root may change the system's servers", "install polkitd")


def _directories(layout: Layout) -> Iterator[Check]:
    """Check that the directories of the system exist, or that those of a user can be created."""
    named = {
        "installed": layout.installed, "state": layout.state, "cache": layout.cache, "runtime": layout.runtime
    }  # fmt: skip
    if layout.scope is Scope.SYSTEM and not any(path.exists() for path in named.values()):
        yield Check(
            "directories",
            "warn",
            f"there is no system-wide mcpd: {', '.join(map(str, named.values()))} do not exist",
            "install the package mcpd; for your own servers, run 'mcpctl --user doctor'",
        )
        return
    for name, path in named.items():
        label = f"{name} directory"
        if layout.scope is Scope.SYSTEM:
            if path.exists():
                yield Check(label, "ok", str(path))
            else:
                yield Check(label, "fail", f"{path} does not exist", "run systemd-tmpfiles --create, or reinstall mcpd")
            continue
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        if os.access(existing, os.W_OK | os.X_OK):
            yield Check(label, "ok", str(path))
        else:
            yield Check(
                label,
                "fail",
                f"{existing} is not writable",
                "change its owner, or set another directory (mcpctl paths)",
            )


def _secrets(directory: Path) -> Check:
    try:
        found = [directory, *directory.iterdir()]
        loose = [str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    except FileNotFoundError:
        return Check("secrets", "ok", "none are stored")
    except OSError:
        return Check("secrets", "ok", "not readable by this user, as it should be")
    if loose:
        return Check("secrets", "fail", f"readable by others: {', '.join(loose)}", f"chmod -R go= {directory}")
    return Check("secrets", "ok", f"{len(found) - 1} stored, readable by their owner only")


USER: Final = "mcpd"
USERS: Final = (USER, "mcp-server", "mcpd-bridge")
GROUP: Final = "mcp"
SHARED_GROUP: Final = "mcp-server"
"""The group that gives mcpd access to the state directories of servers."""
SOCKETS: Final = (
    ("spawn.sock", "mcpd-spawn.socket", "mcpd", "", 0o600),
    ("build.sock", "mcpd-build.socket", "mcpd", "", 0o600),
    ("bridge.sock", "mcpd-bridge.socket", "root", GROUP, 0o660),
)
"""Name, unit, owner, group (empty: any) and mode of each socket."""
POLICY: Final = Path("usr/share/polkit-1/actions/org.mcpd.mcp1.policy")
BUS_POLICY: Final = tuple(Path(place) / f"dbus-1/system.d/{BUS_NAME}.conf" for place in ("/usr/share", "/etc"))
_SYSUSERS: Final = "run systemd-sysusers, or reinstall mcpd"


def installed(layout: Layout) -> bool:
    """Return whether the system service is set up on this machine."""
    return layout.runtime.is_dir() and BOOTED.is_dir()


def service_checks(layout: Layout) -> Iterator[Check]:
    """Run the checks of the system service that do not need the bus."""
    yield _users()
    for name, unit, owner, group, mode in SOCKETS:
        yield _socket(layout.runtime / name, unit, owner, group, mode)
    yield _link(layout.installed)
    yield _actions()
    if not any(path.is_file() for path in BUS_POLICY):
        yield Check("bus policy", "fail", f"{BUS_POLICY[0]} is missing", "reinstall mcpd, then 'systemctl reload dbus'")


async def name_check(bus: Client) -> Check:
    """Check the owner of mcpd's name on the system bus. Raises :class:`~mcpd.errors.McpdError` if there is none."""
    uid = int(await bus.connection.call_bus("GetConnectionUnixUser", "s", BUS_NAME))
    name = _user_name(uid)
    if name == USER:
        return Check("bus name", "ok", f"{BUS_NAME} belongs to the user {USER}")
    return Check(
        "bus name", "fail", f"{BUS_NAME} belongs to the user {name}, not {USER}",
        f"stop that process, and look for a bus policy other than {BUS_POLICY[0]} that lets it own the name",
    )  # fmt: skip


def _users() -> Check:
    missing = [f"user {name}" for name in USERS if not _exists(pwd.getpwnam, name)]
    missing += [f"group {name}" for name in (GROUP, SHARED_GROUP) if not _exists(grp.getgrnam, name)]
    if missing:
        return Check("users", "fail", f"missing: {', '.join(missing)}", _SYSUSERS)
    root = [name for name in USERS if pwd.getpwnam(name).pw_uid == 0]
    if root:
        return Check("users", "fail", f"has the uid of root: {', '.join(root)}", "assign it its own uid")
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
        return Check(unit, "warn", "masked, so it is not listening", f"run 'systemctl unmask {unit}'")
    if state.get("ActiveState") not in {"active", None}:
        # The bridge is optional.
        bad: Result = "warn" if owner == "root" else "fail"
        return Check(unit, bad, f"does not listen: {state['ActiveState']}", start)
    try:
        found = path.stat()
    except OSError as error:
        return Check(unit, "fail", f"{path}: {error.strerror}", start)
    if not stat.S_ISSOCK(found.st_mode):
        return Check(unit, "fail", f"{path} is not a socket", f"remove it and restart {unit}")
    wanted = [f"{owner}:{group}".rstrip(":"), f"{mode:o}"]
    actual = [_user_name(found.st_uid) + (f":{_group_name(found.st_gid)}" if group else ""),
              f"{stat.S_IMODE(found.st_mode):o}"]  # fmt: skip
    if actual != wanted:
        fault = f"{path} is {' '.join(actual)} instead of {' '.join(wanted)}"
        return Check(unit, "fail", fault, f"restart {unit}; 'systemctl cat {unit}' shows drop-ins that change it")
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
    """Check that *path* is a symlink to a writable directory, which servers need because ``/usr`` may be read-only."""
    if not path.is_symlink():
        return Check("installed", "fail", f"{path} is not a symlink to a writable directory", "reinstall mcpd")
    if not path.is_dir():
        return Check("installed", "fail", f"{path} points to {path.readlink()}, which is not a directory",
                     "run systemd-tmpfiles --create")  # fmt: skip
    return Check("installed", "ok", f"{path} is {path.resolve()}")


def _actions() -> Check:
    """Check that polkit knows every action of mcpd and lets mcpd check authorizations for it."""
    program = shutil.which("pkaction")
    if program is None:
        return Check("polkit actions", "warn", "pkaction was not found", "install polkitd")
    wanted = shipped_actions()
    try:
        listed = subprocess.run(
            [program, "--verbose"], capture_output=True, text=True, timeout=_TIMEOUT, check=True, errors="replace"
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Check("polkit actions", "fail", f"polkit is not responding: {error}", "see 'systemctl status polkit'")
    blocks = re.split(r"\n(?=\S+:\n)", listed.strip())
    known = {block.partition(":")[0]: block for block in blocks}
    missing = sorted(action for action in wanted if action not in known)
    if missing or not wanted:
        fault = f"not registered: {', '.join(missing)}" if missing else f"/{POLICY} cannot be read"
        return Check("polkit actions", "fail", fault, "reinstall mcpd, then 'systemctl restart polkit'")
    owner = f"org.freedesktop.policykit.owner -> unix-user:{USER}"
    foreign = sorted(action for action in wanted if owner not in known[action])
    if foreign:
        return Check("polkit actions", "fail", f"{USER} may not check: {', '.join(foreign)}", "reinstall mcpd")
    return Check("polkit actions", "ok", f"{len(wanted)} registered")


def shipped_actions(root: Path = Path("/")) -> Sequence[str]:
    """Return the ids of the actions in the package's policy file; empty if it cannot be read."""
    try:
        text = (root / POLICY).read_text(encoding="utf-8")
    except OSError:
        return []
    return re.findall(rf'<action id="({re.escape(ACTION_PREFIX)}[a-z-]+)">', text)


_BAD: Final[Mapping[str, tuple[Result, str]]] = {
    "invalid": ("fail", "fix it in {file}, or remove it there"),
    "untrusted": (
        "fail",
        "trust its key with 'mcpctl key add' and run 'mcpctl refresh', or remove it with 'mcpctl source remove {url}'",
    ),
    "failed": ("fail", "retry with 'mcpctl refresh', or remove it with 'mcpctl source remove {url}'"),
    "refused": ("warn", "the previously read entries are used; to accept the new content, see the problem"),
    "partly": (
        "warn",
        "for files that could not be read, the previously read entries are used; retry with 'mcpctl refresh'",
    ),
    "offline": ("warn", "the previously read entries are used; retry with 'mcpctl refresh'"),
}
"""Result and advice for each faulty state of a registry."""
_UNUSED: Final = frozenset({"untrusted", "invalid"})
_FAULTS: Final = 3
"""Maximum number of faults listed for the entries of one registry."""


def key_checks(paths: Paths, scope: Scope) -> Iterator[Check]:
    """Check the files of the trusted keys."""
    from mcpd.trust.keys import Keys  # slow to import

    keys = Keys(paths, scope)
    for problem in keys.problems():
        yield Check("key", "warn", problem, "the file is ignored; replace it with a public Ed25519 key, or remove it")
    yield Check("keys", "ok", f"{len(keys.list())} trusted")


def source_checks(sources: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Check the registries in *sources*, from ``ListSources``."""
    for source in sources:
        place = source.get("url") or source.get("file", "")
        if source["state"] in _BAD:
            result, advice = _BAD[source["state"]]
            if source["state"] == "refused" and not source.get("updated"):
                result, advice = "fail", "none of its entries are known; see the problem for what to do"
            problem = str(source.get("problem") or source["state"]).removeprefix(f"{place}: ")
            yield Check(
                "registry", result, f"{place}: {problem}", advice.format(url=place, file=source.get("file", ""))
            )
        if source["state"] not in _UNUSED and (number := count_faults(source)):
            faults = f"{place}: {number}: {'; '.join(shown_faults(source, _FAULTS, 'mcpctl source list'))}"
            yield Check("registry", "warn", faults, "report them to its publisher; its other entries are available")
    yield Check("registries", "ok", f"{len(sources)} listed")
