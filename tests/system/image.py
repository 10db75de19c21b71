# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file systems that test machines are booted from.

A *base* is a Debian with what the packages depend on and what the tests need, made once with debootstrap and kept in
the cache directory under a hash of what went in. On it the session lays a *layer* with the packages under test, the
users and the test servers. Both are read only from then on: every machine writes to a layer of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from tests.system.cgroup import ControlGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROJECT: Final = Path(__file__).parents[2]
SERVERS: Final = Path(__file__).with_name("servers")
DEBS: Final = PROJECT / "build/deb"
SUITE: Final = "trixie"
MIRROR: Final = os.environ.get("MCPD_DEBIAN_MIRROR", "http://deb.debian.org/debian")
BOOTSTRAP: Final = ("systemd", "systemd-sysv", "dbus", "polkitd", "python3", "libpam-systemd", "ca-certificates")
TOOLS: Final = (
    "curl", "dbus-user-session", "git", "libglib2.0-bin", "man-db", "procps", "python3-dbus-next", "python3-pip",
    "sudo",
)  # fmt: skip
"""What the tests themselves use inside."""
PACKAGE_NEEDS: Final = (
    "bubblewrap", "git", "nodejs", "npm", "polkitd", "python3-cryptography", "python3-dbus-next", "python3-httptools",
    "python3-httpx", "python3-msgspec", "python3-pip", "python3-platformdirs", "python3-prettytable",
    "python3-pydantic", "python3-rich", "python3-ruamel.yaml", "python3-tomlkit", "python3-uvicorn", "python3-uvloop",
    "python3-venv", "python3-wcwidth", "xdg-dbus-proxy",
)  # fmt: skip
"""What mcpd depends on, where it is installed from the work tree instead of a package."""
NSPAWN: Final = (
    "systemd-nspawn", "--quiet", "--register=no", "--keep-unit",
    # A machine has these; the filter for containers leaves them out.
    "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self @keyring",
)  # fmt: skip
NSPAWN_ENVIRONMENT: Final = {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
"""Without a writable /proc no sandbox in the machine may have one of its own."""
PASSWORDS: Final = {"alice": "alice", "bob": "bob", "admin": "admin", "carol": "carol"}
GROUPS: Final = {"admin": "sudo", "carol": "mcp"}
_RECIPE: Final = 2
"""Goes up when the way a base is made changes."""


class ImageError(RuntimeError):
    """A file system could not be made; the message holds what the failing program wrote."""


@dataclass(frozen=True, slots=True)
class Packages:
    """What is under test: Debian packages, or without any the work tree, by ``make install``."""

    debs: tuple[Path, ...] = ()

    def needs(self) -> list[str]:
        """Dependencies as apt writes them, without those on one another."""
        if not self.debs:
            return sorted(PACKAGE_NEEDS)
        own = {_field(deb, "Package") for deb in self.debs}
        found = set()
        for deb in self.debs:
            for name in ("Pre-Depends", "Depends", "Recommends"):
                found |= {need.strip() for need in _field(deb, name).split(",")}
        return sorted(need for need in found if need and need.split()[0] not in own)


def packages_under_test() -> Packages:
    """The packages that ``make deb`` left, made now if the sources are newer; ``MCPD_SYSTEM_FROM=tree``: the work tree.

    Raises :class:`ImageError` if they cannot be made.
    """
    if os.environ.get("MCPD_SYSTEM_FROM") == "tree":
        return Packages()
    DEBS.parent.mkdir(exist_ok=True)
    with DEBS.with_name("deb.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _newest_source() > min((deb.stat().st_mtime for deb in DEBS.glob("*.deb")), default=0):
            _run(["make", "-C", str(PROJECT), "deb"])
    debs = tuple(sorted(DEBS.glob("*.deb")))
    if not debs:
        raise ImageError(f"'make deb' left no package in {DEBS}")
    return Packages(debs)


def _newest_source() -> float:
    """When what goes into the packages changed last, by git's list of files."""
    listed = _run(["git", "-C", str(PROJECT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    files = [PROJECT / name for name in listed.split("\0") if name and not name.startswith(("tests/", "bench/"))]
    return max(file.stat().st_mtime for file in files if file.is_file())


@contextmanager
def base(packages: Packages) -> Iterator[Path]:
    """The base for *packages*, made if it is not there yet. While it is in use nobody removes it."""
    content = json.dumps([_RECIPE, SUITE, MIRROR, BOOTSTRAP, TOOLS, packages.needs()])
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcpd/system"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / key
    with (cache / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not root.is_dir():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not root.is_dir():
                _make_base(root, packages)
            fcntl.flock(lock, fcntl.LOCK_SH)  # perhaps after another session, which may remove it again
        _drop_unused(cache, keep=key)
        yield root


def _make_base(root: Path, packages: Packages) -> None:
    making = root.with_name(root.name + ".making")
    if making.exists():
        shutil.rmtree(making)
    _run(["debootstrap", "--variant=minbase", f"--include={','.join(BOOTSTRAP)}", SUITE, str(making), MIRROR])
    (making / "etc/apt/apt.conf.d/99host").write_text(_host_apt())
    (making / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (making / "usr/sbin/policy-rc.d").chmod(0o755)
    (making / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends")
    run_in(making, *apt, "update", network=True)
    run_in(making, *apt, "install", *TOOLS, network=True)
    run_in(making, *apt, "satisfy", *packages.needs(), network=True)
    run_in(making, "apt-get", "clean")
    (making / "usr/sbin/policy-rc.d").unlink()
    # No index of manual pages is made whenever packages come and go.
    (making / "var/lib/man-db/auto-update").unlink(missing_ok=True)
    making.rename(root)


def _host_apt() -> str:
    """How this machine reaches Debian's archive: proxies, certificates and checks of dates."""
    lines = _run(["apt-config", "dump", "Acquire"]).splitlines()
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check-")
    return "".join(f"{line}\n" for line in lines if line.startswith(wanted) and not line.endswith('"";'))


def _drop_unused(cache: Path, keep: str) -> None:
    """Remove other bases that no session uses."""
    for lock in cache.glob("*.lock"):
        if lock.stem == keep:
            continue
        with lock.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            for left in (cache / lock.stem, cache / f"{lock.stem}.making"):
                shutil.rmtree(left, ignore_errors=True)
            lock.unlink()


def furnish(root: Path, packages: Packages) -> None:
    """Install *packages* into *root*, a writable overlay of a base, with the users and the test servers."""
    if packages.debs:
        for deb in packages.debs:
            shutil.copy(deb, root / "root")
        names = [f"/root/{deb.name}" for deb in packages.debs]
        run_in(root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "install", *names)
        for name in names:
            (root / name[1:]).unlink()
    else:
        _run(["make", "-s", "-C", str(PROJECT), "install", f"DESTDIR={root}", "privileged_group=sudo",
              "zshcompletiondir=/usr/share/zsh/vendor-completions"])  # fmt: skip
        run_in(root, "systemd-sysusers")
        run_in(root, "/bin/sh", "-c", _PRESET)
    for user, password in PASSWORDS.items():
        run_in(root, "useradd", "--create-home", "--shell", "/bin/bash", *_groups(user), user)
        run_in(root, "chpasswd", stdin=f"{user}:{password}\n")
        linger = root / "var/lib/systemd/linger" / user
        linger.parent.mkdir(exist_ok=True)
        linger.touch()
    run_in(root, "passwd", "--quiet", "--lock", "root")
    _bring_servers(root)
    # A journal of the machine's own, also for users, that outlives a restart within it.
    (root / "var/log/journal").mkdir(exist_ok=True)


_PRESET: Final = """
cd /usr/lib/systemd/system && systemctl preset $(ls | grep '^mcpd')
cd /usr/lib/systemd/user && systemctl --global preset $(ls | grep '^mcpd')
true
"""


def _groups(user: str) -> list[str]:
    return ["--groups", GROUPS[user]] if user in GROUPS else []


def _bring_servers(root: Path) -> None:
    """Each server as a git repository, as a source tree and as a wheel, on a machine without a network."""
    for place in ("srv/src", "srv/git", "srv/wheels"):
        (root / place).mkdir(parents=True, exist_ok=True)
    for server in sorted(path for path in SERVERS.iterdir() if (path / "pyproject.toml").is_file()):
        name = server.name
        shutil.copytree(server, root / "srv/src" / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SERVERS / "flat_backend.py", root / "srv/src" / name)
        shutil.copytree(root / "srv/src" / name, root / "srv/git" / name)
        git = ("git", "-C", f"/srv/git/{name}", "-c", "user.name=test", "-c", "user.email=test@localhost")
        for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "A server")):
            run_in(root, *git, *words)
        run_in(
            root, "python3", "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "-w", "/srv/wheels",
            f"/srv/src/{name}",
        )  # fmt: skip
    (root / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /srv/wheels\n")


def run_in(root: Path, *argv: str, network: bool = False, stdin: str = "") -> str:
    """Run *argv* as root in the file system *root*, which no machine uses, and return its output."""
    options = ["--private-network"]
    if network:
        options = [f"--bind-ro={file}" for file in ("/etc/resolv.conf", "/etc/hosts")]
        bundle = Path("/etc/ssl/certs/ca-certificates.crt")
        options += [f"--bind-ro={bundle}"] if bundle.exists() and (root / bundle.relative_to("/")).exists() else []
    with ControlGroup() as group:
        return _run(group.entering([*NSPAWN, "--pipe", *options, "-D", str(root), *argv]), stdin=stdin)


def _field(deb: Path, name: str) -> str:
    return _run(["dpkg-deb", "--field", str(deb), name]).strip()


def _run(argv: Sequence[str], stdin: str = "") -> str:
    output: IO[str] | int = subprocess.PIPE
    done = subprocess.run(
        argv, input=stdin, stdout=output, stderr=subprocess.STDOUT, text=True, errors="replace",
        env=os.environ | NSPAWN_ENVIRONMENT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ImageError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout
