# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing from git repositories, with the real git."""

from __future__ import annotations

import base64
import subprocess
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import AlreadyInstalled, InvalidManifest, SourceUnavailable
from mcpd.install import JobState, read_lock
from tests.install.git_server import Repository, Server
from tests.install.install_parts import SERVER, World, local

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "repos/hello")
    made.commit({"server.py": SERVER, "VERSION": "one"})
    return made


def version(world: World) -> str:
    return (world.paths.user.installed / "org.test.hello/VERSION").read_text()


async def test_branch_tag_and_commit(world: World, tmp_path: Path, repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.git("tag", "v1")
    repository.git("branch", "old")
    second = repository.commit({"VERSION": "two"})
    for rev, text, commit in (("", "two", second), ("v1", "one", first), ("old", "one", first), (first, "one", first)):
        job = await world.install(local(tmp_path, source=repository.source(rev=rev)), reinstall=True)
        assert job.error is None
        assert version(world) == text
        generation = world.store.get("org.test.hello").generation
        assert read_lock(generation)["resolved"] == {"rev": commit}
        assert not (generation / ".git").exists()
        assert world.left_over() == []


@pytest.mark.parametrize("rev", ["v9", "0" * 40, "abcdef1"])
async def test_an_unknown_revision_is_named(world: World, tmp_path: Path, repository: Repository, rev: str) -> None:
    job = await world.install(local(tmp_path, source=repository.source(rev=rev)))
    assert isinstance(job.error, SourceUnavailable)
    assert rev in job.error.message
    assert world.left_over() == []


async def test_the_project_is_a_directory_of_the_repository(
    world: World, tmp_path: Path, repository: Repository
) -> None:
    repository.commit({"servers/mine/server.py": SERVER, "servers/mine/VERSION": "mine"})
    job = await world.install(local(tmp_path, source=repository.source(path="servers/mine")))
    assert job.error is None
    assert version(world) == "mine"
    assert not (world.store.get("org.test.hello").generation / "servers").exists()
    missing = await world.install(local(tmp_path, source=repository.source(path="servers/none")), reinstall=True)
    assert isinstance(missing.error, InvalidManifest)
    assert "servers/none" in missing.error.message


async def test_links_cannot_lead_out_of_the_repository(world: World, tmp_path: Path, repository: Repository) -> None:
    (repository.path / "away").symlink_to("/etc")
    repository.commit()
    for source in (repository.source(), repository.source(path="away")):
        job = await world.install(local(tmp_path, source=source))
        assert isinstance(job.error, InvalidManifest)
        assert "away" in job.error.message
    assert world.store.list() == []


async def test_a_repository_of_too_many_nested_directories_leaves_nothing(
    world: World, tmp_path: Path, repository: Repository
) -> None:
    stream = f"commit refs/heads/deep\ncommitter a <a@b> 0 +0000\ndata 0\nM 100644 inline {'a/' * 1300}f\ndata 0\n"
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repository.path, input=stream.encode(), check=True)
    job = await world.install(local(tmp_path, source=repository.source(rev="deep")))
    assert isinstance(job.error, InvalidManifest)
    assert "128 nested directories" in job.error.message
    assert world.left_over() == []
    world.store.recover()


