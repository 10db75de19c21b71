# SPDX-License-Identifier: LGPL-2.1-or-later
"""A package whose dependencies come from elsewhere has nobody asked but the registry, with the real npm and pip."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest

from mcpd.errors import IntegrityMismatch, InvalidManifest, SourceUnavailable
from tests.install.install_parts import World, index, local, wheel
from tests.install.npm_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SRI = "sha512-" + "A" * 86 + "=="


class Listener:
    """A service on the loopback interface that nobody may ask."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.at = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(1000))
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as made:
        yield made


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with Registry() as made:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", made.url)
        monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "0")
        yield made


def entry(kind: str) -> dict[str, Any]:
    source = {"type": kind, "package": "fake-server"}
    return {"id": "org.test.far", "name": "Far", "summary": "From a registry", "source": source}


@pytest.mark.parametrize("field", ["dependencies", "peerDependencies"])
@pytest.mark.parametrize(
    "place",
    [
        "http://{at}/evil.tgz",
        "https://{at}/evil.tgz",
        "git+http://{at}/evil.git",
        "git+ssh://git@{at}/evil.git",
        "git://{at}/evil.git",
    ],
)
async def test_npm_asks_nobody_but_the_registry(
    world: World, registry: Registry, listener: Listener, place: str, field: str
) -> None:
    where = place.format(at=listener.at)
    fields: dict[str, Any] = {field: {"evil": where}}
    registry.add("between", **fields)
    registry.add(dependencies={"between": "^1"})
    job = await world.install(entry("npm"))
    assert listener.asked == []
    assert isinstance(job.error, InvalidManifest)
    assert listener.at in job.error.message
    assert "configured registries" in job.error.message
    assert world.left_over() == []


async def test_an_optional_dependency_from_elsewhere_is_refused_as_well(
    world: World, registry: Registry, listener: Listener
) -> None:
    registry.add(optionalDependencies={"evil": f"http://{listener.at}/evil.tgz"})
    job = await world.install(entry("npm"))
    assert listener.asked == []
    assert isinstance(job.error, InvalidManifest)
    assert listener.at in job.error.message


async def test_a_shrinkwrap_of_a_package_names_the_registry_only(
    world: World, registry: Registry, listener: Listener
) -> None:
    registry.add("helper")
    item = {"version": "1.0.0", "resolved": f"http://{listener.at}/helper.tgz", "integrity": SRI}
    root = {"name": "between", "version": "1.0.0", "dependencies": {"helper": "^1"}}
    lock = {**root, "lockfileVersion": 3, "packages": {"": root, "node_modules/helper": item}}
    registry.add("between", dependencies={"helper": "^1"}, files={"package/npm-shrinkwrap.json": json.dumps(lock)})
    registry.packages["between"]["versions"]["1.0.0"]["_hasShrinkwrap"] = True
    registry.add(dependencies={"between": "^1"})
    job = await world.install(entry("npm"))
    assert listener.asked == []
    # npm fetches the registry's file instead, which does not have the hash of the shrinkwrap.
    assert isinstance(job.error, IntegrityMismatch)
    assert "helper 1.0.0" in job.error.message
    assert "the lock file of between" in job.error.message


@pytest.mark.parametrize("place", ["http://{at}/helper.tgz", "https://elsewhere.test/helper.tgz"])
async def test_the_lock_of_a_project_names_the_registry_only(
    world: World, registry: Registry, listener: Listener, tmp_path: Path, place: str
) -> None:
    source, where = tmp_path / "src", place.format(at=listener.at)
    source.mkdir()
    root = {"name": "mine", "version": "1.0.0", "dependencies": {"helper": "^1"}}
    item = {"version": "1.0.0", "resolved": where, "integrity": SRI}
    lock = {**root, "lockfileVersion": 3, "packages": {"": root, "node_modules/helper": item}}
    (source / "package.json").write_text(json.dumps(root))
    (source / "package-lock.json").write_text(json.dumps(lock))
    registry.add("helper")
    job = await world.install(local(source, transports=[{"type": "stdio", "command": "node", "args": ["x.js"]}]))
    assert listener.asked == []
    assert isinstance(job.error, InvalidManifest)
    assert where in job.error.message


async def test_a_registry_redirects_to_no_service_of_this_machine(
    world: World, registry: Registry, listener: Listener
) -> None:
    registry.add()
    registry.moved = f"http://{listener.at}/latest/meta-data"
    job = await world.install(entry("npm"))
    assert listener.asked == []
    assert isinstance(job.error, InvalidManifest)
    assert registry.moved in job.error.message


@pytest.mark.parametrize(
    "place",
    ["http://{at}/evil-1.0-py3-none-any.whl", "git+http://{at}/evil.git", "git+ssh://git@{at}/evil.git"],
)
async def test_pip_asks_nobody_but_the_index(
    world: World, listener: Listener, tmp_path: Path, own_index: pytest.MonkeyPatch, place: str
) -> None:
    between = wheel(tmp_path / "files", "between", requires=(f"evil @ {place.format(at=listener.at)}",))
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, wheel(tmp_path / "files", requires=("between",)), between))
    job = await world.install(entry("pypi"))
    assert listener.asked == []
    assert isinstance(job.error, InvalidManifest | SourceUnavailable)
    assert listener.at in job.error.message
    assert world.left_over() == []


async def test_npm_has_no_other_way_to_this_machine_than_the_proxy(
    world: World, registry: Registry, listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = listener.at.split(":")
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(
        "#!/usr/bin/python3\nimport socket, sys\n"
        f"try: socket.create_connection(({host!r}, {port})).sendall(b'x')\n"
        "except OSError as error: sys.exit(f'not reached: {error}')\n"
    )
    npm.chmod(0o755)
    monkeypatch.setattr("mcpd.install.workbench.PROGRAMS", str(npm.parent))
    job = await world.install(entry("npm"))
    assert listener.asked == []
    assert isinstance(job.error, SourceUnavailable)
    assert "not reached" in job.error.message
