# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands: what they find and may touch, what is kept of what they say, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidArgument, NotFound, NotSupported, SpawnFailed, TimedOut
from mcpd.servers.commands.keepers import Keeping
from mcpd.servers.workstation.jail import Jail
from mcpd.servers.workstation.processes import Command, Completed
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """A root with a file in a directory."""
    with Workbench(tmp_path) as made:
        (made.root / "directory").mkdir()
        (made.root / "directory" / "file").write_text("inside\n")
        yield made


async def shell(bench: Workbench, script: str, *, seconds: float = 30, **options: object) -> Completed:
    """What a shell does in the directory of *bench*."""
    call = bench.new_call(seconds)
    command = Command(("sh", "-c", script), call.jail.place("directory"), **options)  # type: ignore[arg-type]
    return await call.run(command)


async def test_a_command_runs_where_it_is_told_with_what_it_is_given(bench: Workbench) -> None:
    done = await shell(bench, 'pwd; cat; cat file; echo "$EXTRA" >&2; exit 3', stdin=b"given\n", env={"EXTRA": "more"})
    assert done.code == 3
    assert done.stdout.decode() == f"{bench.root}/directory\ngiven\ninside\n"
    assert done.stderr == b"more\n"
    assert not done.truncated


async def test_a_command_links_and_moves_files_to_other_directories(bench: Workbench) -> None:
    move = "import os; os.link('file', 'other/linked'); os.rename('file', 'other/moved')"
    done = await shell(bench, f'mkdir other && exec /usr/bin/python3 -c "{move}"', writes=True)
    assert done.code == 0, done.stderr
    assert sorted(path.name for path in (bench.root / "directory" / "other").iterdir()) == ["linked", "moved"]


async def test_a_command_ended_by_a_signal(bench: Workbench) -> None:
    assert (await shell(bench, "kill -9 $$")).code == 137


