# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing from tar and zip files."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import IntegrityMismatch, InvalidManifest, LimitExceeded, SourceUnavailable
from mcpd.install import JobState, read_lock
from mcpd.install.sources import archive
from tests.install.install_parts import SERVER, World, index, local, reach, tarball, wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PROJECT = {"hello-1.0/server.py": SERVER, "hello-1.0/VERSION": "one", "hello-1.0/.git/config": "[core]"}


def zipped(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return buffer.getvalue()


def saved(directory: Path, data: bytes, name: str = "hello-1.0.tar.gz", **fields: Any) -> dict[str, Any]:
    """An entry for the archive *data*, which is a file in *directory*."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(data)
    return at((directory / name).as_uri(), data, **fields)


def at(url: str, data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "archive", "url": url, "sha256": hashlib.sha256(data).hexdigest(), **fields}


class Files:
    """Serves files over http on the loopback."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.begun, self.going = threading.Event(), threading.Event()
        self.going.set()
        files = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = files.bodies.get(self.path, b"")
                self.send_response(302 if self.path in files.redirects else 200 if body else 404)
                self.send_header("Location", files.redirects.get(self.path, ""))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                files.begun.set()
                files.going.wait()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.going.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def files() -> Iterator[Files]:
    made = Files()
    yield made
    made.close()


async def test_a_tar_file_without_its_top_directory(world: World, tmp_path: Path) -> None:
    data = tarball(PROJECT)
    source = saved(tmp_path / "files", data)
    job = await world.install(local(tmp_path, source=source))
    assert job.error is None
    generation = world.store.get("org.test.hello").generation
    assert (generation / "VERSION").read_text() == "one"
    assert not (generation / ".git").exists()
    assert read_lock(generation)["resolved"] == {"sha256": source["sha256"]}
    planned = {(item.kind, item.key, item.integrity) for item in job.plan}
    assert ("package", "hello-1.0.tar.gz", f"sha256:{source['sha256']}") in planned
    assert world.left_over() == []


async def test_a_zip_file_and_a_directory_of_it(world: World, tmp_path: Path) -> None:
    data = zipped({"hello-1.0/servers/mine/server.py": SERVER, "hello-1.0/README": "hello"})
    job = await world.install(local(tmp_path, source=saved(tmp_path / "files", data, "x.zip", path="servers/mine")))
    assert job.error is None
    assert not (world.store.get("org.test.hello").generation / "README").exists()
    for path in ("servers/none", "README"):
        source = saved(tmp_path / "files", data, "x.zip", path=path)
        missing = await world.install(local(tmp_path, source=source), reinstall=True)
        assert isinstance(missing.error, InvalidManifest)
        assert path in missing.error.message
    assert world.left_over() == []


async def test_many_things_at_the_top_are_the_project(world: World, tmp_path: Path) -> None:
    data = tarball({"server.py": SERVER, "src/data": "x"})
    job = await world.install(local(tmp_path, source=saved(tmp_path / "files", data)))
    assert job.error is None
    assert (world.store.get("org.test.hello").generation / "src/data").is_file()


async def test_dependencies_come_as_those_of_any_project(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    own_index.setenv("PIP_INDEX_URL", index(tmp_path / "index", wheel(tmp_path / "index", "helper", scripts=())))
    data = tarball({"x/server.py": "import helper\n" + SERVER, "x/requirements.txt": "helper==1.0\n"})
    job = await world.install(local(tmp_path, source=saved(tmp_path / "files", data)))
    assert job.error is None
    lock = read_lock(world.store.get("org.test.hello").generation)
    assert [file["name"] for file in lock["files"]] == ["hello-1.0.tar.gz", "helper"]


async def test_over_http_with_progress(world: World, tmp_path: Path, files: Files) -> None:
    data = tarball(PROJECT)
    files.bodies["/hello.tgz"] = data
    files.redirects["/latest"] = "/hello.tgz"
    job = await world.install(local(tmp_path, source=at(f"{files.url}/latest", data)))
    assert job.error is None
    assert job.bytes_done > 0


async def test_another_hash_is_refused_before_anything_is_unpacked(world: World, tmp_path: Path, files: Files) -> None:
    files.bodies["/hello.tgz"] = tarball({"../escaped": "x"})
    pinned = at(f"{files.url}/hello.tgz", b"something else")
    job = await world.install(local(tmp_path, source=pinned))
    assert isinstance(job.error, IntegrityMismatch)
    assert pinned["sha256"] in job.error.message
    assert hashlib.sha256(files.bodies["/hello.tgz"]).hexdigest() in job.error.message
    assert world.left_over() == []


async def test_the_hash_of_a_local_file_is_not_told(world: World, tmp_path: Path) -> None:
    data = tarball(PROJECT)
    source = saved(tmp_path / "files", data) | {"sha256": "0" * 64}
    job = await world.install(local(tmp_path, source=source))
    assert isinstance(job.error, IntegrityMismatch)
    assert hashlib.sha256(data).hexdigest() not in job.error.message


async def test_files_of_mcpd_are_no_archives(world: World, tmp_path: Path) -> None:
    secrets = world.paths.user.secrets
    secrets.mkdir(parents=True)
    (tmp_path / "link").symlink_to(secrets)
    for directory in (secrets, tmp_path / "link"):
        job = await world.install(local(tmp_path, source=saved(directory, tarball(PROJECT))))
        assert isinstance(job.error, InvalidManifest)
        assert "mcpd's own files" in job.error.message
    assert world.left_over() == []


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"sha256": ""}, "sha256"),
        ({"rev": "main"}, "rev"),
        ({"url": "http://example.com/x.zip"}, "https"),
        ({"url": "ftp://example.com/x.zip"}, "https"),
        ({"url": "https://user:word@example.com/x.zip"}, "password"),
        ({"url": "file:x.zip"}, "absolute path"),
        ({"url": ""}, "its archive source has no 'url'"),
    ],
)
async def test_sources_that_can_never_work(world: World, tmp_path: Path, fields: dict[str, str], fault: str) -> None:
    source = {"type": "archive", "url": "https://example.com/x.zip", "sha256": "0" * 64, **fields}
    with pytest.raises(InvalidManifest, match=fault):
        await world.install(local(tmp_path, source=source))


