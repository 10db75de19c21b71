# SPDX-License-Identifier: LGPL-2.1-or-later
"""A booted Debian in a container, thrown away afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from tests.system.cgroup import PREFIX, ControlGroup, hierarchy, owned
from tests.system.cgroup import remove as remove_group
from tests.system.image import NSPAWN, NSPAWN_ENVIRONMENT
from tests.system.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

PATIENCE: Final = 120.0
"""Seconds that anything may take to come true."""
BOOT_PATIENCE: Final = 180.0
_PLACE: Final = Path("/var/tmp")
_PROPAGATE: Final = Path("/run/systemd/nspawn/propagate")
"""Where systemd-nspawn makes a directory for each machine."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BootFailed(RuntimeError):
    """The machine did not come up; the message holds its console."""


class CommandFailed(AssertionError):
    """A command inside ended with something else than 0; the message holds what it wrote."""


class Inside(subprocess.Popen[bytes]):
    """A program in the machine. Signals reach it, not the program that entered the machine for it.

    It dies with the latter, so that nothing is left when the tests end.
    """

    @property
    def host_pid(self) -> int | None:
        """Its process id outside."""
        return next(iter(_children(self.pid)), None)

    @property
    def inner_pid(self) -> int:
        """Its process id in the machine, once it is in there."""
        give_up = time.monotonic() + PATIENCE
        while not (pids := _namespace_pids(self.host_pid or 0)):
            assert self.poll() is None, "it has ended"
            assert time.monotonic() < give_up, "it never got into the machine"
            time.sleep(0.01)
        return pids[-1]

    def send_signal(self, sig: int) -> None:
        """Send *sig* to the program, if it still runs."""
        if self.poll() is None and (pid := self.host_pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)


class Overlay:
    """A writable file system on top of others, in memory. Use it as a context manager."""

    def __init__(self, lower: Sequence[Path]) -> None:
        self._lower = lower
        self._directory = Path()

    @property
    def root(self) -> Path:
        """The whole, as one tree."""
        return self._directory / "root"

    def finish(self) -> Path:
        """Write no more, and return what was written, to be a lower layer of others."""
        _command("umount", str(self.root))
        return self._directory / "upper"

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_PLACE))
        try:
            _command("mount", "-t", "tmpfs", "-o", "mode=0755,size=2g", "tmpfs", str(self._directory))
            for name in ("upper", "work", "root"):
                (self._directory / name).mkdir()
            lower = ":".join(map(str, self._lower))
            options = f"lowerdir={lower},upperdir={self._directory / 'upper'},workdir={self._directory / 'work'}"
            _command("mount", "-t", "overlay", "-o", options, "overlay", str(self.root))
        except BaseException:
            _remove(self._directory)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self._directory)


