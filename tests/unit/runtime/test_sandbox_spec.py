# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a server gets: files, variables, arguments, seen from inside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidConfig, InvalidManifest, SpawnFailed
from mcpd.paths import Scope
from mcpd.runtime.calls import Access
from mcpd.runtime.launch import MountKind
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.run import run
from mcpd.runtime.sandbox import build_spec, server_spec
from mcpd.settings import RuntimeSettings, Settings
from tests.sandbox.world import PYTHON, talk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.sandbox.world import World

pytestmark = pytest.mark.process

REPORT = """
import json, os, sys
def seen(path):
    try: return sorted(os.listdir(path)) if os.path.isdir(path) else open(path).read()
    except OSError as error: return error.strerror
def writable(path):
    if path.startswith("/dev"): return False
    try: open(os.path.join(path, "probe"), "w").close(); return True
    except OSError: return False
paths = json.load(open("manifest.json")).get("config", {}).get("look", [])
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(),
    "seen": {p: seen(p) for p in paths}, "writable": {p: writable(p) for p in paths}}))
"""


async def report(world: World, *, look: Sequence[object] = [], environment: dict[str, str] = {}, **fields: Any) -> Any:  # noqa: B006
    values = {**fields.pop("values", {}), "look": [str(path) for path in look]}
    settings = fields.pop("runtime_settings", {})
    world.install("server", REPORT, values=values, **fields)
    sessions = world.sessions(scope=fields.get("scope", Scope.USER), **settings)
    output, ended, _ = await talk(sessions, "server", environment=environment)
    assert ended.code == 0, ended.stderr_tail
    return json.loads(output)


async def refusal(world: World, *permissions: str, **fields: Any) -> str:
    world.install("server", REPORT, permissions=list(permissions), **fields)
    with pytest.raises((InvalidManifest, SpawnFailed)) as caught:
        await talk(world.sessions(scope=fields.get("scope", Scope.USER)), "server")
    return f"{type(caught.value).__name__}: {caught.value.message}"


async def test_cwd_is_the_install_directory_and_state_is_home(world: World) -> None:
    server = world.install("server")
    state = world.paths.user.state / "server"
    found = await report(
        world, look=[server.directory, server.generation, state, world.paths.user.installed, "/", "/etc"]
    )
    assert found["cwd"] == str(server.generation)
    assert found["env"]["HOME"] == str(state)
    assert found["env"]["MCPD_CONFINED"] == "1"
    assert found["seen"][str(server.directory)] == ["manifest.json", "server.py"]
    assert found["seen"][str(world.paths.user.installed)] == ["server"]
    assert {path for path in (server.generation, state, "/", "/etc") if found["writable"][str(path)]} == {state}
    assert (state / "probe").exists()
    assert "home" not in found["seen"]["/"]
    assert {"passwd", "group", "ld.so.cache", "nsswitch.conf"} <= set(found["seen"]["/etc"])
    assert not {"shadow", "machine-id", "resolv.conf", "ssl", "ssh"} & set(found["seen"]["/etc"])


OPENED = """
import os
home = os.environ["HOME"]
print(oct(os.stat(home).st_mode & 0o7777), flush=True)
os.chmod(home, 0o777)
with open(home + "/offered", "w") as file:
    os.chmod(file.fileno(), 0o666)
"""


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize("before", [None, 0o755, 0o777], ids=["new", "0755", "0777"])
async def test_nobody_else_reaches_the_state_whatever_a_server_makes_of_its_own(
    world: World, umask: int, before: int | None
) -> None:
    state = world.paths.user.state
    world.install("server", OPENED)
    if before is not None:
        (state / "server").mkdir(parents=True)
        for directory in (state, state / "server"):
            directory.chmod(before)
    previous = os.umask(umask)
    try:
        for _ in range(2):
            output, ended, _ = await talk(world.sessions(), "server")
            assert ended.code == 0, ended.stderr_tail
            assert output == b"0o700\n"
            assert stat.S_IMODE(state.stat().st_mode) == 0o700
    finally:
        os.umask(previous)
    assert stat.S_IMODE((state / "server").stat().st_mode) == 0o777


async def test_python_runs_nothing_that_lies_in_the_state_directory(world: World) -> None:
    site = world.paths.user.state / f"server/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    (site / "usercustomize.py").write_text("import os; os.environ['PLANTED'] = 'ran'")
    found = await report(world, env={"PYTHONNOUSERSITE": ""}, environment={"PYTHONNOUSERSITE": ""})
    assert "PLANTED" not in found["env"]
    built = build_spec("x", ["true"], world.paths.home, [], [], False, {"PYTHONNOUSERSITE": ""}, paths=world.paths)
    assert built.env["PYTHONNOUSERSITE"] == "1"


