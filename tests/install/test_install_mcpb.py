# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing MCP bundles."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import IntegrityMismatch, InvalidConfig, InvalidManifest
from mcpd.install import InstallOptions, JobState, read_lock
from mcpd.install.sources.mcpb import describe, merged
from mcpd.model import Entry
from tests.install.install_parts import SERVER, World, index, reach, wheel
from tests.install.npm_registry import SERVER_JS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ID = "org.test.bundle"


def described(kind: str = "python", **fields: Any) -> dict[str, Any]:
    """What a bundle of *kind* says of itself."""
    start = {
        "python": {"command": "python3", "args": ["${__dirname}/server/main.py"]},
        "uv": {"command": "uv", "args": ["run", "--directory", "${__dirname}", "server/main.py"]},
        "node": {"command": "node", "args": ["${__dirname}/server/index.js"]},
        "binary": {"command": "${__dirname}/server/run", "args": []},
    }[kind]
    return {
        "manifest_version": "0.4",
        "name": "bundle",
        "display_name": "A bundle",
        "version": "1.2.0",
        "description": "Says hello from a bundle",
        "author": {"name": "Somebody"},
        "server": {"type": kind, "entry_point": "server/main.py", "mcp_config": start},
        **fields,
    }


def packed(manifest: object, files: Mapping[str, str | bytes] | None = None) -> bytes:
    """A bundle as its tools pack it, on a system without modes of files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("manifest.json", manifest if isinstance(manifest, str) else json.dumps(manifest))
        for name, content in {"server/main.py": SERVER, **(files or {})}.items():
            made.writestr(name, content)
    return buffer.getvalue()


def offered(directory: Path, data: bytes, **fields: Any) -> dict[str, Any]:
    """What a registry says of the bundle *data*, which is a file in *directory*."""
    path = directory / "bundle.mcpb"
    path.write_bytes(data)
    source = {"type": "mcpb", "url": path.as_uri(), "sha256": hashlib.sha256(data).hexdigest()}
    return {"id": ID, "source": source, **fields}


async def test_a_bundle_says_how_it_is_started(world: World, tmp_path: Path) -> None:
    entry = offered(tmp_path, packed(described()), categories=["tests"], summary="As the registry has it")
    job = await world.fetch(entry)
    assert job.error is None
    server = world.store.get(ID)
    assert server.manifest is not None
    assert server.manifest.version == "1.2.0"
    assert server.manifest.name == "A bundle"
    assert server.manifest.summary == "As the registry has it"
    assert server.manifest.categories == ["tests"]
    assert server.manifest.permissions == ["network"]
    lock = read_lock(server.generation)
    assert lock["resolved"] == {"sha256": entry["source"]["sha256"]}
    assert lock["files"][0]["name"] == "bundle.mcpb"
    assert ("package", "bundle.mcpb", "1.2.0") in {(item.kind, item.key, item.version) for item in job.plan}
    # There is one file of that name, and it is mcpd's.
    assert json.loads((server.generation / "manifest.json").read_text())["id"] == ID
    assert world.left_over() == []


async def test_what_it_asks_for_is_asked_for(world: World, tmp_path: Path) -> None:
    start = described()
    start["server"]["mcp_config"] |= {
        "args": ["${__dirname}/server/main.py", "config"],
        "env": {"BUNDLE_TOKEN": "${user_config.token}"},
    }
    start["user_config"] = {
        "token": {"type": "string", "title": "Token", "description": "", "required": True, "sensitive": True},
        "region": {"type": "string", "title": "Region", "description": "", "required": True},
    }
    job = world.begin(offered(tmp_path, packed(start)))
    await reach(job, world, JobState.NEEDS_CONFIG)
    assert {need.key: need.sensitive for need in job.needs} == {"token": True, "region": False}
    assert world.store.list() == []
    job.set_config({"region": "north"})
    job.set_secret("token", "s3cret")
    await job.wait()
    assert job.error is None
    assert world.store.values(ID)["token"] == "s3cret"


async def test_what_is_given_before_the_bundle_is_read_counts(world: World, tmp_path: Path) -> None:
    start = described()
    start["server"]["mcp_config"]["args"] = ["${__dirname}/server/main.py", "config"]
    region = {"type": "string", "title": "Region", "description": "", "required": True}
    start["user_config"] = {"region": region}
    early = [{"key": "region", "type": "string"}]
    job = world.begin(offered(tmp_path, packed(start), configurableProperties=early))
    job.set_config({"region": "north"})
    await job.wait()
    assert job.error is None
    assert world.store.values(ID)["region"] == "north"


async def test_a_value_that_the_bundle_does_not_ask_for_is_refused(world: World, tmp_path: Path) -> None:
    job = world.begin(offered(tmp_path, packed(described()), configurableProperties=[{"key": "other"}]))
    job.set_config({"other": "x"})
    await job.wait()
    assert isinstance(job.error, InvalidConfig)
    assert "other" in job.error.message
    assert world.left_over() == []


async def test_consent_is_asked_for_what_the_bundle_needs(world: World, tmp_path: Path) -> None:
    start = described(user_config={"notes": {"type": "directory", "title": "Notes", "description": ""}})
    job = world.begin(offered(tmp_path, packed(start)), consent=False)
    await reach(job, world, JobState.NEEDS_CONSENT)
    assert {"network", "filesystem:rw:{config.notes}"} <= {need.key for need in job.needs}
    job.cancel()
    await job.wait()
    assert world.left_over() == []


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_a_node_bundle_brings_its_modules(world: World, tmp_path: Path) -> None:
    files = {
        "server/index.js": f'require("helper");\n{SERVER_JS.partition(chr(10))[2]}',
        "node_modules/helper/index.js": "",
        "package.json": json.dumps({"name": "bundle", "dependencies": {"helper": "*"}}),
    }
    job = await world.fetch(offered(tmp_path, packed(described("node"), files)))
    assert job.error is None
    assert (world.store.get(ID).generation / "node_modules/helper/index.js").is_file()


async def test_a_python_bundle_brings_its_libraries(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    """The list of what it was made from stays a list, whatever an index has by now."""
    own_index.setenv("PIP_INDEX_URL", index(tmp_path / "index"))
    start = described()
    start["server"]["mcp_config"]["env"] = {"PYTHONPATH": "${__dirname}/server/lib"}
    files = {
        "server/main.py": "import helper\n" + SERVER,
        "server/lib/helper.py": "",
        "server/lib/helper-1.0.dist-info/METADATA": "",
        "requirements.txt": "helper==1.0\n",
    }
    job = await world.fetch(offered(tmp_path, packed(start, files)))
    assert job.error is None
    generation = world.store.get(ID).generation
    assert (generation / "server/lib/helper.py").is_file()
    assert not (generation / ".venv").exists()


@pytest.mark.parametrize("kind", ["uv", "python"])
@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
async def test_packages_that_a_bundle_names_are_installed_and_locked(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    own_index.setenv("PIP_INDEX_URL", index(tmp_path / "index", wheel(tmp_path / "index", "helper", scripts=())))
    named = {
        "requirements.txt": "helper==1.0\n",
        "pyproject.toml": '[project]\nname = "x"\nversion = "1"\ndependencies = ["helper"]\n',
    }
    files = {"server/main.py": "import helper\n" + SERVER, name: named[name]}
    start = described(kind)
    start["server"]["mcp_config"]["env"] = {"PYTHONPATH": "${__dirname}:${__dirname}/server/lib"}
    job = await world.fetch(offered(tmp_path, packed(start, files | {"server/lib/kept.py": ""})))
    assert job.error is None
    generation = world.store.get(ID).generation
    assert [file["name"] for file in read_lock(generation)["files"]] == ["bundle.mcpb", "helper"]
    assert (generation / "server/lib/kept.py").is_file()


async def test_an_environment_that_was_packed_along_is_made_anew(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    own_index.setenv("PIP_INDEX_URL", index(tmp_path / "index", wheel(tmp_path / "index", "helper", scripts=())))
    files = {
        "server/main.py": "import helper\n" + SERVER,
        "requirements.txt": "helper\n",
        ".venv/bin/python3": "#!/bin/false\n",
    }
    job = await world.fetch(offered(tmp_path, packed(described("uv"), files)))
    assert job.error is None
    assert (world.store.get(ID).generation / ".venv/bin/python3").is_symlink()


async def test_a_program_is_made_one(world: World, tmp_path: Path) -> None:
    files = {"server/run": "#!/usr/bin/python3\n" + SERVER, "server/data": "x"}
    job = await world.fetch(offered(tmp_path, packed(described("binary"), files)))
    assert job.error is None
    generation = world.store.get(ID).generation
    assert stat.S_IMODE((generation / "server/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((generation / "server/data").stat().st_mode) == 0o644


async def test_a_bundle_that_a_caller_brings(world: World) -> None:
    """It is kept among mcpd's own files until it is installed."""
    data = packed(described())
    path = world.paths.user.cache / "bundles/0123.mcpb"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    brought = describe(path, hashlib.sha256(data).hexdigest())
    job = world.installer.install_bundle(brought, InstallOptions(consent=True), os.getuid())
    await job.wait()
    assert job.error is None
    generation = world.store.get(brought.entry.id).generation
    assert read_lock(generation)["resolved"] == {"sha256": brought.sha256}
    assert str(path) not in (generation / ".mcpd-lock.json").read_text()
    assert not path.exists()
    assert world.left_over() == []