class Machine:
    """A running machine. Made by the fixtures ``machine`` and ``fresh_machine``."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._programs: list[Inside] = []
        self._users: dict[str, tuple[int, str]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._running = contextlib.ExitStack()
        self._leader = 0
        self.console = overlay.root.parent / "console"
        """What it wrote on its console."""

    @property
    def root(self) -> Path:
        """Its file system as the host sees it, with all that is mounted inside. Absolute symlinks lead to the host."""
        return Path(f"/proc/{self._leader}/root")

    @property
    def image(self) -> Path:
        """Its root file system alone; the place to change things while it is down."""
        return self._overlay.root

    def boot(self) -> None:
        """Start it and wait until everything runs. Raises :class:`BootFailed`."""
        (self.image / "etc/machine-id").write_text("")
        (self.image / "etc/hostname").write_text("machine\n")
        group = self._running.enter_context(ControlGroup())
        argv = [*NSPAWN, "--boot", f"--directory={self.image}", f"--machine={group.name}", "--private-network",
                "--console=pipe", "--link-journal=no"]  # fmt: skip
        with self.console.open("ab") as console:
            self._process = subprocess.Popen(
                group.entering(argv), stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
                env=os.environ | NSPAWN_ENVIRONMENT,
            )  # fmt: skip
        give_up = time.monotonic() + BOOT_PATIENCE
        state = ""
        while state not in {"running", "degraded"}:
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise BootFailed(f"the machine did not come up ({state}):\n{self._console_end()}")
            time.sleep(0.05)
            self._leader = next((pid for pid in _children(self._process.pid) if _namespace_pids(pid)[-1:] == [1]), 0)
            if self._leader:
                state = self.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip()
        if state == "degraded":
            failed = self.run("systemctl", "--failed", "--plain", "--no-legend").stdout
            raise BootFailed(f"units failed:\n{failed}{self._console_end()}")

    def shut(self) -> None:
        """End it the hard way, as a power cut; what was written stays."""
        for program in self._programs:
            program.kill()
            subprocess.Popen.kill(program)
            program.wait()
            for stream in (program.stdin, program.stdout, program.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._programs.clear()
        if self._process is not None and self._leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)
            # Left alone, systemd-nspawn takes away what it made.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self._running.close()
        if self._process is not None:
            self._process.wait()
        self._process, self._leader = None, 0

    def restart(self) -> None:
        """Shut it down as an administrator would, and boot it again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)
        self.shut()
        self.boot()

    def run(
        self,
        *argv: str,
        user: str = "root",
        input: bytes = b"",  # noqa: A002 - as subprocess.run calls it
        check: bool = True,
        timeout: float = PATIENCE,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run *argv* inside as *user* (with the session bus, if there is one) and return what it wrote.

        Raises :class:`CommandFailed` if *check* and it ends with something else than 0.
        """
        pipe = subprocess.PIPE
        program = self.popen(*argv, user=user, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            out, err = program.communicate(input, timeout)
        except subprocess.TimeoutExpired as error:
            program.kill()
            out, err = program.communicate()
            raise CommandFailed(f"{' '.join(argv)} did not end in {timeout} s:\n{_text(out)}{_text(err)}") from error
        finally:
            self._programs.remove(program)
        done = subprocess.CompletedProcess(list(argv), program.returncode, _text(out), _text(err))
        if check and done.returncode:
            raise CommandFailed(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def popen(self, *argv: str, user: str = "root", env: Mapping[str, str] | None = None, **options: Any) -> Inside:
        """Start *argv* inside as *user*; *options* are those of :class:`subprocess.Popen`."""
        program = Inside(self._entering(argv, user, env or {}), start_new_session=True, **options)
        self._programs.append(program)
        return program

    def terminal(self, *argv: str, user: str = "root", env: Mapping[str, str] | None = None) -> Terminal:
        """Start *argv* inside as *user* on a terminal of its own."""
        entering = self._entering(argv, user, {"TERM": "dumb", **(env or {})})
        return Terminal(lambda **options: self._started(Inside(entering, **options)))

    def _started(self, program: Inside) -> Inside:
        self._programs.append(program)
        return program

    def _entering(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> list[str]:
        entering = ["nsenter", "-t", str(self._leader), "-a", "--", "setpriv", "--pdeathsig", "KILL"]
        uid, home = self._user(user)
        variables = {"HOME": home, "USER": user, "LOGNAME": user, "PATH": _PATH, "LANG": "C.UTF-8"}
        variables["SYSTEMD_BUS_TIMEOUT"] = f"{PATIENCE:.0f}"  # of systemctl and others, else 25 s
        if uid:
            entering += [f"--reuid={user}", f"--regid={user}", "--init-groups"]
            runtime = f"/run/user/{uid}"
            variables |= {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
        return [*entering, "env", "-i", *(f"{name}={value}" for name, value in (variables | dict(env)).items()), *argv]

    def _user(self, name: str) -> tuple[int, str]:
        if name not in self._users:
            passwd = (self.image / "etc/passwd").read_text()
            self._users = {(f := line.split(":"))[0]: (int(f[2]), f[5]) for line in passwd.splitlines()}
        return self._users[name]

    def uid(self, user: str) -> int:
        """The uid of *user* inside."""
        return self._user(user)[0]

    def python(self, code: str, user: str = "root", *argv: str) -> str:
        """What /usr/bin/python3 prints that runs *code* inside as *user*."""
        return self.run("/usr/bin/python3", "-c", code, *argv, user=user).stdout

    def mcpctl(self, *argv: str, user: str = "root", **options: Any) -> subprocess.CompletedProcess[str]:
        """Run mcpctl inside, as :meth:`run`."""
        return self.run("mcpctl", *argv, user=user, **options)

    def write(self, path: str, text: str, mode: int = 0o644, owner: str = "root") -> None:
        """Make the file *path* inside, and the directories it needs."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1" && chown "$3:" "$1"'
        self.run("/bin/sh", "-c", script, "write", path, f"{mode:o}", owner, input=text.encode())

    def read(self, path: str) -> str:
        """What the file *path* inside holds."""
        return self.run("cat", path).stdout

    def property(self, unit: str, name: str, *options: str, user: str = "root") -> str:
        """The property *name* that systemd knows of *unit*; *options* such as ``--user``."""
        return self.run("systemctl", *options, "show", "--value", "-p", name, unit, user=user).stdout.strip()

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """The entries of the journal of this boot that *matches* choose, oldest first."""
        self.run("journalctl", "--sync")
        lines = self.run("journalctl", "-b", "-q", "-a", "-o", "json", "--no-pager", *matches).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def wait_until(self, predicate: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
        """Wait until *predicate* returns something true, and return that; *what* says in words what is waited for."""
        give_up = time.monotonic() + timeout
        while not (found := predicate()):
            assert time.monotonic() < give_up, f"it never came true that {what}"
            time.sleep(0.05)
        return found

    def _console_end(self) -> str:
        return self.console.read_text(errors="replace")[-6000:]


def clean_up_after_others() -> None:
    """End and remove what processes left that were killed; one process at a time does."""
    place = os.open(_PLACE, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        for group in owned(hierarchy().iterdir(), by_the_dead=True):
            (group / "cgroup.kill").write_text("1")
            remove_group(group)
        for directory in owned([*_PLACE.iterdir(), *_listed(_PROPAGATE)], by_the_dead=True):
            _remove(directory)
    finally:
        os.close(place)


def remains() -> list[str]:
    """Everything outside that was made for machines of this process and is there yet."""
    found = list(map(str, owned([*hierarchy().iterdir(), *_PLACE.iterdir(), *_listed(_PROPAGATE)])))
    ours = f"{PREFIX}{os.getpid()}-"
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if ours in line]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if ours in (command := process.read_text().replace("\0", " ")):
                found.append(f"{process}: {command}")
    return found


def _listed(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _remove(directory: Path) -> None:
    """Unmount what is mounted below *directory* and remove it."""
    for _ in range(3):
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        ours = [mount for mount in mounts if Path(mount).is_relative_to(directory)]
        for mount in reversed(ours):
            subprocess.run(["umount", mount], check=False, capture_output=True)
        if not ours:
            break
        time.sleep(0.1)
    else:
        subprocess.run(["umount", "--lazy", "--recursive", str(directory)], check=False, capture_output=True)
    shutil.rmtree(directory)


def _command(*argv: str) -> None:
    subprocess.run(argv, check=True)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _namespace_pids(pid: int) -> list[int]:
    """*pid* as each namespace it is in numbers it, the innermost last."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def unable() -> str:
    """Why no machine can be booted here; empty if one can."""
    if os.geteuid():
        return f"{pwd.getpwuid(os.geteuid()).pw_name} cannot boot a machine, only root can"
    needed = {"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container", "nsenter": "util-linux"}
    if missing := [package for program, package in needed.items() if shutil.which(program) is None]:
        return f"install {' '.join(missing)}"
    try:
        hierarchy()
    except OSError as error:
        return f"no machine has control groups here: {error}"
    held = int(re.findall(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 16)
    if missing := [name for name, number in _CAPABILITIES.items() if not held >> number & 1]:
        return f"no machine can be booted without {' and '.join(missing)}"
    tried = subprocess.run(["unshare", "--mount", "sh", "-ec", _MOUNTS], check=False, capture_output=True, text=True)
    return f"nothing can be mounted here: {tried.stderr.strip()}" if tried.returncode else ""


_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_MOUNTS: Final = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lower /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
"""
