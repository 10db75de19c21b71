# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing from npm registries, with the real npm; hostile packages come from a registry on the loopback."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.install import read_lock
from tests.install.git_server import Repository
from tests.install.install_parts import World, local
from tests.install.npm_registry import SERVER_JS, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def entry(package: str = "fake-server", **fields: Any) -> dict[str, Any]:
    source = {"type": "npm", "package": package, **fields.pop("source", {})}
    return {"id": "org.test.js", "name": "Js", "summary": "From a registry", "source": source, **fields}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with Registry() as made:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", made.url)
        monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "0")
        yield made


async def test_a_package_with_one_command_needs_no_transport(world: World, registry: Registry, tmp_path: Path) -> None:
    mark = {"postinstall": f"touch {tmp_path}/PWNED", "preinstall": f"touch {tmp_path}/PWNED", "prepare": "false"}
    registry.add("helper", scripts=mark)
    registry.add("@scope/fake-server", scripts=mark, dependencies={"helper": "^1"}, hasInstallScript=True)
    job = await world.install(entry("@scope/fake-server"))
    assert job.error is None
    installed = world.store.get("org.test.js")
    assert installed.manifest is not None
    assert installed.manifest.to_json()["transports"] == [{"type": "stdio", "command": "fake-server", "args": []}]
    assert installed.manifest.version == "1.0.0"
    assert [tool["name"] for tool in world.store.tools("org.test.js") or []] == ["hello"]
    files = {file["name"]: file["integrity"] for file in read_lock(installed.generation)["files"]}
    assert files.keys() == {"@scope/fake-server", "helper"}
    assert all(value.startswith("sha512-") for value in files.values())
    assert not (tmp_path / "PWNED").exists()
    assert world.left_over() == []


async def test_a_second_server_downloads_nothing_that_the_first_one_needed(world: World, registry: Registry) -> None:
    archives = registry.add("helper"), registry.add(dependencies={"helper": "^1"})
    first = await world.install(entry())
    assert first.error is None
    assert first.bytes_done > sum(map(len, archives))
    assert (await world.install({**entry(), "id": "org.test.second"})).error is None
    assert sorted(registry.asked) == ["fake-server/-/1.0.0.tgz", "helper/-/1.0.0.tgz"]


async def test_a_damaged_cache_is_noticed(world: World, registry: Registry) -> None:
    registry.add()
    assert (await world.install(entry())).error is None
    cached = [
        path for path in (world.paths.user.cache / "packages/npm/_cacache/content-v2").rglob("*") if path.is_file()
    ]
    for path in cached:
        path.chmod(0o644)
        path.write_bytes(b"x" * path.stat().st_size)
    assert cached
    assert (await world.install({**entry(), "id": "org.test.second"})).error is None
    assert registry.asked == ["fake-server/-/1.0.0.tgz"] * 2


async def test_a_package_says_what_the_entry_does_not(world: World, registry: Registry) -> None:
    registry.add("@scope/fake-server", description="Does\neverything")
    job = await world.install(entry("@scope/fake-server") | {"name": "@scope/fake-server", "summary": ""})
    assert job.error is None
    manifest = world.store.get("org.test.js").manifest
    assert manifest is not None
    assert (manifest.name, manifest.summary) == ("@scope/fake-server", "Does everything")


async def test_wrong_bytes_are_caught(world: World, registry: Registry) -> None:
    registry.add(integrity="sha512-" + "A" * 86 + "==")
    job = await world.install(entry())
    assert isinstance(job.error, IntegrityMismatch)
    assert world.left_over() == []