async def test_private_manifest_has_the_values(world: World) -> None:
    server = world.install("server")
    found = await report(world, look=[server.generation / "manifest.json"], values={"key": "s3cr3t"})
    assert json.loads(found["seen"][f"{server.generation}/manifest.json"])["config"]["key"] == "s3cr3t"
    assert "s3cr3t" not in (server.generation / "manifest.json").read_text()


async def test_environment_comes_in_layers(world: World) -> None:
    found = await report(
        world,
        environment={
            "FROM_CALLER": "1",
            "TOKEN": "caller",
            "LEVEL": "caller",
            "LD_PRELOAD": "/evil.so",
            "HOME": "/evil",
        },
        env={"LEVEL": "manifest", "URL": "http://{config.host}/", "UNSET": "{config.absent}"},
        configurableProperties=[
            {"key": "TOKEN", "target": "env", "sensitive": True},
            {"key": "DEBUG", "target": "env"},
        ],
        values={"TOKEN": "configured", "DEBUG": True, "host": "example.org"},
    )
    env = found["env"]
    assert {
        name: env.get(name) for name in ("FROM_CALLER", "TOKEN", "LEVEL", "URL", "DEBUG", "UNSET", "LD_PRELOAD")
    } == {
        "FROM_CALLER": "1",
        "TOKEN": "configured",
        "LEVEL": "manifest",
        "URL": "http://example.org/",
        "DEBUG": "true",
        "UNSET": None,
        "LD_PRELOAD": None,
    }
    assert env["HOME"] == str(world.paths.user.state / "server")
    assert "SSL_CERT_FILE" not in env


async def test_system_scope_inherits_nothing(world: World) -> None:
    found = await report(world, scope=Scope.SYSTEM, environment={"FROM_CALLER": "1"})
    assert "FROM_CALLER" not in found["env"]
    assert found["env"]["HOME"] == str(world.paths.system.state / "server")


async def test_arguments_are_filled_in_and_appended(world: World) -> None:
    found = await report(
        world,
        transports=[
            {"type": "stdio", "command": PYTHON, "args": ["server.py", "--root", "{config.roots}", "{config.no}"]}
        ],
        configurableProperties=[
            {"key": key, "target": "arg"} for key in ("roots", "name", "many", "on", "off", "no", "number")
        ],
        values={"roots": ["/a", "/b c"], "name": "x=y", "many": ["1", "2"], "on": True, "off": False, "number": 5},
    )
    assert found["argv"] == ["--root", "/a", "/b c", "--name=x=y", "--many=1", "--many=2", "--on", "--number=5"]


async def test_filesystem_permissions_open_what_they_name(world: World) -> None:
    home = world.paths.home
    for name in ("read", "write/below", "closed", "real"):
        (home / name).mkdir(parents=True)
    (home / "file").write_text("text")
    (home / "link").symlink_to("real")
    look = [home / name for name in ("read", "write", "closed", "real", "link", "file", "write/below", "missing")]
    found = await report(
        world,
        look=look,
        permissions=[
            "filesystem:ro:~/read",
            "filesystem:rw:{config.roots}",
            f"filesystem:ro:{home}/file",
            "filesystem:ro:~/link",
            "filesystem:ro:~/missing",
            "filesystem:rw:~/closed?yes",
        ],
        values={"roots": [str(home / "write")], "yes": False},
    )
    assert found["writable"] == {str(path): path.name in {"write", "below"} for path in look}
    seen = {Path(path).name: what for path, what in found["seen"].items()}
    assert seen["read"] == seen["real"] == seen["link"] == []
    assert seen["file"] == "text"
    assert seen["closed"] == seen["missing"] == "No such file or directory"


async def test_a_path_of_a_list_that_is_missing_is_skipped(world: World) -> None:
    home = world.root / "home"
    (home / "there").mkdir()
    (home / "file").touch()
    (home / "loop").symlink_to(home / "loop")
    listed = [home / "there", home / "missing", home / "file/below", home / "loop"]
    found = await report(
        world,
        look=listed,
        permissions=["filesystem:rw:{config.roots}"],
        values={"roots": [str(path) for path in listed]},
    )
    assert found["writable"] == {str(path): path.name == "there" for path in listed}


