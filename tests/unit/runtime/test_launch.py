# SPDX-License-Identifier: LGPL-2.1-or-later
"""The launch protocol on real processes (docs/launch-protocol.md)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import LimitExceeded, SandboxUnavailable, SpawnFailed
from mcpd.runtime import mounts
from mcpd.runtime.exec import confined
from mcpd.runtime.exec.wire import Failure, Request
from mcpd.runtime.launch import Bus, ForeignProcess, LaunchSpec, Leash, Mount, MountKind, Overlay
from mcpd.runtime.launchers import EXEC_FILE, PlainLauncher, exec_command
from tests.sandbox.world import NOBODY, PYTHON, Client

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.process

BASE = tuple(mounts.base(network=False, home="/tmp", runtime_dir="/run/user/0", system=False))


def spec(*argv: str, **fields: object) -> LaunchSpec:
    given = {"cwd": "/tmp", "env": {"PATH": "/usr/bin:/bin"}, "mounts": BASE, "network": False, "manifest": None}
    return LaunchSpec(id="test", argv=argv, **(given | fields))  # type: ignore[arg-type]


def script(program: str, **fields: object) -> LaunchSpec:
    return spec(PYTHON, "-IS", "-c", program, **fields)


async def output(given: LaunchSpec, *, stderr: bool = False) -> tuple[bytes, int, str]:
    client = Client(stderr=stderr)
    try:
        leash = await PlainLauncher().launch(given, client.fds)
        client.started()
        data = await client.read()
        ended = await leash.wait()
        if stderr:
            return await asyncio.to_thread(os.read, client.error_end, 65536), ended.code, ended.stderr_tail
        return data, ended.code, ended.stderr_tail
    finally:
        client.close()


async def test_program_gets_exactly_its_arguments_environment_and_directory() -> None:
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
    tricky = ("", " ", "a\nb", "--", "--help", "é\u2028", "'\"$(id)")
    given = replace(script(program), env={"PATH": "/usr/bin", "EMPTY": "", "TEXT": "x\ny=é"})
    data, code, _ = await output(replace(given, argv=(*given.argv, *tricky)))
    argv, env, cwd = json.loads(data)
    assert (tuple(argv), cwd, code) == (tricky, "/tmp", 0)
    assert {key: value for key, value in env.items() if key not in {"PWD", "LC_CTYPE"}} == given.env


async def test_only_the_passed_descriptors_are_inherited() -> None:
    leaked = os.open("/", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    program = "import os; print([n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)])"
    overlay = Overlay("/etc/os-release", b"private")
    data, code, _ = await output(script(program, manifest=overlay))
    os.close(leaked)
    assert (sorted(eval(data)), code) == (["0", "1", "2"], 0)


async def test_private_manifest_is_seen_inside_only(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("public")
    given = script(
        "print(open('manifest.json').read())",
        cwd=str(tmp_path),
        mounts=(*BASE, mounts.bind(tmp_path)),
        manifest=Overlay(f"{tmp_path}/manifest.json", b"secret" * 100_000),
    )
    data, _, tail = await output(given)
    assert data == b"secret" * 100_000 + b"\n", tail
    assert (tmp_path / "manifest.json").read_text() == "public"


@pytest.mark.parametrize("parent", ["/tmp", "/var/tmp"])
async def test_directories_below_the_private_ones_can_be_mounted(parent: str) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        (Path(directory) / "file").write_text("mounted")
        given = spec("/bin/cat", f"{directory}/file", mounts=(*BASE, Mount(MountKind.RO_BIND, directory, directory)))
        assert (await output(given))[0] == b"mounted"


async def test_secret_in_the_environment_is_on_no_command_line() -> None:
    client = Client()
    leash = await PlainLauncher().launch(spec("sleep", "600", env={"PATH": "/usr/bin", "KEY": "s3cr3t"}), client.fds)
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout
    await leash.stop()
    client.close()
    assert b"sleep 600" in lines
    assert b"s3cr3t" not in lines


@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize("stderr", [True, False])
async def test_missing_command_is_named(confined: bool, stderr: bool) -> None:
    with pytest.raises(SpawnFailed, match="no-such-program cannot be executed") as caught:
        await output(spec("no-such-program", confined=confined), stderr=stderr)
    assert type(caught.value) is SpawnFailed


@pytest.mark.parametrize("stderr", [True, False])
async def test_sandbox_that_cannot_be_built_says_what_bubblewrap_says(stderr: bool) -> None:
    broken = (*BASE, Mount(MountKind.SYMLINK, "/usr/cannot/be/made", "x"))
    with pytest.raises(SandboxUnavailable, match=r"the sandbox cannot be built: .*/usr/cannot"):
        await output(spec("true", mounts=broken), stderr=stderr)


async def test_missing_working_directory_fails() -> None:
    with pytest.raises(SandboxUnavailable, match="/missing"):
        await output(spec("true", cwd="/missing"))
    with pytest.raises(SpawnFailed, match="/missing"):
        await output(spec("true", cwd="/missing", confined=False))


async def test_mount_swapped_for_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "granted").symlink_to("secret")
    swapped = Mount(MountKind.RO_BIND, f"{tmp_path}/granted", f"{tmp_path}/granted")
    below = Mount(MountKind.RO_BIND, "/x", f"{tmp_path}/granted/.")
    for mount in (swapped, below):
        with pytest.raises(SandboxUnavailable, match="symlink"):
            await output(spec("true", mounts=(*BASE, mount)))


@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize(("program", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)])
async def test_exit_status_is_reported(confined: bool, program: str, code: int) -> None:
    assert (await output(spec("sh", "-c", program, confined=confined)))[1] == code


async def test_ending_before_anybody_looks_still_counts_as_started() -> None:
    launched = await asyncio.gather(*(PlainLauncher().launch(spec("true"), {}) for _ in range(10)))
    assert [(await leash.wait()).code for leash in launched] == [0] * 10
    assert all(leash.pid > 1 for leash in launched)


async def test_stderr_tail_keeps_the_last_64_kib() -> None:
    program = "import sys\nfor n in range(200000): sys.stderr.write(f'line {n}\\n')\nsys.stderr.write('no newline')"
    data, code, tail = await output(script(program))
    assert (data, code) == (b"", 0)
    assert len(tail) == 64 * 1024
    assert tail.endswith("line 199999\nno newline")


async def test_given_stderr_is_passed_through() -> None:
    data, code, tail = await output(script("import sys; print('mine', file=sys.stderr)"), stderr=True)
    assert (data, code, tail) == (b"mine\n", 0, "")


async def test_garbage_on_stdout_and_stderr_is_left_alone() -> None:
    program = "import os; os.write(1, bytes(range(256))); os.write(2, b'\\xff\\x00\\n')"
    data, code, tail = await output(script(program))
    assert (data, code, tail) == (bytes(range(256)), 0, "\ufffd\0\n")


async def test_stdin_end_reaches_the_program_at_once() -> None:
    client = Client()
    leash = await PlainLauncher().launch(spec("cat"), client.fds)
    client.started()
    os.write(client.write_end, b"hello\n")
    assert await asyncio.to_thread(os.read, client.read_end, 6) == b"hello\n"
    os.close(client.write_end)
    client.write_end = -1
    ended = await leash.wait()
    assert (ended.code, ended.hangup) == (0, True)
    client.close()


async def test_crash_is_told_from_a_client_that_hung_up() -> None:
    client = Client()
    leash = await PlainLauncher().launch(spec("sh", "-c", "exit 4"), client.fds)
    assert (await leash.wait()).hangup is False
    client.close()


async def test_launch_line_over_one_mebibyte_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="1048576"):
        await output(spec("true", "x" * 1024 * 1024))


async def test_long_launch_line_arrives_whole() -> None:
    env = {f"VARIABLE_{n}": "x" * 1000 for n in range(800)}
    data, code, tail = await output(script("import os; print(sum(map(len, os.environ.values())) >= 800000)", env=env))
    assert (data, code) == (b"True\n", 0), tail


async def test_cancelled_launch_leaves_nothing() -> None:
    client = Client()
    launching = asyncio.create_task(PlainLauncher().launch(spec("sleep", "600"), client.fds))
    await asyncio.sleep(0)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text() == ""
    client.started()
    assert await client.read() == b""
    client.close()


def _talk_raw(data: bytes, fds: Sequence[int] = (), command: tuple[str, ...] = ()) -> dict[str, dict[str, str]]:
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen([*exec_command(), *command], stdin=theirs.fileno()) as process:
        theirs.close()
        socket.send_fds(ours, [data[:4096]], list(fds))
        ours.sendall(data[4096:])
        ours.shutdown(socket.SHUT_WR)
        answer = ours.makefile().readline()
        process.wait(30)
    return json.loads(answer)


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"garbage\n", b"[]\n", b"{}\n", b'{"v":1}\n', b"no newline", b'{"v":1,"id":3,"argv":[]}\n', b"\xff\n"],
)
def test_request_that_is_none_is_refused(data: bytes) -> None:
    answer = _talk_raw(data or b" ")
    assert answer["error"]["name"] == "SpawnFailed"


def test_unknown_protocol_version_is_refused() -> None:
    line = json.loads(spec("true").to_line(())) | {"v": 2}
    answer = _talk_raw(json.dumps(line).encode() + b"\n")
    assert "launch protocol 2" in answer["error"]["message"]


def test_descriptors_must_match_the_line() -> None:
    answer = _talk_raw(spec("true").to_line((0, 1)), [0])
    assert "does not match" in answer["error"]["message"]
    answer = _talk_raw(spec("true").to_line((5,)), [0])
    assert "does not match" in answer["error"]["message"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_leash_held_by_another_user_is_refused() -> None:
    answer = _talk_raw(spec("true").to_line(()), command=("nobody",))
    assert answer["error"]["message"] == f"the leash is held by uid 0, but only mcpd (uid {NOBODY}) may hold it"


def test_mcpd_exec_loads_nothing_slow() -> None:
    program = (
        f"import sys; sys.path.append({str(EXEC_FILE.parents[3])!r}); import mcpd.runtime.exec.supervisor;"
        "print(sorted({'json', 're', 'socket', 'signal', 'enum', 'subprocess', 'asyncio', 'typing', 'ctypes',"
        " 'pathlib', 'contextlib', 'pydantic'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-IS", "-c", program], capture_output=True, check=True, text=True)
    assert found.stdout == "[]\n"


async def test_leash_is_adopted_by_a_later_mcpd() -> None:
    ours, theirs = socket.socketpair()
    client = Client()
    with subprocess.Popen(exec_command(), stdin=theirs.fileno()) as process:
        theirs.close()
        first = await Leash.start(ours, spec("cat"), client.fds, ForeignProcess())
        kept = socket.socket(fileno=os.dup(first.fileno()))
        assert first._answers.transport is not None
        first._answers.transport.abort()  # what the end of the first mcpd does
        adopted = await Leash.adopt(kept, first.pid, first.unit)
        assert adopted.pid == first.pid
        client.started()
        ended = await adopted.stop()
        assert ended.code == 143
        await asyncio.to_thread(process.wait)
    client.close()


def test_last_words_that_nobody_reads_keep_nothing_running() -> None:
    ours, theirs = socket.socketpair()
    # Escaped, 64 KiB of it are more than a socket holds.
    program = spec("/usr/bin/python3", "-c", "import sys; sys.stderr.write('\\x01' * 65536)")
    with subprocess.Popen(exec_command(), stdin=theirs.fileno()) as process, ours:
        theirs.close()
        ours.sendall(program.to_line(()))
        assert process.wait(30) == 0


THREADED = """
import ctypes, os, threading, time
def child():
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).pthread_exit(None)
if os.fork() == 0:
    child()