@pytest.mark.parametrize("integrity", ["nothing", "sha512-", "md5-XUFAKrxLKna5cZ2REBfFkg==", "sha3-512-AAAA"])
async def test_a_package_without_a_hash_that_npm_checks_is_not_installed(
    world: World, registry: Registry, tmp_path: Path, integrity: str
) -> None:
    registry.add("helper", integrity=integrity)
    assert isinstance((await world.install(entry("helper"))).error, InvalidManifest | IntegrityMismatch)
    source = tmp_path / "src"
    source.mkdir()
    (source / "index.js").write_text(SERVER_JS)
    project = {"name": "mine", "version": "5.0.0", "dependencies": {"helper": "^1.0.0"}}
    (source / "package.json").write_text(json.dumps(project))
    helper = {"version": "1.0.0", "resolved": f"{registry.url}/helper/-/1.0.0.tgz", "integrity": integrity}
    lock = {**project, "lockfileVersion": 3, "packages": {"": project, "node_modules/helper": helper}}
    (source / "package-lock.json").write_text(json.dumps(lock))
    job = await world.install(local(source, transports=[{"type": "stdio", "command": "node", "args": ["index.js"]}]))
    assert isinstance(job.error, IntegrityMismatch)
    assert "helper" in job.error.message
    assert world.store.list() == []


async def test_sha256_pins_the_package(world: World, registry: Registry) -> None:
    data = registry.add()
    job = await world.install(entry(source={"sha256": "0" * 64}))
    assert isinstance(job.error, IntegrityMismatch)
    job = await world.install(entry(source={"sha256": hashlib.sha256(data).hexdigest(), "version": "1.0.0"}))
    assert job.error is None


async def test_a_registry_that_tells_commands_of_npm_apart_does_not_get_around_the_pin(
    world: World, registry: Registry
) -> None:
    pinned = hashlib.sha256(registry.add()).hexdigest()
    registry.packages_to_pack = {"fake-server": registry.packages.pop("fake-server")}
    registry.tarballs["pinned.tgz"] = registry.tarballs.pop("fake-server/-/1.0.0.tgz")
    registry.packages_to_pack["fake-server"]["versions"]["1.0.0"]["dist"]["tarball"] = f"{registry.url}/pinned.tgz"
    registry.add(files={"package/planted.js": ""})
    job = await world.install(entry(source={"sha256": pinned, "version": "1.0.0"}))
    assert isinstance(job.error, IntegrityMismatch)
    assert world.store.list() == []


async def test_members_of_an_archive_cannot_leave_the_install_directory(
    world: World, registry: Registry, tmp_path: Path
) -> None:
    registry.add(files={"package/../../../../../PWNED": "x", "/PWNED": "x", "../PWNED": "x"})
    await world.install(entry())
    found = list(tmp_path.rglob("PWNED"))
    generations = world.paths.user.generations
    assert all(path.is_relative_to(generations) and "node_modules" in path.parts for path in found)


@pytest.mark.parametrize("where", ["git+file://{path}", "file:../../../x", "http://127.0.0.1:1/x.tgz"])
async def test_only_packages_of_a_registry_are_installed(
    world: World, registry: Registry, tmp_path: Path, where: str
) -> None:
    repository = Repository(tmp_path / "repo")
    scripts = {"prepare": f"touch {tmp_path}/PWNED", "install": f"touch {tmp_path}/PWNED"}
    repository.commit({"package.json": json.dumps({"name": "evil", "version": "1.0.0", "scripts": scripts})})
    registry.add(dependencies={"evil": where.format(path=repository.path)})
    job = await world.install(entry())
    assert isinstance(job.error, InvalidManifest | SourceUnavailable)
    assert not (tmp_path / "PWNED").exists()
    assert world.store.list() == []


async def test_an_unknown_version_is_named(world: World, registry: Registry) -> None:
    registry.add()
    job = await world.install(entry(), version="9.9.9")
    assert isinstance(job.error, SourceUnavailable)
    assert "9.9.9" in job.error.message


async def test_the_plan_has_the_version_that_a_tag_stands_for(world: World, registry: Registry) -> None:
    registry.add()
    document = entry()
    document["source"]["version"] = "latest"
    job = await world.install(document, dry_run=True)
    assert [item.version for item in job.plan if item.kind == "source"] == ["1.0.0"]