async def test_another_hash_is_refused(world: World, tmp_path: Path) -> None:
    entry = offered(tmp_path, packed(described()))
    entry["source"]["sha256"] = "0" * 64
    job = await world.fetch(entry)
    assert isinstance(job.error, IntegrityMismatch)
    assert world.left_over() == []


async def test_without_a_hash_the_lock_file_has_the_one_that_came(world: World, tmp_path: Path) -> None:
    data = packed(described())
    entry = offered(tmp_path, data)
    del entry["source"]["sha256"]
    job = await world.fetch(entry)
    assert job.error is None
    lock = read_lock(world.store.get(ID).generation)
    assert lock["files"][0]["integrity"] == f"sha256:{hashlib.sha256(data).hexdigest()}"


async def test_another_platform_is_named_before_anything_is_unpacked(world: World, tmp_path: Path) -> None:
    job = await world.fetch(offered(tmp_path, packed(described(compatibility={"platforms": ["win32"]}))))
    assert isinstance(job.error, InvalidManifest)
    assert "win32" in job.error.message
    assert JobState.FETCHING not in world.states(job)
    assert world.left_over() == []


REFUSED = {
    "no bundle": (b"nonsense", "not a zip file"),
    "no manifest": (packed(described()).replace(b"manifest.json", b"manifesto.jso"), "does not contain manifest.json"),
    "no JSON": (packed("{"), "manifest.json of bundle.mcpb"),
    "deep": (packed("[" * 100_000), "manifest.json of bundle.mcpb"),
    "a huge manifest": (packed(" " * 2_000_000 + "{}"), "manifest.json: larger than"),
    "climbing": (packed(described(), {"../escaped": "x"}), "escaped: a name that leads outside"),
    "a name of mcpd's": (packed(described(), {".mcpd-lock.json": "{}"}), ".mcpd-lock.json"),
}


