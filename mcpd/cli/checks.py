# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl doctor`` checks on this machine without asking mcpd."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal

from mcpd.errors import McpdError, NotSupported
from mcpd.paths import Scope
from mcpd.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.paths import Layout, Paths

Result = Literal["ok", "warn", "fail"]

BUBBLEWRAP: Final = (0, 8)
"""The first version with ``--disable-userns``."""
PROBE: Final = "/usr/bin/true"
"""What is run in a sandbox for a trial."""
PYTHON: Final = "/usr/bin/python3"
"""What the environments of Python servers are made with (design §7)."""
_POLKITD: Final = ("/usr/lib/polkit-1/polkitd", "/usr/libexec/polkitd", "/usr/libexec/polkit-1/polkitd")
_TIMEOUT: Final = 20.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    result: Result
    message: str
    advice: str = ""
    """What to do about it."""


def local_checks(paths: Paths, scope: Scope) -> Iterator[Check]:
    """Everything that can be seen without the bus."""
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
            "off: servers run with all rights of the user they run as",
            f'remove sandbox = "off" from {paths.layout(scope).settings}',
        )
    yield _program_runs(
        "python",
        [PYTHON, "-c", "import venv, ensurepip"],
        "environments for Python servers can be made",
        "Python servers cannot be installed; install python3 and python3-venv",
    )
    with TemporaryDirectory() as scratch:  # npm makes its cache wherever it runs
        for program, package in (("node", "nodejs"), ("npm", "npm"), ("git", "git")):
            kind = "git repositories" if program == "git" else "npm servers"
            yield _program_runs(
                program,
                [program, "--version"],
                "",
                f"{kind} cannot be installed; install {package}",
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
    from mcpd.servers.landlock import version  # noqa: PLC0415

    known = version()
    if known > 0:
        return Check("landlock", "ok", f"version {known}")
    return Check(
        "landlock",
        "warn",
        "not in this kernel or container, so a directory that is passed to a running server opens files outside it",
        "add landlock to lsm= on the kernel command line, or allow landlock_* in the container's seccomp filter",
    )


def _sandbox(paths: Paths, scope: Scope) -> Check:
    """Build a sandbox as mcpd does, and run a program in it."""
    from mcpd.runtime.launchers import PlainLauncher  # noqa: PLC0415 - only doctor needs what runs servers
    from mcpd.runtime.run import run  # noqa: PLC0415
    from mcpd.runtime.sandbox import build_spec  # noqa: PLC0415

    try:
        spec = build_spec("doctor", [PROBE], Path("/"), [], [], False, {}, paths=paths, scope=scope)
        done = asyncio.run(run(PlainLauncher(), spec, timeout=_TIMEOUT))
    except McpdError as error:
        return Check("sandbox", "fail", error.message, "no server can be started before this works")
    if done.code:
        said = done.stderr_tail.strip() or f"{PROBE} ended with {done.code}"
        return Check("sandbox", "fail", said.splitlines()[-1], "no server can be started before this works")
    return Check("sandbox", "ok", "one was built, and a program ran in it")


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
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, bad, f"{argv[0]}: {error}", advice)
    if done.returncode:
        last = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1]
        return Check(name, bad, f"{argv[0]}: {last}", advice)
    return Check(name, "ok", good or done.stdout.strip().partition("\n")[0])


def scripts_check() -> Check:
    """Whether what makes servers of scripts is there, which is a package of its own."""
    from mcpd.runtime.bundled import scripts_program  # noqa: PLC0415 - few commands need what knows it

    try:
        program = scripts_program("a script", "")
    except NotSupported as error:
        # What it says of this one script holds for all.
        advice = error.message.partition("; ")[2]
        return Check("scripts", "warn", "what makes servers of scripts is not installed", advice)
    return Check("scripts", "ok", f"{program.argv[0]} makes servers of them")


def _output(argv: Sequence[str]) -> str | None:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _polkit() -> Check:
    if any(Path(program).exists() for program in _POLKITD):
        return Check("polkit", "ok", "installed")
    return Check("polkit", "warn", "not found, so only root may change system-wide servers", "install polkitd")


def _directories(layout: Layout) -> Iterator[Check]:
    """The user's instance makes its directories itself; the system's come with the package."""
    named = {
        "installed": layout.installed, "state": layout.state, "cache": layout.cache, "runtime": layout.runtime
    }  # fmt: skip
    if layout.scope is Scope.SYSTEM and not any(path.exists() for path in named.values()):
        yield Check(
            "directories",
            "warn",
            f"there is no system-wide mcpd: {', '.join(map(str, named.values()))} do not exist",
            "install mcpd's package for one; 'mcpctl --user doctor' checks what your own servers need",
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
                label, "fail", f"{existing} is not writable", "make it yours, or set another place (mcpctl paths)"
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