async def test_npx_becomes_the_installed_command(world: World, registry: Registry) -> None:
    registry.add("@scope/fake-server")
    npx = {"type": "stdio", "command": "npx", "args": ["-y", "@scope/fake-server@latest", "--verbose"]}
    job = await world.install(entry("@scope/fake-server", transports=[npx]))
    assert job.error is None
    manifest = world.store.get("org.test.js").manifest
    assert manifest is not None
    assert manifest.stdio is not None
    assert (manifest.stdio.command, manifest.stdio.args) == ("fake-server", ["--verbose"])


async def test_a_node_project_gets_what_its_lock_names(world: World, registry: Registry, tmp_path: Path) -> None:
    registry.add("helper", "1.0.0")
    registry.add("helper", "1.0.1")
    source = tmp_path / "src"
    (source / "node_modules/helper").mkdir(parents=True)
    (source / "node_modules/helper/index.js").write_text("planted")
    (source / "index.js").write_text('require("helper/cli.js");\n')
    (source / ".npmrc").write_text("ignore-scripts=false\nregistry=http://127.0.0.1:1\n")
    sri = registry.packages["helper"]["versions"]["1.0.0"]["dist"]["integrity"]
    project = {"name": "mine", "version": "5.0.0", "dependencies": {"helper": "^1.0.0"}}
    (source / "package.json").write_text(json.dumps(project))
    lock = {
        "name": "mine",
        "version": "5.0.0",
        "lockfileVersion": 3,
        "packages": {
            "": {key: project[key] for key in ("name", "version", "dependencies")},
            "node_modules/helper": {
                "version": "1.0.0",
                "resolved": f"{registry.url}/helper/-/1.0.0.tgz",
                "integrity": sri,
                "bin": {"helper": "cli.js"},
            },
        },
    }
    (source / "package-lock.json").write_text(json.dumps(lock))
    document = local(source, transports=[{"type": "stdio", "command": "node", "args": ["index.js"]}])
    job = await world.install(document)
    assert job.error is None
    generation = world.store.get("org.test.hello").generation
    installed = json.loads((generation / "node_modules/helper/package.json").read_text())
    assert installed["version"] == "1.0.0"
    assert not (generation / "node_modules/helper/index.js").exists()
    assert read_lock(generation)["files"] == [
        {"name": "helper", "version": "1.0.0", "integrity": sri, "file": "node_modules/helper"}
    ]


@pytest.mark.parametrize("mark", ["dev", "devOptional", "inBundle"])
async def test_a_project_cannot_mark_what_it_needs_as_something_else(
    world: World, registry: Registry, tmp_path: Path, mark: str
) -> None:
    registry.add("helper")
    source = tmp_path / "src"
    source.mkdir()
    (source / "index.js").write_text('require("helper/cli.js");\n')
    project = {"name": "mine", "version": "5.0.0", "dependencies": {"helper": "^1.0.0"}}
    (source / "package.json").write_text(json.dumps(project))
    helper = {"version": "1.0.0", "resolved": f"{registry.url}/helper/-/1.0.0.tgz", mark: True}
    lock = {**project, "lockfileVersion": 3, "packages": {"": project, "node_modules/helper": helper}}
    (source / "package-lock.json").write_text(json.dumps(lock))
    job = await world.install(local(source, transports=[{"type": "stdio", "command": "node", "args": ["index.js"]}]))
    assert isinstance(job.error, InvalidManifest | SourceUnavailable)
    assert world.store.list() == []