@pytest.mark.parametrize(
    ("permission", "scope", "said"),
    [
        ("filesystem:ro:relative", Scope.USER, "InvalidManifest.*absolute"),
        ("filesystem:ro:~/../x", Scope.USER, "InvalidManifest.*'..'"),
        ("filesystem:ro:~root/x", Scope.USER, "InvalidManifest.*absolute"),
        ("filesystem:rw:~/missing", Scope.USER, "SpawnFailed.*does not exist"),
        ("filesystem:ro:~/x", Scope.SYSTEM, "InvalidManifest.*no home"),
        ("filesystem:ro:/", Scope.USER, "InvalidManifest.*cannot be granted"),
        ("filesystem:ro:/proc/1", Scope.USER, "InvalidManifest.*cannot be granted"),
        ("filesystem:rw:/sys", Scope.USER, "InvalidManifest.*cannot be granted"),
        ("filesystem:ro:/run/dbus", Scope.USER, "InvalidManifest.*never shown"),
        ("filesystem:rw:~/.config/mcp", Scope.USER, "InvalidManifest.*filesystem:ro"),
        ("filesystem:rw:~/.local/share/mcp/installed", Scope.USER, "InvalidManifest.*filesystem:ro"),
        ("filesystem:rx:/x", Scope.USER, "InvalidManifest.*is not a permission"),
        ("session-bus:talk:org.x.Y", Scope.SYSTEM, "InvalidManifest.*no session bus"),
        ("session-bus:talk:org.freedesktop.systemd1", Scope.USER, "InvalidManifest.*starts any program"),
        ("session-bus:talk:org.freedesktop.*", Scope.USER, "InvalidManifest.*starts any program"),
        ("mcp", Scope.USER, "SpawnFailed.*no bridge"),
        ("mcp:other", Scope.USER, "SpawnFailed.*no bridge"),
    ],
)
async def test_permission_that_cannot_be_granted_is_refused(
    world: World, permission: str, scope: Scope, said: str
) -> None:
    for path in (world.paths.user.settings.parent, Path("/run/dbus")):
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
    if permission.endswith("/run/dbus") and not Path("/run/dbus").exists():
        pytest.skip("no /run/dbus here and no right to make it")
    message = await refusal(world, permission, scope=scope)
    assert re.match(said, message), message


async def test_network_brings_the_files_it_needs(world: World) -> None:
    found = await report(world, permissions=["network"], look=["/etc"])
    wanted = {name for name in ("resolv.conf", "hosts", "ssl", "nsswitch.conf") if Path("/etc", name).exists()}
    assert wanted <= set(found["seen"]["/etc"])
    if Path("/etc/ssl/certs/ca-certificates.crt").exists():
        assert found["env"]["NODE_EXTRA_CA_CERTS"] == "/etc/ssl/certs/ca-certificates.crt"


async def test_devices_show_the_hosts(world: World) -> None:
    host = sorted(path.name for path in Path("/dev").iterdir())
    assert (await report(world, look=["/dev"], permissions=["devices"]))["seen"]["/dev"] == host
    assert set((await report(world, look=["/dev"]))["seen"]["/dev"]) < set(host) | {"core", "console"}


async def test_mcp_socket_is_bound_when_granted(world: World) -> None:
    asked: list[object] = []
    door_directory = world.root / "door"
    door_directory.mkdir()
    server = world.install("server", permissions=["mcp:a", "mcp:b"])

    def door(server_id: str, allowed: tuple[str, ...]) -> Access:
        asked.append((server_id, allowed))
        return Access(door_directory, "the pass")

    spec = server_spec(
        server,
        world.launch_manifest("server"),
        paths=world.paths,
        scope=Scope.USER,
        settings=Settings(),
        mcp_socket=door,
    )
    assert asked == [("server", ("a", "b"))]
    inside = Path(spec.env["MCPD_SOCKET"]).parent
    assert [m.source for m in spec.mounts if m.target == str(inside)] == [str(door_directory)]
    assert spec.env["MCPD_SOCKET_TOKEN"] == "the pass"