async def test_what_does_not_come_is_named(
    world: World, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (f"{files.url}/none.zip", "file:///nonexistent/none.zip"):
        job = await world.install(local(tmp_path, source=at(url, b"")))
        assert isinstance(job.error, SourceUnavailable)
        assert "none.zip" in job.error.message
    files.redirects["/away"] = "file:///etc/passwd"
    job = await world.install(local(tmp_path, source=at(f"{files.url}/away", b"")))
    assert isinstance(job.error, SourceUnavailable)
    monkeypatch.setattr(archive, "MAX_ARCHIVE", 1000)
    files.bodies["/large.zip"] = bytes(2000)
    job = await world.install(local(tmp_path, source=at(f"{files.url}/large.zip", bytes(2000))))
    assert isinstance(job.error, LimitExceeded)
    assert world.left_over() == []


def hostile(**attributes: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        info = tarfile.TarInfo("project/odd")
        for key, value in attributes.items():
            setattr(info, key, value)
        made.addfile(info)
    return buffer.getvalue()


# What unpacking refuses in the first place is tested with it.
HOSTILE = {
    "link": (hostile(type=tarfile.SYMTYPE, linkname="/etc"), "project/odd: a link that leads outside, to /etc"),
    "out of the project": (hostile(type=tarfile.SYMTYPE, linkname=".."), "odd"),
    "a place of mcpd's": (tarball({"odd/.mcpd-build/home/x": ""}), "odd.tgz contains .mcpd-build"),
    "nonsense": (b"nonsense", "neither a zip file nor a tar file"),
}


@pytest.mark.parametrize("which", HOSTILE)
async def test_hostile_archives_leave_nothing(world: World, tmp_path: Path, which: str) -> None:
    data, fault = HOSTILE[which]
    job = await world.install(local(tmp_path, source=saved(tmp_path / "files", data, "odd.tgz")))
    assert isinstance(job.error, InvalidManifest)
    assert fault in job.error.message
    assert "odd" in job.error.message
    assert world.store.list() == []
    assert world.left_over() == []
    assert [path for path in tmp_path.rglob("escaped*") if path.exists()] == []


async def test_cancelled_while_it_comes_nothing_is_left(world: World, tmp_path: Path, files: Files) -> None:
    data = tarball(PROJECT | {"hello-1.0/data": os.urandom(MEG).hex()})
    files.bodies["/hello.tgz"] = data
    files.going.clear()
    job = world.begin(local(tmp_path, source=at(f"{files.url}/hello.tgz", data)))
    await reach(job, world, JobState.FETCHING)
    job.cancel()
    await job.wait()
    assert job.state is JobState.CANCELLED
    assert world.left_over() == []


MEG = 1 << 20


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_modules_that_lie_in_the_archive_are_not_taken(world: World, tmp_path: Path) -> None:
    files = {"x/server.py": SERVER, "x/package.json": '{"name": "x"}', "x/node_modules/evil/index.js": "//"}
    job = await world.install(local(tmp_path, source=saved(tmp_path / "files", tarball(files))))
    assert job.error is None
    assert not (world.store.get("org.test.hello").generation / "node_modules").exists()


async def test_settings_that_an_entry_names_are_asked_for_before_anything_is_fetched(
    world: World, tmp_path: Path
) -> None:
    source = saved(tmp_path / "files", tarball(PROJECT))
    shutil.rmtree(tmp_path / "files")
    asked = [{"key": "region", "required": True, "type": "string"}, {"key": "KEY", "required": True, "sensitive": True}]
    job = world.begin(local(tmp_path, source=source, configurableProperties=asked))
    await reach(job, world, JobState.NEEDS_CONFIG)
    assert [need.key for need in job.needs] == ["region", "KEY"]
    assert {"source", "command", "setting"} <= {item.kind for item in job.plan}
    assert "package" not in {item.kind for item in job.plan}
    job.set_config({"region": "eu"})
    job.set_secret("KEY", "s3cret")
    await job.wait()
    assert isinstance(job.error, SourceUnavailable)
    assert world.states(job).count(JobState.NEEDS_CONFIG) == 1
    assert world.left_over() == []