async def test_nothing_of_the_repository_runs(world: World, tmp_path: Path, repository: Repository) -> None:
    other = Repository(tmp_path / "repos/other")
    other.commit({"x": "y"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", other.path.as_uri(), "sub")
    repository.commit({".gitattributes": "* filter=evil\n", ".lfsconfig": "[lfs]\nurl=http://127.0.0.1:1/\n"})
    hook = repository.path / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    hook.chmod(0o755)
    repository.git("config", "filter.evil.smudge", f"touch {tmp_path}/PWNED")
    repository.git("config", "uploadpack.packObjectsHook", f"touch {tmp_path}/PWNED; exec")
    job = await world.install(local(tmp_path, source=repository.source()))
    assert job.error is None
    assert not (tmp_path / "PWNED").exists()
    assert not any((world.store.get("org.test.hello").generation / "sub").iterdir())


@pytest.mark.parametrize("kind", ["smart", "dumb"])
async def test_over_https(
    world: World, tmp_path: Path, repository: Repository, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.commit({"VERSION": "two"})
    repository.git("update-server-info")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(tmp_path / "ca.pem"))
    with Server(tmp_path / "repos", tmp_path / "ca.pem") as server:
        url = f"{server.url}/{kind}/hello/.git"
        for rev, text in (("", "two"), (first, "one")):
            job = await world.install(local(tmp_path, source={"type": "git", "url": url, "rev": rev}), reinstall=True)
            assert job.error is None
            assert version(world) == text
        untrusted = tmp_path / "other.pem"
        untrusted.write_text("")
        monkeypatch.setenv("GIT_SSL_CAINFO", str(untrusted))
        job = await world.install(local(tmp_path, source={"type": "git", "url": url}), reinstall=True)
        assert isinstance(job.error, SourceUnavailable)
        assert version(world) == "one"


async def test_credentials_reach_the_server_but_no_command_line_and_no_log(
    world: World,
    tmp_path: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("GIT_SSL_CAINFO", str(tmp_path / "ca.pem"))
    assert repository.git("rev-parse", "HEAD")
    with Server(tmp_path / "repos", tmp_path / "ca.pem") as server, caplog.at_level("DEBUG", "mcpd"):
        url = f"{server.url}/smart/hello/.git".replace("https://", "https://me:hunter%3A2@")
        job = await world.install(local(tmp_path, source={"type": "git", "url": url}))
    assert job.error is None
    expected = "Basic " + base64.b64encode(b"me:hunter:2").decode()
    assert {authorization for authorization, _ in server.asked} == {expected}
    assert all("127.0.0.1" in lines and "hunter" not in lines for _, lines in server.asked)
    assert "fetching" in caplog.text
    assert "hunter" not in caplog.text


async def test_nobody_is_asked_for_a_password(world: World, tmp_path: Path) -> None:
    source = {"type": "git", "url": "https://user:secret@127.0.0.1:1/x.git"}
    job = await world.install(local(tmp_path, source=source))
    assert isinstance(job.error, SourceUnavailable)
    assert "secret" not in job.error.message


@pytest.mark.parametrize(
    "source",
    [
        {"url": "ssh://git@host.test/x.git"},
        {"url": "git@host.test:x.git"},
        {"url": "http://host.test/x.git"},
        {"url": "git://host.test/x.git"},
        {"url": "https://host.test/x.git", "rev": "a..b"},
        {"url": "https://host.test/x.git", "rev": "+refs/heads/*:refs/heads/*"},
        {"url": "https://host.test/x.git", "rev": "-v"},
        {"url": "https://host.test/x.git", "path": ".git/hooks"},
        {"url": "https://host.test/x.git", "path": "../x"},
        {"url": "https://host.test/x.git", "sha256": "0" * 64},
    ],
)
async def test_sources_that_can_never_work_are_refused_at_once(
    world: World, tmp_path: Path, source: dict[str, str]
) -> None:
    with pytest.raises(InvalidManifest):
        world.begin(local(tmp_path, source={"type": "git", **source}))


async def test_a_python_project_is_built_without_a_network(
    world: World, tmp_path: Path, repository: Repository
) -> None:
    probe = (
        "import socket\n"
        "try:\n"
        "    socket.create_connection(('127.0.0.1', PORT), 2)\n"
        "    raise SystemExit('the build has a network')\n"
        "except OSError:\n"
        "    pass\n"
        "for path in ('../../../manifest.json', '../../../PWNED', '../../PWNED', '/usr/PWNED'):\n"
        "    try:\n"
        "        open(path, 'w').close()\n"
        "        raise SystemExit(f'the build may write {path}')\n"
        "    except OSError:\n"
        "        pass\n"
        "from setuptools import setup\n"
        "setup(name='hello-server', version='3.1', py_modules=['server'], install_requires=['typing-extensions'],\n"
        "      entry_points={'console_scripts': ['hello-server = server:main']})\n"
    )
    with Server(tmp_path / "repos", tmp_path / "ca.pem") as server:
        port = server.url.rpartition(":")[2]
        repository.commit({"setup.py": probe.replace("PORT", port)})
        entry = {**local(tmp_path, source=repository.source()), "transports": [], "version": ""}
        job = await world.install(entry)
    assert job.error is None
    installed = world.store.get("org.test.hello")
    assert installed.manifest is not None
    assert installed.manifest.version == "3.1"
    assert installed.manifest.stdio is not None
    assert installed.manifest.stdio.command == "hello-server"
    files = {file["name"].lower().replace("_", "-") for file in read_lock(installed.generation)["files"]}
    assert files == {"hello-server", "typing-extensions"}
    assert JobState.BUILDING in world.states(job)


async def test_requirements_are_installed_and_python3_is_the_environments(
    world: World, tmp_path: Path, repository: Repository
) -> None:
    repository.commit({"requirements.txt": "# needed\ntyping-extensions>=4  # types\n"})
    document = local(tmp_path, "which", source=repository.source())
    job = await world.install(document)
    assert job.error is None
    generation = world.store.get("org.test.hello").generation
    names = [tool["name"] for tool in world.store.tools("org.test.hello") or []]
    assert names[0] == f"{generation}/.venv/bin/python3"
    assert world.store.get("org.test.hello").manifest.to_json()["transports"] == document["transports"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line",
    [
        "-e git+https://host.test/x#egg=x",
        "evil @ git+https://host.test/x",
        "evil @ https://host.test/evil.tar.gz",
        "evil @ file:///etc/evil.whl",
        "./evil",
        "../evil.whl",
        "--index-url https://host.test/simple",
        "-r ../../other.txt",
        "fine --no-binary=:all:",
    ],
)
async def test_requirements_that_would_run_code_while_resolving_are_refused(
    world: World, tmp_path: Path, repository: Repository, line: str
) -> None:
    repository.commit({"requirements.txt": f"{line}\n"})
    job = await world.install(local(tmp_path, source=repository.source()))
    assert isinstance(job.error, InvalidManifest)
    assert JobState.BUILDING not in world.states(job)


async def test_a_version_that_is_named_moves_the_pin_and_nothing_else_does(
    world: World, tmp_path: Path, repository: Repository
) -> None:
    first = repository.git("rev-parse", "HEAD")
    document = local(tmp_path, source=repository.source())
    await world.fetch(document)
    world.store.set_pinned("org.test.hello", True)
    second = repository.commit({"VERSION": "two"})
    for commit, text in ((second, "two"), (first, "one")):
        job = await world.fetch(document, version=commit)
        assert job.error is None, job.error
        assert version(world) == text
        with pytest.raises(AlreadyInstalled, match="pinned"):
            await world.fetch(document, reinstall=True)
    world.shelf.put(local(tmp_path, version="9.0", source=repository.source()))
    assert world.updates() == {}
