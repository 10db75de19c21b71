# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing from Python package indexes, with the real pip and uv; hostile packages come from an index on disk."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from mcpd.errors import BuildFailed, IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.install import JobState, read_lock
from tests.install.install_parts import FileServer, World, index, running, sdist, wheel

pytestmark = pytest.mark.usefixtures("installer")


def entry(package: str = "fake-server", **fields: Any) -> dict[str, Any]:
    source = {"type": "pypi", "package": package, **fields.pop("source", {})}
    return {"id": "org.test.py", "name": "Py", "summary": "From an index", "source": source, **fields}


def evil(path: Path) -> dict[str, str]:
    """The files of a source distribution that would leave a mark if anything of it ran."""
    code = f"open({str(path / 'PWNED')!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
    return {"setup.py": code, "PKG-INFO": "Metadata-Version: 1.0\nName: evil\nVersion: 1.0\n"}


async def test_a_package_with_one_script_needs_no_transport(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    main = wheel(tmp_path / "files", requires=("helper>=2",))
    helper = wheel(tmp_path / "files", "helper", "2.1", scripts=())
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, main, helper))
    job = await world.install(entry())
    assert job.error is None
    installed = world.store.get("org.test.py")
    assert installed.manifest is not None
    assert installed.manifest.version == "1.0"
    assert installed.manifest.to_json()["transports"] == [{"type": "stdio", "command": "fake-server", "args": []}]
    assert [tool["name"] for tool in world.store.tools("org.test.py") or []] == ["hello"]
    lock = read_lock(installed.generation)
    assert {(file["name"], file["version"], file["integrity"]) for file in lock["files"]} == {
        ("fake-server", "1.0", f"sha256:{hashlib.sha256(main.read_bytes()).hexdigest()}"),
        ("helper", "2.1", f"sha256:{hashlib.sha256(helper.read_bytes()).hexdigest()}"),
    }
    python = installed.generation / ".venv/bin/python"
    assert python.resolve() == Path("/usr/bin/python3").resolve()
    assert not (installed.generation / ".venv/bin/pip").exists()
    assert not (installed.generation / ".mcpd-build").exists()


async def test_a_second_server_downloads_nothing_that_the_first_one_needed(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    files = wheel(tmp_path / "files", requires=("helper",)), wheel(tmp_path / "files", "helper", scripts=())
    with FileServer(tmp_path) as server:
        own_index.setenv("PIP_INDEX_URL", index(tmp_path, *files, url=server.url))
        own_index.setenv("PIP_TRUSTED_HOST", "127.0.0.1")  # pip caches nothing that comes by http from others
        first = await world.install(entry())
        assert first.error is None
        assert first.bytes_done > sum(file.stat().st_size for file in files)
        fetched = sorted(name for name in server.asked if name.endswith(".whl"))
        second = await world.install({**entry(), "id": "org.test.second"})
        assert second.error is None
        assert sorted(name for name in server.asked if name.endswith(".whl")) == fetched


@pytest.mark.parametrize("installer", ["uv"], indirect=True)
async def test_byte_code_is_compiled_once_and_never_compared_with_its_source(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    own_index.setenv(
        "PIP_INDEX_URL", index(tmp_path, wheel(tmp_path / "files", extra={"fake_server/broken.py": "def"}))
    )
    found = []
    for server_id in ("org.test.first", "org.test.second"):
        assert (await world.install({**entry(), "id": server_id})).error is None
        (package,) = world.store.get(server_id).generation.glob(".venv/lib/python3*/site-packages/fake_server")
        found.append({path.name: path.read_bytes() for path in (package / "__pycache__").iterdir()})
    first, second = found
    assert {name.partition(".")[0] for name in first} == {"__init__", "__main__"}
    assert second == first
    assert {int.from_bytes(code[4:8], "little") for code in first.values()} == {1}  # PEP 552: hash-based, unchecked


async def test_a_directory_of_wheels_does_without_an_index(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    main = wheel(tmp_path / "files")
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {main.parent}\n")
    own_index.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    job = await world.install(entry())
    assert job.error is None


METADATA = "Metadata-Version: 2.1\nName: Fake-Server\nVersion: 1.0\n"
BARE = {"name": "fake_server", "summary": "", "version": ""}
"""What mcpctl says of a package that is named on its command line."""


@pytest.mark.parametrize("installer", ["uv"], indirect=True)
@pytest.mark.parametrize(
    ("said", "summary", "shown"),
    [
        (BARE, "Tells the time  anywhere", ("Fake-Server", "Tells the time anywhere")),
        (BARE, "Grüße\x1b[31m an alle", ("Fake-Server", "Grüße[31m an alle")),
        (BARE, "x" * 9000, ("Fake-Server", "x" * 500)),
        ({}, "Tells the time", ("Py", "From an index")),
    ],
)
async def test_a_package_says_what_the_entry_does_not(
    world: World,
    tmp_path: Path,
    own_index: pytest.MonkeyPatch,
    said: dict[str, str],
    summary: str,
    shown: tuple[str, str],
) -> None:
    metadata = METADATA + f"Summary: {summary}\n\nSummary: of something else\n"
    file = wheel(tmp_path / "files", extra={"fake_server-1.0.dist-info/METADATA": metadata})
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, file))
    job = await world.install(entry("fake_server") | said)
    assert job.error is None
    manifest = world.store.get("org.test.py").manifest
    assert manifest is not None
    assert (manifest.name, manifest.summary, manifest.version) == (*shown, "1.0")
    recorded = read_lock(world.store.get("org.test.py").generation)["entry"]
    assert (recorded["name"], recorded["summary"]) == shown


@pytest.mark.parametrize("installer", ["uv"], indirect=True)
async def test_uvx_becomes_the_installed_command(world: World, tmp_path: Path, own_index: pytest.MonkeyPatch) -> None:
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, wheel(tmp_path / "files")))
    uvx = {"type": "stdio", "command": "uvx", "args": ["fake-server@1.0", "dual"]}
    job = await world.install(entry(transports=[uvx]))
    assert job.error is None
    manifest = world.store.get("org.test.py").manifest
    assert manifest is not None
    assert manifest.stdio is not None
    assert (manifest.stdio.command, manifest.stdio.args) == ("fake-server", ["dual"])