async def test_program_of_a_venv_elsewhere_is_found(world: World) -> None:
    """A venv in the generation whose interpreter lies outside of /usr: the prefix is shown, and nothing beside it."""
    server = world.install("server", REPORT)
    prefix = world.root / "opt/python"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    (prefix / "bin/python3.x").symlink_to(os.path.realpath(PYTHON))
    (prefix / "bin/python").symlink_to("python3.x")
    (prefix.parent / "beside").write_text("x")
    venv = server.generation / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(prefix / "bin/python")
    (venv / "bin/tool").write_text(f"#!{venv}/bin/python -IS\n{REPORT}")
    (venv / "bin/tool").chmod(0o755)
    (venv / "pyvenv.cfg").write_text(f"home = {prefix}/bin\n")
    found = await report(
        world, look=[prefix, prefix.parent], transports=[{"type": "stdio", "command": "tool", "args": ["x"]}]
    )
    assert found["argv"] == ["x"]
    assert found["seen"] == {str(prefix): ["bin", "lib"], str(prefix.parent): ["python"]}
    assert not found["writable"][str(prefix)]


async def test_interpreter_in_a_home_shows_no_more_than_itself(world: World) -> None:
    (world.paths.home / "bin").mkdir()
    (world.paths.home / "bin/python").symlink_to(os.path.realpath(PYTHON))
    (world.paths.home / "diary").write_text("x")
    command = f"{world.paths.home}/bin/python"
    found = await report(
        world,
        look=[world.paths.home],
        transports=[{"type": "stdio", "command": command, "args": ["-IS", "server.py"]}],
    )
    assert "diary" not in found["seen"][str(world.paths.home)]


async def test_without_a_sandbox_the_server_still_runs(world: World) -> None:
    found = await report(world, runtime_settings={"sandbox": "off"})
    assert found["env"]["HOME"] == str(world.paths.user.state / "server")


@pytest.mark.parametrize(("target", "refused"), [("manifest", True), ("header", True), ("env", False)])
def test_without_a_sandbox_a_secret_in_the_manifest_is_refused(world: World, target: str, refused: bool) -> None:
    server = world.install(
        "server",
        configurableProperties=[{"key": "key", "sensitive": True, "target": target}],
        values={"key": "s3cr3t"},
    )
    settings = Settings(runtime=RuntimeSettings(sandbox="off"))
    launch = world.launch_manifest("server")
    expectation = pytest.raises(InvalidConfig, match="requires the sandbox") if refused else contextlib.nullcontext()
    with expectation as caught:
        spec = server_spec(server, launch, paths=world.paths, scope=Scope.USER, settings=settings)
        assert not spec.confined
    assert "s3cr3t" not in str(caught.value if caught else "")


def test_spec_shows_no_secret_when_printed(world: World) -> None:
    server = world.install("server", values={"key": "s3cr3t"}, env={"KEY": "{config.key}"})
    launch = world.launch_manifest("server")
    spec = server_spec(server, launch, paths=world.paths, scope=Scope.USER, settings=Settings())
    assert spec.env["KEY"] == "s3cr3t"
    assert "s3cr3t" not in repr(spec) + repr(launch)


def build(world: World, *argv: str, **options: Any) -> Any:
    given: dict[str, Any] = {
        "writable": [world.root / "staging"],
        "readable": [],
        "network": False,
        "env": {},
        "paths": world.paths,
    }
    (world.root / "staging").mkdir(exist_ok=True)
    return build_spec("server", argv, world.root / "staging", **(given | options))


async def test_build_step_writes_to_staging_only(world: World) -> None:
    (world.paths.home / "project").mkdir()
    program = (
        "import os, sys\n"
        "for path in (sys.argv[1], sys.argv[2], os.environ['HOME'], '/usr'):\n"
        "    try: open(path + '/made', 'w').close(); print('yes')\n"
        "    except OSError: print('no')\n"
    )
    project = world.paths.home / "project"
    spec = build(world, PYTHON, "-IS", "-c", program, ".", str(project), readable=[project])
    done = await run(PlainLauncher(), spec, timeout=120)
    assert done.stdout.split() == [b"yes", b"no", b"yes", b"no"], done
    assert (world.root / "staging/made").exists()


async def test_build_step_runs_an_interpreter_outside_usr(world: World) -> None:
    spec = build(world, sys.executable, "-IS", "-c", "print('ran')")
    assert (await run(PlainLauncher(), spec, timeout=120)).stdout == b"ran\n"


async def test_build_step_sees_no_secrets_in_what_it_may_read(world: World) -> None:
    world.paths.user.secrets.mkdir(parents=True)
    (world.paths.user.secrets / "x.json").write_text("s3cr3t")
    spec = build(world, "cat", str(world.paths.user.secrets / "x.json"), readable=[world.paths.home])
    done = await run(PlainLauncher(), spec, timeout=120)
    assert (done.code, done.stdout) == (1, b"")
    assert build(world, "true", network=True).network
    assert [m.kind for m in spec.mounts if m.target == str(world.paths.user.secrets)] == [MountKind.TMPFS]


