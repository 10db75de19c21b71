# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the programs that come with mcpd are found, what is said if they are not, and how they get their manifest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcpd
from mcpd.errors import NotSupported, SpawnFailed
from mcpd.runtime import bundled
from mcpd.runtime.bundled import remote_program, scripts_program
from mcpd.runtime.launch import UNCONFINED_MANIFEST, LaunchSpec, Overlay
from mcpd.runtime.launchers import PlainLauncher

pytestmark = pytest.mark.process


def test_an_environment_of_ones_own_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundled, "PYTHON", tmp_path)
    program = remote_program("x")
    assert program.argv == (sys.executable, "-I", "-m", "mcpd.servers.remote")
    assert [mount.target for mount in program.mounts()] == [str(Path(mcpd.__file__).parent)]


def test_the_systems_mcpd_takes_the_distributions_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(bundled, "PYTHON", tmp_path)
    assert remote_program("x").argv[0] == str(tmp_path)


REMOTE = ("httpx2", "websockets")
SCRIPTS = ("mcp", "jinja2", "jsonschema", "docstring_parser")


def without(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    """Have the library *absent* not be installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))


@pytest.mark.parametrize(("prefix", "says"), [("/somewhere/venv", r"mcpd-system\[servers\]"), (None, "mcpd-servers")])
@pytest.mark.parametrize("absent", [*REMOTE, *SCRIPTS])
def test_without_its_libraries_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str | None, says: str, absent: str
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix or sys.base_prefix)
    monkeypatch.setattr(bundled, "PYTHON", tmp_path / "absent")
    without(monkeypatch, absent)
    if absent in REMOTE:
        with pytest.raises(NotSupported, match=f"^x is a remote server.*{says}"):
            remote_program("x")
        assert scripts_program("x", "/m").argv[0] == sys.executable
    else:
        with pytest.raises(NotSupported, match=f"^x is a script.*{says}"):
            scripts_program("x", "/m")
        assert remote_program("x").argv[0] == sys.executable


@pytest.mark.parametrize("name", bundled.COMMANDS)
def test_a_server_with_a_manifest_is_a_module_that_can_be_run(name: str) -> None:
    program = bundled.command("x", name)
    assert program.argv[:3] == (sys.executable, "-I", "-m")
    assert importlib.util.find_spec(f"{program.argv[3]}.__main__")
    assert importlib.util.find_spec(f"{program.argv[3]}.server")


IMPORTED = """
import importlib, json, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def plain(name: str) -> str:
    """The name of a distribution as all that is one has it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("module", ["mcpd.servers.scripts", *(each.module for each in bundled.COMMANDS.values())])
def test_what_a_server_imports_is_in_the_environment_of_the_package(module: str) -> None:
    """Here there is everything; in /usr/lib/mcpd-servers only what is locked."""
    lock = (Path(__file__).parents[3] / "packaging/servers.lock").read_text()
    locked = {plain(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", IMPORTED, f"{module}.server"], capture_output=True, text=True, check=True
    )
    providers = importlib.metadata.packages_distributions()
    brought = {plain(each) for name in json.loads(done.stdout) for each in providers.get(name, ())}
    assert brought - {"mcpd-system"} <= locked


def test_only_what_reads_the_packages_data_is_shown_them() -> None:
    package = Path(mcpd.__file__).parent
    shown = {name: [mount.target for mount in bundled.command("x", name).mounts()] for name in bundled.COMMANDS}
    assert shown == {
        "llm-orc": [str(package), str(package.parent / "data")],
        "mcp-orchestration": [str(package), str(package.parent / "data")],
        "mcp-workstation": [str(package)],
    }


@pytest.mark.parametrize(
    ("name", "absent"), [(name, each) for name, it in bundled.COMMANDS.items() for each in it.needs]
)
def test_without_the_libraries_of_a_bundled_server_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, absent: str
) -> None:
    without(monkeypatch, absent)
    with pytest.raises(NotSupported, match=r"^x is a bundled server.*mcpd-system\[servers\]"):
        bundled.command("x", name)


def test_the_package_of_mcpd_does_not_run_its_programs_in_an_older_environment() -> None:
    """The environment has a link to mcpd's modules, so the two are upgraded together."""
    control = (Path(__file__).parents[3] / "packaging/debian/control").read_text()
    packages = {text.split()[0]: text for text in control.split("\nPackage: ")[1:]}
    assert "\nBreaks:\n mcpd-servers (<< ${source:Version}),\n" in packages["mcpd"]
    assert "\n mcpd (>= ${source:Version}),\n" in packages["mcpd-servers"]


def unconfined(*argv: str, manifest: Overlay | None) -> LaunchSpec:
    env = {"PATH": "/usr/bin:/bin"}
    return LaunchSpec("x", argv, "/tmp", env, (), network=False, manifest=manifest, confined=False)


async def printed(spec: LaunchSpec) -> str:
    """What *spec* writes to its standard output."""
    read, write = os.pipe()
    leash = await PlainLauncher().launch(spec, {1: write})
    os.close(write)
    ended = await leash.wait()
    with os.fdopen(read, encoding="utf-8") as file:
        said = file.read()
    assert ended.code == 0, (said, ended.stderr_tail)
    return said


LOOK = """
import os, sys
fds = sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}"))
texts = [open("/proc/self/fd/3").read() for _ in range(2)] if 3 in fds else []
open(sys.argv[1], "w").write(f"{fds} {[len(text) for text in texts]}")
"""


@pytest.mark.parametrize("passed", range(4))
async def test_without_a_sandbox_a_program_inherits_its_manifest(tmp_path: Path, passed: int) -> None:
    """However many descriptors come before the manifest's, and so wherever mcpd-exec has it."""
    overlay = Overlay(UNCONFINED_MANIFEST, b"x" * 100_000)
    with Path(os.devnull).open("r+b", buffering=0) as null:
        fds = dict.fromkeys(range(passed), null.fileno())
        for manifest, seen in ((overlay, "[0, 1, 2, 3] [100000, 100000]"), (None, "[0, 1, 2] []")):
            spec = unconfined(sys.executable, "-IS", "-c", LOOK, str(tmp_path / "seen"), manifest=manifest)
            ended = await (await PlainLauncher().launch(spec, fds)).wait()
            assert ended.code == 0, ended.stderr_tail
            assert (tmp_path / "seen").read_text() == seen


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
async def test_a_manifest_that_is_inherited_can_be_read_by_another_user() -> None:
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
    spec = unconfined(*other, "cat", UNCONFINED_MANIFEST, manifest=Overlay(UNCONFINED_MANIFEST, b"private"))
    assert await printed(spec) == "private"


async def test_a_script_is_described_by_a_manifest_that_is_inherited() -> None:
    program = scripts_program("x", UNCONFINED_MANIFEST)
    document = {"id": "x", "script": {"entry": {"prompts": {"hello": {"template": "Hello"}}}}}
    manifest = Overlay(UNCONFINED_MANIFEST, json.dumps(document).encode())
    offered = json.loads(await printed(unconfined(*program.argv, "--describe", manifest=manifest)))
    assert [each["name"] for each in offered["prompts"]] == ["hello"]


async def test_without_a_sandbox_no_path_can_be_covered(tmp_path: Path) -> None:
    public = tmp_path / "manifest.json"
    public.write_text("public")
    with pytest.raises(SpawnFailed, match="a manifest cannot be mounted"):
        await printed(unconfined("cat", str(public), manifest=Overlay(str(public), b"private")))