time.sleep(0.5)
"""


async def test_a_process_whose_first_thread_has_ended_is_ended_too() -> None:
    launched = replace(spec("/usr/bin/python3", "-c", THREADED), confined=False, mounts=())
    client = Client()
    leash = await PlainLauncher().launch(launched, client.fds)
    async with asyncio.timeout(120):
        assert (await leash.wait()).code == 0
    client.close()


async def test_a_process_that_cannot_be_watched_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        with pytest.raises(SpawnFailed, match="Too many open files"):
            await PlainLauncher().launch(spec("true"), {})
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def test_no_proxy_is_left_where_bubblewrap_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/xdg-dbus-proxy").symlink_to("/usr/bin/xdg-dbus-proxy")
    monkeypatch.setattr(os, "defpath", str(tmp_path / "bin"))
    bus = Bus(("talk:org.test.A",), f"unix:path={tmp_path}/no-bus", str(tmp_path / "proxy"), "/tmp/bus")
    with pytest.raises(SandboxUnavailable, match="bubblewrap is missing"):
        await PlainLauncher().launch(spec("true", bus=bus), {})
    assert not (tmp_path / "proxy").exists()


async def test_a_proxy_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "xdg-dbus-proxy").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "xdg-dbus-proxy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(confined, "PROXY_TIMEOUT", 0.1)
    bus = {"address": f"unix:path={tmp_path}/no-bus", "proxy": str(tmp_path / "proxy"), "socket": "/tmp/bus"}
    line = {"v": 1, "id": "test", "argv": ["true"], "cwd": "/", "env": {}, "permissions": [], "mounts": [],
            "manifest": None, "confined": True, "bus": bus, "fds": []}  # fmt: skip
    tree = confined.Confined(Request(line, []), 2)
    with pytest.raises(Failure, match=r"xdg-dbus-proxy was not ready within 0\.1 s"):
        tree.start()
    os.kill(tree._proxy, signal.SIGKILL)
    os.waitpid(tree._proxy, 0)
