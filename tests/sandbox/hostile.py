# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: PTH110, PTH208
"""A stdio server that tries to get out. Prints for each attempt "" if it succeeded, else why it failed."""

import ctypes
import json
import os
import resource
import socket
import subprocess
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
results = {}
given = json.loads(Path("manifest.json").read_text())["config"]


def attempt(name, act):
    try:
        outcome = act()
    except Exception as error:  # noqa: BLE001 - any failure is what is hoped for
        results[name] = f"{type(error).__name__}: {error}"
    else:
        results[name] = "" if outcome is None else str(outcome)


def call(function, *arguments):
    """Call into the C library; raises unless it succeeds."""
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def connect(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(5)
        sock.connect(address)


def shown(path):
    """Succeeds only if *path* can be read and holds something."""
    found = Path(path)
    if not (os.listdir(found) if found.is_dir() else found.read_bytes()):
        raise OSError(f"{path} is empty")


def host_processes():
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if given["host-pid"] not in pids and len(pids) < 10:
        raise OSError(f"only {pids}")


def descriptors():
    names = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    extra = [name for name in names if int(name) > 2]
    if not extra:
        raise OSError("none")


def kernel_setting():
    """Write what is there already: harmless, but it tells."""
    setting = Path("/proc/sys/kernel/core_uses_pid")
    setting.write_text(setting.read_text())


def open_kernel_files():
    """Opens for writing, writes nothing."""
    roots = [Path("/proc", name) for name in ("sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "asound", "driver")]
    for path in (path for root in roots for path in (root, *root.rglob("*"))):
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError:
            continue
        return
    raise OSError("none")


def core_dump():
    if resource.getrlimit(resource.RLIMIT_CORE) == (0, 0):
        raise OSError("never")


def outer_session():
    if os.getsid(0) != 0:
        raise OSError("the session began in here")


def capabilities():
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    if all(int(status[key], 16) == 0 for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")):
        raise OSError("none")


def environment():
    if "HARNESS_SECRET" not in os.environ and not any("HARNESS" in value for value in os.environ.values()):
        raise OSError("clean")


MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18

attempt("control: write to HOME", lambda: Path(os.environ["HOME"], "mine").write_text("x") and None)
attempt("control: write to /tmp", lambda: Path("/tmp/mine").write_text("x") and None)
attempt("control: read own manifest", lambda: shown("manifest.json"))
attempt("control: run a program", lambda: subprocess.run(["ls", "/usr/bin"], check=True, capture_output=True) and None)
attempt("remount / writable", lambda: call("mount", None, b"/", None, MS_REMOUNT, None))
attempt("remount /usr writable", lambda: call("mount", None, b"/usr", None, MS_REMOUNT | MS_BIND, None))
attempt("make mounts private", lambda: call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None))
attempt("mount a tmpfs", lambda: call("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None))
attempt("unmount", lambda: call("umount2", b"/tmp", 2))
attempt("write to /usr", lambda: Path("/usr/mcp-was-here").write_text("x") and None)
attempt("write to /etc", lambda: Path("/etc/mcp-was-here").write_text("x") and None)
attempt("write to /", lambda: Path("/mcp-was-here").write_text("x") and None)
attempt("write to the generation", lambda: Path("server.py").write_text("x") and None)
attempt("write to the manifest", lambda: Path("manifest.json").write_text("x") and None)
attempt("replace the manifest", lambda: Path("manifest.json").unlink())
for name, path in given["paths"].items():
    attempt("read " + name, lambda path=path: shown(path))
attempt("connect to loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", given["port"])))
attempt("connect to an abstract socket", lambda: connect(socket.AF_UNIX, "\0" + given["abstract"]))
attempt("ptrace a host process", lambda: call("ptrace", 16, given["host-pid"], None, None))
attempt("signal a host process", lambda: os.kill(given["host-pid"], 0))
attempt("signal another server", lambda: os.kill(given["other-pid"], 0))
attempt("see host processes", host_processes)
attempt("new user namespace", lambda: call("unshare", 0x10000000))
attempt(
    "new user namespace by unshare(1)",
    lambda: subprocess.run(["unshare", "-U", "true"], check=True, capture_output=True) and None,
)
attempt("new mount namespace", lambda: call("unshare", 0x00020000))
attempt("write a setting of the kernel", kernel_setting)
attempt("open a file of the kernel for writing", open_kernel_files)
attempt("change what the kernel keeps of a process", lambda: Path("/proc/1/oom_score_adj").write_text("0") and None)
attempt("make a device", lambda: os.mknod("/tmp/sda", 0o60666, os.makedev(8, 0)))
attempt("become another user", lambda: os.setuid(12345))
attempt("share a session with the host", outer_session)
attempt("leave a core dump", core_dump)
attempt("inherit descriptors", descriptors)
attempt("keep capabilities", capabilities)
attempt("inherit mcpd's environment", environment)
print(json.dumps(results))
