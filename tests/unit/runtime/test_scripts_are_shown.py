# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the sandbox of a script server shows, and where its process finds what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.paths import Paths, Scope, from_environment
from mcpd.runtime.launch import UNCONFINED_MANIFEST, MountKind
from mcpd.runtime.sandbox import server_spec
from mcpd.scripts import contents
from mcpd.settings import RuntimeSettings, Settings
from mcpd.store import Store

if TYPE_CHECKING:
    from mcpd.runtime.launch import LaunchSpec


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Paths:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_ROOT", str(tmp_path / "system"))
    return from_environment()


def put(directory: Path, name: str, text: str = "def f(): pass\n") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path


def spec(paths: Paths, server_id: str, sandbox: str = "on") -> LaunchSpec:
    store = Store(paths, Scope.USER)
    settings = Settings(runtime=RuntimeSettings.model_validate({"sandbox": sandbox}))
    launch = store.launch_manifest(server_id)
    return server_spec(store.get(server_id), launch, paths=paths, scope=Scope.USER, settings=settings)


def shown(found: LaunchSpec, below: Path) -> dict[str, MountKind]:
    return {mount.target: mount.kind for mount in found.mounts if Path(mount.target).is_relative_to(below)}


def test_a_script_sees_its_directory_and_the_contents_and_writes_its_state(paths: Paths, tmp_path: Path) -> None:
    put(paths.user.scripts, "x.py")
    contents.write(paths.user.contents, b"content")
    found = spec(paths, "x")
    assert shown(found, tmp_path) == {
        str(paths.user.scripts): MountKind.RO_BIND,
        str(paths.user.contents): MountKind.RO_BIND,
        str(paths.user.state / "x"): MountKind.BIND,
    }
    assert (found.cwd, found.env["HOME"], found.network) == (
        str(paths.user.scripts),
        str(paths.user.state / "x"),
        False,
    )
    assert found.argv[1:4] == ("-I", "-m", "mcpd.servers.scripts")
    assert found.manifest is not None
    assert found.argv[4:] == ("--manifest", found.manifest.path)
    assert json.loads(found.manifest.data)["script"]["path"] == str(paths.user.scripts / "x.py")


def test_what_lies_beside_the_target_of_a_symlink_is_not_shown(paths: Paths, tmp_path: Path) -> None:
    put(tmp_path / "project", "secret.txt", "hush")
    real = put(tmp_path / "project", "x.py")
    paths.user.scripts.mkdir(parents=True)
    (paths.user.scripts / "x.py").symlink_to(real)
    found = spec(paths, "x")
    assert shown(found, tmp_path / "project") == {str(real): MountKind.RO_BIND}
    assert found.cwd == str(paths.user.scripts)


def test_an_entry_grants_and_nothing_else_does(paths: Paths, tmp_path: Path) -> None:
    put(paths.user.scripts, "x.py")
    paths.user.mcps.parent.mkdir(parents=True)
    granted = tmp_path / "granted"
    granted.mkdir()
    paths.user.mcps.write_text(json.dumps({"x": {"permissions": ["network", f"filesystem:rw:{granted}"]}}))
    found = spec(paths, "x")
    assert found.network
    assert shown(found, granted) == {str(granted): MountKind.BIND}


def test_a_server_without_a_script_starts_in_its_state(paths: Paths, tmp_path: Path) -> None:
    paths.user.mcps.parent.mkdir(parents=True)
    paths.user.mcps.write_text(json.dumps({"v": {"variables": {"a": 1}, "resources": {"a": {"uri": "variable://a"}}}}))
    found = spec(paths, "v")
    assert found.cwd == str(paths.user.state / "v")
    assert shown(found, tmp_path) == {str(paths.user.state / "v"): MountKind.BIND}


def test_without_a_sandbox_the_manifest_comes_as_a_descriptor(paths: Paths) -> None:
    put(paths.user.scripts, "x.py")
    found = spec(paths, "x", sandbox="off")
    assert found.manifest is not None
    assert (found.argv[-2:], found.manifest.path) == (("--manifest", UNCONFINED_MANIFEST), UNCONFINED_MANIFEST)
    assert json.loads(found.manifest.data)["script"]["path"] == str(paths.user.scripts / "x.py")
    assert not (paths.user.state / "x/manifest.json").exists()


def test_a_content_that_is_a_symlink_shows_no_more_than_what_it_leads_to(paths: Paths, tmp_path: Path) -> None:
    real = put(tmp_path / "project", "x.py")
    put(tmp_path / "project", "beside.py")
    cid = contents.content_id(real.read_bytes())
    paths.user.contents.mkdir(parents=True)
    (paths.user.contents / cid).symlink_to(real)
    paths.user.mcps.parent.mkdir(parents=True)
    paths.user.mcps.write_text(json.dumps({"c": {"definition_cid": cid}}))
    found = spec(paths, "c")
    assert shown(found, tmp_path / "project") == {str(real): MountKind.RO_BIND}
    assert found.cwd == str(paths.user.contents)
    # What it imports is looked for beside this path.
    assert found.manifest is not None
    assert json.loads(found.manifest.data)["script"]["path"] == str(paths.user.contents / cid)