def locked_project(registry: Registry, source: Path, helper: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """A project whose lock says so of the package ``helper``, and of ``inner`` in that."""
    source.mkdir()
    (source / "index.js").write_text('require("helper/cli.js");\n')
    sri = registry.packages["helper"]["versions"]["1.0.0"]["dist"]["integrity"]
    project = {"name": "mine", "version": "5.0.0", "dependencies": {"helper": "^1.0.0"}}
    (source / "package.json").write_text(json.dumps(project))
    locked = {"version": "1.0.0", "resolved": f"{registry.url}/helper/-/1.0.0.tgz", "integrity": sri, **helper}
    packages = {"": project, "node_modules/helper": locked}
    if inner:
        packages["node_modules/helper/node_modules/inner"] = inner
    (source / "package-lock.json").write_text(json.dumps({**project, "lockfileVersion": 3, "packages": packages}))
    return local(source, transports=[{"type": "stdio", "command": "node", "args": ["index.js"]}])


@pytest.mark.parametrize("trick", ["inBundle", "a version that is a URL", "hasShrinkwrap"])
async def test_npm_fetches_nothing_that_the_lock_of_a_project_has_no_hash_of(
    world: World, registry: Registry, tmp_path: Path, trick: str
) -> None:
    registry.add("inner", files={"marker.js": "unchecked"})
    url = f"{registry.url}/inner/-/1.0.0.tgz"
    inner = {"version": "1.0.0", "resolved": url}
    shrinkwrap: dict[str, Any] = {"name": "helper", "version": "1.0.0", "lockfileVersion": 3}
    shrinkwrap["packages"] = {"": {"dependencies": {"inner": "*"}}, "node_modules/inner": inner}
    registry.add("helper", files={"package/npm-shrinkwrap.json": json.dumps(shrinkwrap)}, dependencies={"inner": "*"})
    helper: dict[str, Any] = {"dependencies": {"inner": "*"}}
    if trick == "hasShrinkwrap":
        document = locked_project(registry, tmp_path / "src", {**helper, "hasShrinkwrap": True}, {})
    else:
        version = "1.0.0" if trick == "inBundle" else url
        document = locked_project(registry, tmp_path / "src", helper, {"version": version, "inBundle": True})
    job = await world.install(document)
    assert isinstance(job.error, IntegrityMismatch | SourceUnavailable)
    assert world.store.list() == []


async def test_what_a_package_bundles_comes_with_it(world: World, registry: Registry, tmp_path: Path) -> None:
    files = {"package/node_modules/inner/package.json": json.dumps({"name": "inner", "version": "1.0.0"})}
    registry.add("helper", files=files, dependencies={"inner": "*"}, bundleDependencies=["inner"])
    helper = {"dependencies": {"inner": "*"}, "bundleDependencies": ["inner"]}
    document = locked_project(registry, tmp_path / "src", helper, {"version": "1.0.0", "inBundle": True})
    for wanted in (document, entry("helper", id="org.test.other")):
        job = await world.install(wanted)
        assert job.error is None
        generation = world.store.get(wanted["id"]).generation
        assert (generation / "node_modules/helper/node_modules/inner/package.json").exists()


async def test_the_lock_in_a_package_counts_with_the_hashes_that_it_has(world: World, registry: Registry) -> None:
    for version in ("1.0.0", "1.1.0"):
        registry.add("inner", version)
    sri = registry.packages["inner"]["versions"]["1.0.0"]["dist"]["integrity"]
    inner = {"version": "1.0.0", "resolved": f"{registry.url}/inner/-/1.0.0.tgz", "integrity": sri}
    shrinkwrap: dict[str, Any] = {"name": "helper", "version": "1.0.0", "lockfileVersion": 3}
    shrinkwrap["packages"] = {"": {"dependencies": {"inner": "*"}}, "node_modules/inner": inner}
    files = {"package/npm-shrinkwrap.json": json.dumps(shrinkwrap)}
    registry.add("helper", files=files, dependencies={"inner": "*"}, _hasShrinkwrap=True)
    assert (await world.install(entry("helper"))).error is None
    found = read_lock(world.store.get("org.test.js").generation)["files"]
    assert [(file["name"], file["version"]) for file in found] == [("helper", "1.0.0"), ("inner", "1.0.0")]


async def test_what_a_lock_names_for_development_is_left_out(world: World, registry: Registry, tmp_path: Path) -> None:
    registry.add("helper")
    source = tmp_path / "src"
    source.mkdir()
    (source / "index.js").write_text('require("helper/cli.js");\n')
    sri = registry.packages["helper"]["versions"]["1.0.0"]["dist"]["integrity"]
    project = {
        "name": "mine", "version": "5.0.0", "dependencies": {"helper": "^1.0.0"}, "devDependencies": {"tool": "h/tool"},
    }  # fmt: skip
    (source / "package.json").write_text(json.dumps(project))
    packages = {
        "": project,
        "node_modules/helper": {
            "version": "1.0.0", "resolved": f"{registry.url}/helper/-/1.0.0.tgz", "integrity": sri
        },
        "node_modules/tool": {"version": "1.0.0", "resolved": "git+ssh://git@h.test/h/tool.git#1", "dev": True},
    }  # fmt: skip
    (source / "package-lock.json").write_text(json.dumps({**project, "lockfileVersion": 3, "packages": packages}))
    job = await world.install(local(source, transports=[{"type": "stdio", "command": "node", "args": ["index.js"]}]))
    assert job.error is None
    files = read_lock(world.store.get("org.test.hello").generation)["files"]
    assert [file["name"] for file in files] == ["helper"]


async def test_a_node_project_that_needs_a_build_says_so(world: World, tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "package.json").write_text(json.dumps({"name": "ts", "version": "1.0.0", "scripts": {"build": "tsc"}}))
    (source / "index.ts").write_text(SERVER_JS)
    document = local(source, transports=[{"type": "stdio", "command": "node", "args": ["dist/index.js"]}])
    job = await world.install(document)
    assert isinstance(job.error, InvalidManifest)
    assert "needs a build step" in job.error.message
    assert "dist/index.js" in job.error.message


async def test_server_everything(world: World) -> None:
    job = await world.install(entry("@modelcontextprotocol/server-everything"))
    assert job.error is None
    tools = {tool["name"] for tool in world.store.tools("org.test.js") or []}
    assert {"echo", "get-sum"} <= tools
    lock = read_lock(world.store.get("org.test.js").generation)
    assert lock["protocol"] == {"handshake": "2025-11-25", "modern": False}
    assert len(lock["files"]) > 20


def hostile(data: bytes, *members: tarfile.TarInfo) -> bytes:
    """The archive *data* with *members* added, which hold nothing."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=buffer, mode="w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        for member in members:
            new.addfile(member, io.BytesIO())
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(f"package/{name}")
    made.type, made.linkname, made.mode = kind, target, 0o755
    return made


async def test_odd_members_of_an_archive_harm_nobody(world: World, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    registry.add(
        change=lambda data: hostile(
            data,
            member("new\nline"),
            member("\x1b[2Jclear"),
            member("README"),
            member("readme"),
            member("pipe", tarfile.FIFOTYPE),
            member("disk", tarfile.BLKTYPE),
            member("tty", tarfile.CHRTYPE),
            member("hard", tarfile.LNKTYPE, str(tmp_path / "secret")),
            member("climbing", tarfile.LNKTYPE, "package/../../../../../../../../etc/passwd"),
            member("soft", tarfile.SYMTYPE, str(tmp_path / "secret")),
            *(member(f"many/{number}") for number in range(3000)),
        )
    )
    job = await world.install(entry())
    assert job.error is None
    package = world.store.get("org.test.js").generation / "node_modules/fake-server"
    kinds = [path.lstat().st_mode for path in package.rglob("*")]
    assert all(stat.S_ISREG(kind) or stat.S_ISDIR(kind) for kind in kinds)
    assert not {"pipe", "disk", "tty", "hard", "climbing", "soft"} & {path.name for path in package.iterdir()}
    assert (tmp_path / "secret").stat().st_nlink == 1
    assert world.left_over() == []


async def test_an_archive_of_too_many_nested_directories_leaves_nothing(world: World, registry: Registry) -> None:
    registry.add(change=lambda data: hostile(data, member("a/" * 200 + "f")))
    job = await world.install(entry())
    assert isinstance(job.error, InvalidManifest)
    assert "128 nested directories" in job.error.message
    assert world.store.list() == []
    assert world.left_over() == []