@pytest.mark.parametrize("which", REFUSED)
async def test_hostile_bundles_leave_nothing(world: World, tmp_path: Path, which: str) -> None:
    data, fault = REFUSED[which]
    job = await world.fetch(offered(tmp_path, data))
    assert isinstance(job.error, InvalidManifest)
    assert fault in job.error.message
    assert world.store.list() == []
    assert world.left_over() == []
    assert [path for path in tmp_path.rglob("escaped*") if path.exists()] == []


@pytest.mark.parametrize("fields", [{"path": "server"}, {"rev": "main"}, {"url": "http://example.com/x.mcpb"}])
async def test_sources_that_can_never_work(world: World, tmp_path: Path, fields: dict[str, str]) -> None:
    entry = offered(tmp_path, packed(described()))
    entry["source"] |= fields
    with pytest.raises(InvalidManifest, match=next(iter(fields)) if "url" not in fields else "https"):
        await world.fetch(entry)


async def test_a_new_bundle_is_an_update(world: World, tmp_path: Path) -> None:
    assert (await world.fetch(offered(tmp_path, packed(described()), version="1.2.0"))).error is None
    world.shelf.put(offered(tmp_path, packed(described(version="1.3.0"), {"new": ""}), version="1.3.0"))
    job = await world.update(ID, consent=True)
    assert job.error is None
    server = world.store.get(ID)
    assert server.manifest is not None
    assert server.manifest.version == "1.3.0"
    assert (server.generation / "new").is_file()


def entry_of(**fields: Any) -> Entry:
    return Entry.parse({"id": ID, "name": "X", **fields}, "test")


def test_a_registry_that_names_permissions_means_these() -> None:
    stdio = [{"type": "stdio", "command": "x"}]
    bundle = entry_of(transports=stdio, permissions=["network", "filesystem:rw:{config.notes}"])
    found = {
        "none said": merged(entry_of(), bundle, "x").permissions,
        "less": merged(entry_of(permissions=[]), bundle, "x").permissions,
        "other": merged(entry_of(permissions=["devices"]), bundle, "x").permissions,
    }
    assert found == {
        "none said": ["network", "filesystem:rw:{config.notes}"],
        "less": ["filesystem:rw:{config.notes}"],
        "other": ["devices", "filesystem:rw:{config.notes}"],
    }


def test_how_it_is_started_is_the_bundle_s() -> None:
    prop = {"key": "a", "label": "A"}
    entry = entry_of(
        version="1", env={"LD_PRELOAD": "x"}, configurableProperties=[prop], origin={"name": "r"}, homepage="https://r"
    )
    bundle = entry_of(
        version="2",
        transports=[{"type": "stdio", "command": "x"}],
        origin={"name": "b"},
        description="b",
        homepage="https://b",
    )
    found = merged(entry, bundle, "x").to_json()
    assert found["version"] == "1"
    assert "env" not in found
    assert "configurableProperties" not in found
    assert found["origin"] == {"name": "r"}
    assert (found["description"], found["homepage"]) == ("b", "https://r")


def test_what_is_no_bundle_is_named_without_ado(tmp_path: Path) -> None:
    path = tmp_path / "a.mcpb"
    path.write_bytes(b"no zip")
    with pytest.raises(InvalidManifest) as caught:
        describe(path, "0" * 64)
    assert caught.value.message == "the bundle cannot be read: it is not a zip file"