async def test_sha256_pins_the_package(world: World, tmp_path: Path, own_index: pytest.MonkeyPatch) -> None:
    main = wheel(tmp_path / "files")
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, main))
    job = await world.install(entry(source={"sha256": "0" * 64}))
    assert isinstance(job.error, IntegrityMismatch)
    assert "pins sha256:0000" in job.error.message
    job = await world.install(entry(source={"sha256": hashlib.sha256(main.read_bytes()).hexdigest()}))
    assert job.error is None


async def test_an_index_that_serves_other_bytes_is_caught(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    main = wheel(tmp_path / "files")
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, main, hashes={main.name: "1" * 64}))
    job = await world.install(entry())
    assert isinstance(job.error, IntegrityMismatch)
    assert world.store.list() == []
    assert world.left_over() == []


async def test_code_of_a_package_never_runs_while_it_is_fetched(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    bad = sdist(tmp_path / "files", "evil", "1.0", evil(tmp_path))
    good = wheel(tmp_path / "files", requires=("evil",))
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, bad, good))
    for package in ("evil", "fake-server"):
        job = await world.install(entry(package))
        assert isinstance(job.error, SourceUnavailable)
        assert "evil" in job.error.message
    assert not (tmp_path / "PWNED").exists()
    assert world.left_over() == []


@pytest.mark.parametrize(
    "backend", ["", "[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']\n"]
)
async def test_nothing_is_built_that_a_dependency_names_by_its_url(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch, installer: str, backend: str
) -> None:
    code = "raise SystemExit('PWNED')"
    files = {"setup.py": code, "own.py": code, "PKG-INFO": "Metadata-Version: 1.0\nName: evil\n"}
    if backend:
        files["pyproject.toml"] = backend
    bad = sdist(tmp_path / "files", "evil", "1.0", files)
    good = wheel(tmp_path / "files", requires=(f"evil @ {bad.as_uri()}",))
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, good))
    own_index.setenv("PIP_FIND_LINKS", str(bad.parent))
    job = await world.install(entry())
    assert isinstance(job.error, SourceUnavailable)
    assert {"pip": "wheels only", "uv": "URL dependency"}[installer] in job.error.message
    assert bad.as_uri() in job.error.message
    assert "PWNED" not in job.error.message