@pytest.fixture
def session_bus(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    address = f"unix:path={world.root}/busdir/bus"
    (world.root / "busdir").mkdir()
    with subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", f"--address={address}", "--print-address=1"], stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout
        daemon.stdout.readline()
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
        yield address
        daemon.terminate()


BUS = """
import os, subprocess
def call(name):
    command = ["dbus-send", "--session", "--print-reply", "--dest=" + name, "/", "org.freedesktop.DBus.Peer.Ping"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.split(":")[0].removeprefix("Error ") or "answered"
print(call("org.example.Granted"), call("org.example.Other"), os.path.exists("BUSPATH"))
"""
OWN_NAMES = """
import dbus_next, asyncio, sys
async def main():
    bus = await dbus_next.aio.MessageBus().connect()
    for name in ("org.example.Granted", "org.example.Other"):
        await bus.request_name(name)
    print("ready", flush=True)
    await bus.wait_for_disconnect()
import dbus_next.aio
asyncio.run(main())
"""


async def test_session_bus_is_reached_through_a_filter_only(world: World, session_bus: str) -> None:
    program = BUS.replace("BUSPATH", session_bus.removeprefix("unix:path="))
    world.install("server", program, permissions=["session-bus:talk:org.example.Granted"])
    with subprocess.Popen([sys.executable, "-c", OWN_NAMES], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout
        assert service.stdout.readline() == "ready\n"
        output, ended, _ = await talk(world.sessions(), "server")
        service.terminate()
    assert ended.code == 0, ended.stderr_tail
    assert output.decode().split() == ["answered", "org.freedesktop.DBus.Error.ServiceUnknown", "False"]
    assert list(world.paths.user.runtime.glob("bus-*")) == []
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert [Path(f"/proc/{pid}/comm").read_text().strip() for pid in children] == ["dbus-daemon"]


SHELL = """
import asyncio
from dbus_next.aio import MessageBus
from dbus_next.service import ServiceInterface, method
class Notifications(ServiceInterface):
    @method()
    def Notify(self) -> "s":
        return "noticed"
class Shell(ServiceInterface):
    @method()
    def Eval(self) -> "s":
        return "evaluated"
async def main():
    bus = await MessageBus().connect()
    bus.export("/org/x", Notifications("org.freedesktop.Notifications"))
    bus.export("/org/x", Shell("org.example.Shell"))
    await bus.request_name("org.freedesktop.Notifications")
    print(bus.unique_name, flush=True)
    await bus.wait_for_disconnect()
asyncio.run(main())
"""
CALL_SHELL = """
import subprocess
def call(destination, method):
    command = ["dbus-send", "--session", "--print-reply", "--dest=" + destination, "/org/x", method]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.split(":")[0].removeprefix("Error ") or done.stdout.split('"')[1]
name = "org.freedesktop.Notifications"
print(call(name, name + ".Notify"))
print(call(name, "org.freedesktop.DBus.Introspectable.Introspect").split()[0])
print(call(name, "org.example.Shell.Eval"))
print(call(UNIQUE, "org.example.Shell.Eval"))
"""


async def test_notifications_are_not_all_that_the_shell_behind_them_does(world: World, session_bus: str) -> None:
    with subprocess.Popen([sys.executable, "-c", SHELL], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout
        program = CALL_SHELL.replace("UNIQUE", repr(service.stdout.readline().strip()))
        world.install("server", program, permissions=["session-bus:talk:org.freedesktop.Notifications"])
        output, ended, _ = await talk(world.sessions(), "server")
        service.terminate()
    assert ended.code == 0, ended.stderr_tail
    *rest, by_unique_name = output.decode().split()
    assert rest == ["noticed", "<!DOCTYPE", "org.freedesktop.DBus.Error.AccessDenied"]
    assert by_unique_name.startswith("org.freedesktop.DBus.Error.")


async def test_session_bus_itself_is_never_granted(world: World, session_bus: str) -> None:
    assert "never shown" in await refusal(world, f"filesystem:rw:{session_bus.removeprefix('unix:path=')}")
    found = await report(world, look=[world.root / "busdir/bus"], permissions=[f"filesystem:rw:{world.root}/busdir"])
    assert found["seen"][f"{world.root}/busdir/bus"] == ""


async def test_missing_session_bus_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    assert "no session bus" in await refusal(world, "session-bus:talk:org.x.Y")