async def test_its_environment_is_its_own(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("LD_PRELOAD_TEST", "x")
    variables = dict(line.split("=", 1) for line in (await shell(bench, "env")).stdout.decode().splitlines())
    assert "SECRET" not in variables
    assert variables["HOME"] == str(bench.settings.state / "home")
    assert variables["LC_ALL"] == "C.UTF-8"
    assert not variables["TMPDIR"].startswith(str(bench.root))


async def test_it_reads_the_roots_only_and_writes_where_it_may(bench: Workbench) -> None:
    before = bench.fingerprint()
    script = f"""
        cat {bench.outside}/secret; ls {bench.home}; ls {Path.home()}; cat /proc/{os.getppid()}/environ >/dev/null
        echo x >{bench.outside}/new; echo x >new; echo x >/etc/new
        ln -s {bench.outside}/secret $TMPDIR/link && cat $TMPDIR/link
        echo x >$TMPDIR/new && echo x >$HOME/new && echo x >/dev/null && echo fine
    """
    done = await shell(bench, script)
    assert done.stdout.decode() == "fine\n"
    assert done.stderr.count(b"ermission denied") + done.stderr.count(b"not permitted") >= 7
    assert bench.fingerprint() == before
    assert not (bench.root / "directory" / "new").exists()


async def test_it_writes_in_the_roots_if_it_may(bench: Workbench) -> None:
    assert (await shell(bench, "mkdir new && echo x >new/file && mv new ../moved", writes=True)).code == 0
    assert (bench.root / "moved" / "file").read_text() == "x\n"


async def test_it_reaches_no_more_than_the_roots_of_its_call(bench: Workbench) -> None:
    (bench.root / "other").mkdir()
    (bench.root / "other" / "file").write_text("inside, but not for this client\n")
    jail = bench.roots_found.narrowed([(bench.root / "directory").as_uri()])
    call = bench.new_call(jail=jail)
    done = await call.run(Command(("sh", "-c", "cat file; cat ../other/file"), jail.place(".")))
    assert done.stdout == b"inside\n"
    assert b"ermission denied" in done.stderr


async def test_it_is_led_nowhere_by_a_symlink_of_its_own(bench: Workbench) -> None:
    done = await shell(bench, "ln -s ../../outside/secret link; cat link", writes=True)
    assert done.stdout == b""
    assert b"ermission denied" in done.stderr


async def test_it_signals_nobody_but_its_own(bench: Workbench) -> None:
    done = await shell(bench, f"kill -0 {os.getpid()} || echo refused; sleep 60 & kill $! && echo ended")
    assert done.stdout == b"refused\nended\n"


async def test_without_allow_network_there_is_none(bench: Workbench) -> None:
    script = "import socket; socket.create_connection(('127.0.0.1', {port}), 10); print('connected')"
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = script.format(port=server.getsockname()[1])
        call = bench.new_call()
        done = await call.run(Command(("python3", "-c", code), call.jail.place(".")))
        assert (done.code, done.stdout) == (1, b"")
        assert b"PermissionError" in done.stderr
        with Workbench.of(bench, allow_network=True) as allowing:
            call = allowing.new_call()
            assert (await call.run(Command(("python3", "-c", code), call.jail.place(".")))).stdout == b"connected\n"


async def test_programs_of_toolchains_come_first(bench: Workbench) -> None:
    chain = bench.directory / "chain"
    (chain / "bin").mkdir(parents=True)
    (chain / "bin" / "git").write_text("#!/bin/sh\necho mine\n")
    (chain / "bin" / "git").chmod(0o755)
    with Workbench.of(bench, toolchains=(chain,)) as made:
        call = made.new_call()
        assert call.which("git") == str(chain / "bin" / "git")
        assert (await call.run(Command(("git",), call.jail.place(".")))).stdout == b"mine\n"


async def test_a_program_that_is_not_there_or_cannot_be_started(bench: Workbench) -> None:
    call = bench.new_call()
    with pytest.raises(NotFound, match=r"no-such-program is not installed; .*toolchains"):
        await call.run(Command(("no-such-program",), call.jail.place(".")))
    with (
        Workbench.of(bench, toolchains=(bench.directory / "gone",)) as made,
        pytest.raises(NotFound, match=r"to toolchains; of these .*/gone is not there"),
    ):
        await made.new_call().run(Command(("no-such-program",), made.jail.place(".")))
    chain = bench.directory / "chain"
    chain.mkdir()
    (chain / "broken").write_bytes(b"\x7fELF nonsense")
    (chain / "broken").chmod(0o755)
    with Workbench.of(bench, toolchains=(chain,)) as made, pytest.raises(SpawnFailed, match="broken cannot be started"):
        await made.new_call().run(Command(("broken",), made.jail.place(".")))


async def test_an_argument_that_cannot_be_one(bench: Workbench) -> None:
    with pytest.raises(InvalidArgument, match="holds NUL"):
        await shell(bench, "echo \0")


async def test_of_much_output_the_head_is_kept_and_the_command_ended(bench: Workbench) -> None:
    done = await shell(bench, "echo first; exec yes", most=1000)
    assert done.truncated
    assert len(done.stdout) == 1000
    assert done.stdout.startswith(b"first\n")


async def test_of_much_output_the_tail_is_kept(bench: Workbench) -> None:
    done = await shell(bench, "yes | head -c 300000; echo last; echo oops >&2", most=1000, keep="tail", merge=True)
    assert (done.code, len(done.stdout), done.truncated) == (0, 1000, True)
    assert done.stdout.endswith(b"last\noops\n")


async def test_lines_are_handed_on_as_they_come(bench: Workbench) -> None:
    lines: list[bytes] = []
    await shell(bench, "printf 'one\\ntwo'; sleep 0.05; printf ' parts\\nlast'", on_line=lines.append)
    assert lines == [b"one", b"two parts", b"last"]


async def test_a_command_that_takes_too_long_is_ended_with_its_tree(bench: Workbench) -> None:
    script = "echo begun; for i in 1 2 3; do (trap '' TERM; sleep 600) & done; sleep 600"
    with pytest.raises(TimedOut, match=r"^Tool execution timeout after 0\.5 s$") as caught:
        await shell(bench, script, seconds=0.5)
    assert caught.value.data == {"output": "begun\n"}
    assert not processes_in(bench)


async def test_a_cancelled_call_ends_its_command(bench: Workbench) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(shell(bench, "echo x; (sleep 600) & sleep 600", on_line=lambda _: begun.set()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not processes_in(bench)


async def test_so_does_one_cancelled_while_it_starts(bench: Workbench) -> None:
    for _ in range(20):
        task = asyncio.create_task(shell(bench, "sleep 600"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not processes_in(bench)


async def test_many_at_once_each_with_its_own_status(bench: Workbench) -> None:
    done = await asyncio.gather(*(shell(bench, f"exit {number}") for number in range(60)))
    assert [each.code for each in done] == list(range(60))


DAEMON = """
import os, sys, time
if os.fork(): sys.exit()
os.setsid()
if os.fork(): os._exit(0)
os.execve("/usr/bin/env", ["env", "-i", "sh", "-c", "echo $$ >daemon; exec sleep 600"], {})
"""


async def test_a_daemon_without_a_trace_ends_with_its_own_call_and_no_other(bench: Workbench) -> None:
    (bench.root / "directory" / "daemon.py").write_text(DAEMON)
    begun = asyncio.Event()
    script = "python3 daemon.py; while ! test -s daemon; do sleep 0.01; done; echo x; sleep 600"
    task = asyncio.create_task(shell(bench, script, writes=True, on_line=lambda _: begun.set()))
    await begun.wait()
    for _ in range(3):
        await shell(bench, "true")
    pid = int((bench.root / "directory" / "daemon").read_text())
    os.kill(pid, 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_becomes_another_process_all_the_time_ends_too(bench: Workbench) -> None:
    hopping = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n os.fork() and os._exit(0)"
    )
    (bench.root / "directory" / "hop.py").write_text(hopping)
    with pytest.raises(TimedOut):
        await shell(bench, "python3 hop.py; sleep 600", seconds=0.5)
    assert not processes_in(bench)


async def test_a_command_does_not_get_rid_of_its_keeper(bench: Workbench) -> None:
    done = await shell(bench, "kill -9 $PPID || echo refused; kill -STOP $PPID || echo refused")
    assert (done.code, done.stdout) == (0, b"refused\nrefused\n")


async def test_no_terminal_and_no_shared_memory_of_others(bench: Workbench) -> None:
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    shared = Path("/dev/shm") / f"workstation-{os.getpid()}"
    shared.write_text("mine\n")
    try:
        done = await shell(bench, f"cat <{name}; echo x >{name}; cat {shared}; echo x >{shared}")
    finally:
        shared.unlink()
        os.close(ours)
        os.close(theirs)
    assert done.stdout == b""
    assert done.stderr.count(b"ermission denied") == 4


OFFLINE = """
import socket
for family, kind, protocol in ((2, 1, 0), (2, 2, 0), (2, 1, 262), (10, 1, 0), (10, 2, 0)):
    try:
        socket.socket(family, kind, protocol)
    except OSError as error:
        print(type(error).__name__)
socket.socket(socket.AF_UNIX).close()
socket.socketpair()
print("fine")
"""


@pytest.mark.skipif(os.uname().machine not in {"x86_64", "aarch64"}, reason="system calls are not known")
async def test_without_allow_network_there_is_no_such_socket(bench: Workbench) -> None:
    call = bench.new_call()
    done = await call.run(Command(("python3", "-c", OFFLINE), call.jail.place(".")))
    assert done.stdout.decode().split() == ["PermissionError"] * 5 + ["fine"]


async def test_many_at_once_each_with_its_own_output(bench: Workbench) -> None:
    done = await asyncio.gather(*(shell(bench, f"echo {number}; sleep 0.01; echo {number}") for number in range(40)))
    assert [each.stdout.decode().split() for each in done] == [[str(number)] * 2 for number in range(40)]


async def test_no_descriptor_is_left(bench: Workbench) -> None:
    await shell(bench, "true")
    gc.collect()  # else descriptors of earlier tests may be closed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        await shell(bench, "echo x; echo y >&2", stdin=b"x")
        with pytest.raises(NotFound):
            await bench.new_call().run(Command(("no-such-program",), bench.jail.place(".")))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_no_roots_no_command(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        call = bench.new_call(jail=Jail((), hint="set roots", state=tmp_path))
        with pytest.raises(Exception, match="set roots"):
            await call.run(Command(("true",), call.jail.place(".")))


def processes_in(bench: Workbench) -> list[int]:
    """The processes whose directory is in that of *bench*."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = each.readlink()
        except OSError:
            continue
        if where.is_relative_to(bench.directory):
            found.append(int(each.parent.name))
    return found


@pytest.fixture
def _without_landlock(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel, or a container, that has none."""
    code = "from mcpd.servers import landlock; landlock.version = lambda: -1"
    python = bench.directory / "python"
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} -I -B -c '{code}; from mcpd.servers.commands import keeper; keeper.main()'\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("_without_landlock")
async def test_where_the_kernel_cannot_hold_it_no_command_runs(bench: Workbench) -> None:
    with pytest.raises(NotSupported, match=r"sh is not run: .*Landlock"):
        await shell(bench, "echo >new", writes=True)


@pytest.mark.usefixtures("_without_landlock")
async def test_but_for_mcpds_sandbox_that_shows_nothing_else(bench: Workbench) -> None:
    with Workbench.of(bench, confined=True) as confined:
        assert (await shell(confined, "cat file")).stdout == b"inside\n"
        jail = confined.roots_found.narrowed([(bench.root / "directory").as_uri()])
        with pytest.raises(NotSupported, match="Landlock"):
            await confined.new_call(jail=jail).run(Command(("true",), jail.place(".")))
        whole = confined.roots_found.narrowed([bench.directory.as_uri()])
        assert (await confined.new_call(jail=whole).run(Command(("true",), whole.place(".")))).code == 0


async def test_a_keeper_that_ends_while_it_is_told_to_is_heard() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    keeping = Keeping(ours)
    keeping.terminate()
    theirs.send(b'{"code": 0, "left": false}')
    theirs.close()
    await keeping.done.wait()
    assert keeping.said == {"code": 0, "left": False}
    keeping.close()