async def test_members_of_an_archive_cannot_leave_the_install_directory(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch, installer: str
) -> None:
    data = {"fake_server-1.0.data/data/../../../../PWNED": "x"}
    bad = [
        wheel(tmp_path / "files", extra={"../../../../../PWNED": "x"}),
        wheel(tmp_path / "files", "other", extra=data),
    ]
    scripts = wheel(tmp_path / "files", "third", scripts=("../../../../../PWNED", "third"))
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, *bad, scripts))
    begun = [world.begin({**entry(package), "id": package}) for package in ("fake-server", "other", "third")]
    for job in begun:
        await job.wait()
    # uv leaves such a member out, and refuses such a script.
    assert isinstance(begun[{"pip": 0, "uv": 2}[installer]].error, BuildFailed | SourceUnavailable)
    assert all(path.parent.name == "bin" for path in tmp_path.rglob("PWNED"))


async def test_wheels_of_odd_names_harm_nobody(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch, installer: str
) -> None:
    # uv refuses control characters.
    odd = [
        *(["\x1b[2Jclear"] if installer == "pip" else []),
        "README",
        "readme",
        *(f"many/{number}" for number in range(3000)),
    ]
    good = wheel(tmp_path / "files", extra={f"fake_server/{name}": name for name in odd})
    deep = wheel(tmp_path / "files", "other", extra={"other/" + "a/" * 200 + "f": "x"})
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, good, deep))
    job = await world.install(entry())
    assert job.error is None
    (package,) = world.store.get(job.server_id).generation.glob(".venv/lib/python3*/site-packages/fake_server")
    assert {name: (package / name).read_text() for name in odd} == {name: name for name in odd}
    job = await world.install({**entry("other"), "id": "other"})
    assert isinstance(job.error, InvalidManifest)
    assert "128 nested directories" in job.error.message
    assert world.left_over() == []


async def test_an_unknown_version_is_named(world: World, tmp_path: Path, own_index: pytest.MonkeyPatch) -> None:
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, wheel(tmp_path / "files")))
    job = await world.install(entry(), version="9.9")
    assert isinstance(job.error, SourceUnavailable)
    assert "9.9" in job.error.message


async def test_a_version_that_was_asked_for_is_kept(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    files = [wheel(tmp_path / "files", version=version) for version in ("1.0", "2.0")]
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, *files))
    job = await world.install(entry(version="2.0"), version="1.0")
    assert job.error is None
    installed = world.store.get("org.test.py").manifest
    assert installed is not None
    assert installed.version == "1.0"
    world.shelf.put(entry(version="3.0"))
    assert world.installer.updates() == {}


@pytest.mark.parametrize("installer", ["uv"], indirect=True)
async def test_cancel_ends_the_command_that_runs(world: World, tmp_path: Path, own_index: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    own_index.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    job = world.begin(entry())
    await asked.wait()
    assert running(tmp_path)
    job.cancel()
    await job.wait()
    server.close()
    await server.wait_closed()
    assert job.state is JobState.CANCELLED
    assert running(tmp_path) == []
    assert world.left_over() == []


async def test_mcp_server_time_now_and_with_the_older_sdk_side_by_side(world: World) -> None:
    new = world.begin({**entry("mcp-server-time"), "id": "time.new"})
    command = [{"type": "stdio", "command": "python3", "args": ["-m", "mcp_server_time"]}]
    old = world.begin({**entry("mcp-server-time", transports=command), "id": "time.old"}, version="2026.10.10")
    await asyncio.gather(new.wait(), old.wait())
    assert new.error is old.error is None
    sdk = {}
    for server_id in ("time.new", "time.old"):
        tools = [tool["name"] for tool in world.store.tools(server_id) or []]
        assert tools == ["get_current_time", "convert_time"]
        lock = read_lock(world.store.get(server_id).generation)
        sdk[server_id] = next(file["version"] for file in lock["files"] if file["name"] == "mcp")
        assert all(file["integrity"].startswith("sha256:") for file in lock["files"])
    assert int(sdk["time.new"].split(".")[0]) >= 2
    assert int(sdk["time.old"].split(".")[0]) == 1
