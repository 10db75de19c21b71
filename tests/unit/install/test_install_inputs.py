# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an installation reads: projects, locks, reports, the host's configuration."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mcpd.errors import BuildFailed, IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.install.hostconfig import npm_config, pip_config, uv_config
from mcpd.install.pipeline import resolve_transports, seal
from mcpd.install.sources.base import Outcome
from mcpd.install.sources.local import check_readable
from mcpd.install.sources.npm import declared_commands, parse_lock
from mcpd.install.sources.project import required_by
from mcpd.install.sources.pypi import PythonProject, check_line, parse_pylock, parse_report
from mcpd.install.unpack import leads_outside
from mcpd.model import Entry
from mcpd.paths import Scope

SHA = "0" * 64


@pytest.mark.parametrize(
    "line",
    [
        "requests",
        "requests[socks]>=2,<3 ; python_version >= '3.8'",
        "pkg==1.0 --hash=sha256:" + SHA,
        "pkg @ https://host.test/pkg-1.0-py3-none-any.whl",
        "zope.interface~=5.0",
        "tar-thing",
    ],
)
def test_requirements_that_are_fine(line: str) -> None:
    check_line(line, "test")


@pytest.mark.parametrize(
    "line",
    [
        "pkg @ git+ssh://h/x",
        "pkg@http://h.test/x.whl",
        "/abs/x.whl",
        "x.whl",
        "pkg\n--index-url=x",
        "-c c.txt",
        "~/x",
        *(f"pkg; python_version > '3'{end}--no-binary :all:" for end in "\r\v\f\x1c\x85\u2028"),
        "pkg; python_version > '3' \\",
        "pkg @ https://host.test/${PIP_INDEX_URL}/x.whl",
    ],
)
def test_requirements_that_are_not(line: str) -> None:
    with pytest.raises(InvalidManifest):
        check_line(line, "test")


def test_a_project_is_read(tmp_path: Path) -> None:
    assert not PythonProject.read(tmp_path).needs_environment
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert not PythonProject.read(tmp_path).needs_environment
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['requests']\n")
    script = PythonProject.read(tmp_path)
    assert (script.is_package, script.requirements) == (False, ("requests",))
    (tmp_path / "pyproject.toml").write_text("[build-system]\nrequires = ['setuptools>=61']\n")
    package = PythonProject.read(tmp_path)
    assert package.is_package
    assert package.build_requirements == ("setuptools>=61", "wheel")


def test_requirement_files_include_each_other_inside_the_project_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "requirements.txt").write_text("-r base.txt\n\nhttpx \\\n  >=0.2  # client\n-e .\n")
    (root / "base.txt").write_text("requests\n")
    assert PythonProject.read(root).requirements == ("requests", "httpx    >=0.2")
    (root / "base.txt").write_text("-r requirements.txt\n")
    with pytest.raises(InvalidManifest, match="includes itself"):
        PythonProject.read(root)
    (tmp_path / "outside.txt").write_text("evil\n")
    (root / "base.txt").write_text("-r ../outside.txt\n")
    with pytest.raises(InvalidManifest, match="outside the project"):
        PythonProject.read(root)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[project\n", "cannot be read: "),
        ("a" + ".a" * 100_000 + " = 1", r"cannot be read: a key of more than 64 parts \(at line 1, column 1\)"),
        ("a = " + "9" * 5000, "cannot be read: a number with thousands of digits"),
        ("a = '\udcff'", "cannot be read: not UTF-8"),
    ],
    ids=["open", "long-key", "digits", "bytes"],
)
def test_broken_project_files_are_named(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text, errors="surrogateescape")
    with pytest.raises(InvalidManifest, match=rf"^the project's pyproject\.toml {fault}"):
        PythonProject.read(tmp_path)


def report(**item: Any) -> bytes:
    found = {
        "metadata": {"name": "pkg", "version": "1.0"},
        "download_info": {"url": "https://u:p@h.test/pkg-1.0-py3-none-any.whl", "archive_info": {"hashes": {}}},
    }
    return json.dumps({"install": [{**found, **item}]}).encode()


def test_a_report_needs_wheels_with_strong_hashes() -> None:
    good = {
        "url": "https://h.test/pkg-1.0%2Bx-py3-none-any.whl#f",
        "archive_info": {"hashes": {"sha256": SHA, "md5": "1"}},
    }
    (found,) = parse_report(report(download_info=good))
    assert (found.integrity, found.file) == (f"sha256:{SHA}", "pkg-1.0+x-py3-none-any.whl")
    with pytest.raises(IntegrityMismatch):
        parse_report(report())
    with pytest.raises(IntegrityMismatch):
        parse_report(report(download_info={**good, "archive_info": {"hash": "md5=1"}}))
    smuggled = {"sha256": f"{SHA}\nother==1.0 --hash=sha256:{SHA}"}
    with pytest.raises(IntegrityMismatch, match="no SHA-2 hash"):
        parse_report(report(download_info={**good, "archive_info": {"hashes": smuggled}}))
    with pytest.raises(InvalidManifest, match="wheel"):
        parse_report(report(download_info={"url": "git+https://h.test/x", "vcs_info": {}}))
    with pytest.raises(InvalidManifest, match="invalid name"):
        parse_report(report(metadata={"name": "x\n--index-url", "version": "1"}, download_info=good))
    with pytest.raises(SourceUnavailable):
        parse_report(b"not json")


def pylock(*wheels: str, name: str = "pkg", sha256: str = f'sha256 = "{SHA}"') -> bytes:
    listed = ", ".join(f'{{url = "https://h.test/{wheel}", size = 7, hashes = {{{sha256}}}}}' for wheel in wheels)
    return f"[[packages]]\nname = {json.dumps(name)}\nversion = '1.0'\nwheels = [{listed}]\n".encode()


def test_a_lock_of_uv_needs_wheels_with_sha256() -> None:
    compiled = "pkg-1.0-cp313-cp313-manylinux_2_17_x86_64.whl"
    newer = "pkg-1.0-cp313-cp313-manylinux_2_28_x86_64.whl"
    (found,) = parse_pylock(pylock(compiled, newer, "pkg-1.0-py3-none-any.whl"))
    assert (found.name, found.version, found.integrity) == ("pkg", "1.0", f"sha256:{SHA}")
    assert (found.file, found.size) == (newer, 7)
    assert parse_pylock(b"lock-version = '1.0'") == []
    with pytest.raises(IntegrityMismatch, match="no SHA-256 for pkg"):
        parse_pylock(pylock(compiled, sha256='md5 = "1"'))
    with pytest.raises(IntegrityMismatch, match="no SHA-256 for pkg"):
        parse_pylock(pylock(compiled, sha256=rf'sha256 = "{SHA}\nother==1.0 --hash=sha256:{SHA}"'))
    with pytest.raises(InvalidManifest, match="not available as a wheel"):
        parse_pylock(pylock())
    with pytest.raises(InvalidManifest, match="invalid name"):
        parse_pylock(pylock(compiled, name="x\n--index-url"))
    for broken in (b"not = [toml", b"packages = 3", b"[[packages]]\nversion = '1.0'"):
        with pytest.raises(SourceUnavailable, match="lock file cannot be read"):
            parse_pylock(broken)


@pytest.mark.parametrize(
    ("path", "item"),
    [
        ("node_modules/../../x", {"version": "1", "integrity": "sha512-x"}),
        ("../x", {"version": "1", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "git+ssh://h/x", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "https://r.test/x.tgz"}),
        ("node_modules/x", {"version": "1", "resolved": "https://h.test/x.tgz", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "https://r.test:8443/x.tgz", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "http://r.test/x.tgz", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "https://r.test@h.test/x.tgz", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "https://h.test\\@r.test/x.tgz", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "https://h.test\t@r.test/x.tgz", "integrity": "sha512-x"}),
        ("node_modules/x", {"version": "1", "resolved": "https://[h/x.tgz", "integrity": "sha512-x"}),
        ("node_modules/x", {"resolved": "../x", "link": True}),
        ("node_modules/x", {"version": "1", "resolved": "https://h.test/x.tgz", "dev": True}),
        ("node_modules/x", {"version": "1", "resolved": "https://h.test/x.tgz", "devOptional": True}),
        ("node_modules/x", {"version": "1", "inBundle": True}),
        ("node_modules/a/node_modules/x", {"version": "1", "resolved": "https://r.test/x.tgz", "inBundle": True}),
    ],
)
def test_a_package_lock_names_registry_packages_only(path: str, item: dict[str, Any]) -> None:
    with pytest.raises(InvalidManifest):
        parse_lock(json.dumps({"packages": {"": {}, path: item}}).encode(), ["https://r.test"])


def test_a_package_lock_may_name_the_default_registry_whichever_is_configured() -> None:
    item = {"version": "1", "integrity": "sha512-x"}
    for resolved in ("https://R.test/x.tgz", "https://r.test:443/x.tgz", "https://registry.npmjs.org/x.tgz"):
        lock = {"packages": {"node_modules/x": {**item, "resolved": resolved}}}
        (found,) = parse_lock(json.dumps(lock).encode(), ["https://r.test/npm/"])
        assert found.name == "x"


def test_what_a_package_says_about_itself_may_be_nonsense(tmp_path: Path) -> None:
    (found,) = parse_lock(json.dumps({"packages": {"node_modules/x": {"integrity": "sha512-x"}}}).encode(), [])
    assert found.version == ""
    with pytest.raises(InvalidManifest):
        parse_lock(b"[" * 100_000, [])
    (tmp_path / "package.json").write_text("[" * 100_000)
    assert declared_commands(tmp_path) == []
    entry = Entry.parse({"id": "a", "transports": [{"type": "stdio", "command": "not-there"}]}, "test")
    with pytest.raises(InvalidManifest, match="not-there"):
        resolve_transports(entry, Outcome(), tmp_path)


def test_a_wheel_that_cannot_be_unpacked_is_a_failed_build(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x-1.dist-info/METADATA", "Requires-Dist: other\n\n" + "text " * 1000)
    assert required_by(wheel) == ["other"]
    data = bytearray(wheel.read_bytes())
    data[60:70] = b"\xff" * 10
    wheel.write_bytes(data)
    with pytest.raises(BuildFailed, match="not a wheel"):
        required_by(wheel)


@pytest.mark.parametrize(
    ("points_at", "allowed"),
    [("/usr/bin/python3", True), ("/usr/bin/python3.11", True), ("/usr/bin/python3/../../../etc", False)],
)
def test_a_virtual_environment_may_point_at_the_interpreter_only(
    tmp_path: Path, points_at: str, *, allowed: bool
) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(points_at)
    if allowed:
        seal(tmp_path)
        return
    with pytest.raises(InvalidManifest, match="leads outside"):
        seal(tmp_path)


@pytest.mark.parametrize(
    ("relative", "points_at", "outside"),
    [
        ("a", "b", False),
        ("a", "../b", True),
        ("d/a", "../b", False),
        ("d/a", "../../b", True),
        ("d/a", "x/../../b", True),
        ("a", "/etc", True),
        ("a", "./b/./c", False),
    ],
)
def test_links(relative: str, points_at: str, *, outside: bool) -> None:
    assert leads_outside(relative, points_at) is outside


def test_pip_finds_the_mirror_of_the_host(tmp_path: Path) -> None:
    index, wheels, certificate = tmp_path / "mirror/simple", tmp_path / "wheels", tmp_path / "ca.pem"
    constraints = tmp_path / "constraints.txt"
    for directory in (index, wheels):
        directory.mkdir(parents=True)
    for file in (certificate, constraints):
        file.touch()
    own = tmp_path / "config/pip/pip.conf"
    own.parent.mkdir(parents=True)
    own.write_text(f"[global]\nextra-index-url =\n  https://m.test/simple\n  {index.as_uri()}\ncert = {certificate}\n")
    with own.open("a") as opened:
        opened.write(f"constraint = {constraints}\n")
    environ = {
        "PIP_FIND_LINKS": str(wheels),
        "PIP_TARGET": "/x",
        "PYTHONPATH": "/y",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    found = pip_config(Scope.USER, tmp_path, environ)
    assert found.env == {"PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": str(own)}
    assert {own, certificate, constraints, wheels, index.parent} <= set(found.readable)
    assert "PIP_CONFIG_FILE" not in pip_config(Scope.SYSTEM, tmp_path, environ).env
    assert "PIP_CONFIG_FILE" not in pip_config(Scope.USER, tmp_path, {**environ, "PIP_CONFIG_FILE": "/dev/null"}).env


def test_npm_finds_the_registry_and_token_of_the_user(tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text("//r.test/:_authToken=${NPM_TOKEN}\n")
    environ = {"npm_config_registry": "https://r.test", "NPM_TOKEN": "t", "NODE_OPTIONS": "--require x"}
    found = npm_config(Scope.USER, tmp_path, environ)
    assert found.env.items() >= {"NPM_CONFIG_REGISTRY": "https://r.test", "NPM_TOKEN": "t"}.items()
    assert "NODE_OPTIONS" not in found.env
    assert tmp_path / ".npmrc" in found.readable
    assert "NPM_TOKEN" not in npm_config(Scope.SYSTEM, tmp_path, environ).env
    assert "NPM_TOKEN" not in repr(found)


def test_registries_and_proxies_of_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPM_SYSTEM_FILE", "NPM_PREFIX_FILE"):
        monkeypatch.setattr(f"mcpd.install.hostconfig.{name}", tmp_path / "none")
    assert npm_config(Scope.USER, tmp_path, {}).locations == ("https://registry.npmjs.org/",)
    (tmp_path / ".npmrc").write_text(
        "; registry=https://not.test\nregistry = https://own.test/${NAME}/\n@mine:registry=https://mine.test\n"
        "https-proxy=http://p.test:3128\nnoproxy=a.test,b.test\n//own.test/:_authToken=x=y\n"
    )
    environ = {"NAME": "npm", "https_proxy": "http://other.test", "NO_PROXY": "c.test"}
    found = npm_config(Scope.USER, tmp_path, environ)
    assert set(found.locations) == {"https://own.test/npm/", "https://mine.test"}
    assert found.proxies == {"http": "http://p.test:3128", "https": "http://p.test:3128", "no": "a.test,b.test"}
    found = npm_config(Scope.USER, tmp_path, environ | {"NPM_CONFIG_REGISTRY": "https://env.test"})
    assert set(found.locations) == {"https://env.test", "https://mine.test"}
    found = npm_config(Scope.SYSTEM, tmp_path, environ)
    assert found.locations == ("https://registry.npmjs.org/",)
    assert found.proxies == {"http": "", "https": "http://other.test", "no": "c.test"}


def test_indexes_and_proxies_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.install.hostconfig.PIP_SYSTEM_FILES", ())
    files = "https://files.pythonhosted.org/"
    own = tmp_path / "pip.conf"
    own.write_text(
        "[global]\nextra_index_url = https://a.test/simple\n  https://b.test/simple\n[install]\nproxy = p.test\n"
    )
    environ = {"PIP_CONFIG_FILE": str(own), "all_proxy": "http://other.test"}
    found = pip_config(Scope.USER, tmp_path, environ)
    assert {"https://pypi.org/simple", "https://a.test/simple", "https://b.test/simple", files} <= set(found.locations)
    assert found.proxies == {"http": "p.test", "https": "p.test", "no": ""}
    found = pip_config(
        Scope.USER, tmp_path, environ | {"PIP_INDEX_URL": "https://own.test/simple", "PIP_PROXY": "http://q.test"}
    )
    assert "https://own.test/simple" in found.locations
    assert "https://pypi.org/simple" not in found.locations
    assert found.proxies["https"] == "http://q.test"
    found = pip_config(Scope.USER, tmp_path, {"PIP_CONFIG_FILE": "/dev/null", "all_proxy": "http://other.test"})
    assert found.proxies == {"http": "http://other.test", "https": "http://other.test", "no": ""}


def test_uv_gets_the_settings_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.install.hostconfig.PIP_SYSTEM_FILES", ())
    own = tmp_path / "pip.conf"
    own.write_text(
        "[global]\nindex-url = https://own.test/simple\nextra-index-url = https://more.test/simple\n"
        "find-links =\n  /wheels\n  https://files.test/\ntrusted-host = own.test\ncert = /ca.pem\n"
        "constraint = /constraints.txt\ntimeout = 60\n"
    )
    found = uv_config(Scope.USER, tmp_path, {"PIP_CONFIG_FILE": str(own), "PIP_RETRIES": "2", "UV_INDEX": "x"})
    assert found.env == {
        "UV_DEFAULT_INDEX": "https://own.test/simple",
        "UV_INDEX": "https://more.test/simple",
        "UV_FIND_LINKS": "/wheels,https://files.test/",
        "UV_INSECURE_HOST": "own.test",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_CONSTRAINT": "/constraints.txt",
        "UV_HTTP_TIMEOUT": "60",
        "UV_HTTP_RETRIES": "2",
    }
    pip = pip_config(Scope.USER, tmp_path, {"PIP_CONFIG_FILE": str(own)})
    assert (found.readable, set(found.locations)) == (pip.readable, set(pip.locations))


@pytest.mark.parametrize(
    ("scripts", "command"),
    [(("only",), "only"), (("other", "my-server"), "my-server"), (("my_server", "z"), "my_server")],
)
@pytest.mark.parametrize("source", [{"type": "pypi", "package": "My.Server"}, {"type": "local", "path": "/src"}])
def test_the_script_of_a_package(
    tmp_path: Path, source: dict[str, str], scripts: tuple[str, ...], command: str
) -> None:
    entry = Entry.parse({"id": "a", "source": source}, "test")
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    for script in scripts:
        (binaries / script).touch()
    (transport,) = resolve_transports(entry, Outcome(package="my-server", scripts=scripts), tmp_path)
    assert transport.command == command


def test_names_are_the_same_only_by_the_rules_of_their_index(tmp_path: Path) -> None:
    entry = Entry.parse({"id": "a", "source": {"type": "npm", "package": "@scope/my-server"}}, "test")
    (programs := tmp_path / "node_modules/.bin").mkdir(parents=True)
    for script in ("my-server", "my_server"):
        (programs / script).touch()
    outcome = Outcome(package="@scope/my-server", scripts=("my_server", "my-server"))
    (transport,) = resolve_transports(entry, outcome, tmp_path)
    assert transport.command == "my-server"


@pytest.mark.parametrize(
    ("command", "args", "settled"),
    [
        ("uvx", ["--from", "other", "x"], None),
        ("pipx", ["run", "srv==1.0", "--a"], ("srv", ["--a"])),
        ("uvx", ["srv@latest"], ("srv", [])),
        ("npx", ["-y", "srv"], None),
    ],
)
def test_runners(tmp_path: Path, command: str, args: list[str], settled: tuple[str, list[str]] | None) -> None:
    document = {
        "id": "a",
        "source": {"type": "pypi", "package": "srv"},
        "transports": [{"type": "stdio", "command": command, "args": args}],
    }
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    for name in ("srv", command):
        (binaries / name).touch()
    (transport,) = resolve_transports(Entry.parse(document, "test"), Outcome(package="srv", scripts=("srv",)), tmp_path)
    assert (transport.command, transport.args) == (settled or (command, args))


@pytest.mark.parametrize(
    ("command", "way_out"),
    [
        ("sh server.sh", r"; start 'sh', and pass its arguments separately \(args, mcpctl install --arg\)$"),
        ("server.sh", r"; use '\./server\.sh' for the file with that name$"),
        ("nothing x", "installed on this system$"),
    ],
)
def test_a_command_that_is_not_there_may_be_written_otherwise(tmp_path: Path, command: str, way_out: str) -> None:
    (tmp_path / "server.sh").touch()
    entry = Entry.parse({"id": "a", "transports": [{"type": "stdio", "command": command}]}, "test")
    with pytest.raises(InvalidManifest, match=way_out):
        resolve_transports(entry, Outcome(), tmp_path)


def test_several_scripts_are_named(tmp_path: Path) -> None:
    entry = Entry.parse({"id": "a", "source": {"type": "pypi", "package": "srv"}}, "test")
    with pytest.raises(InvalidManifest, match="one, two"):
        resolve_transports(entry, Outcome(package="srv", scripts=("one", "two")), tmp_path)
    with pytest.raises(InvalidManifest, match="no command"):
        resolve_transports(entry, Outcome(package="srv"), tmp_path)


@pytest.mark.parametrize(
    ("path", "scope", "words"),
    [
        (
            "/home/nobody/x",
            Scope.SYSTEM,
            "the system's mcpd, whose service has no access to home directories and /tmp; copy it.*mcpctl --user",
        ),
        ("/srv/there/is/none", Scope.SYSTEM, r"the system's mcpd \(user mcpd\); check that it exists"),
        ("/home/nobody/x", Scope.USER, "you; check that it exists and is readable"),
    ],
)
def test_a_source_that_cannot_be_read_says_why(path: str, scope: Scope, words: str) -> None:
    with pytest.raises(SourceUnavailable, match=f"^{path} cannot be read by {words}"):
        check_readable(Path(path), scope)


def test_files_and_directories_are_sources(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("")
    for scope in Scope:
        check_readable(tmp_path, scope)
        check_readable(tmp_path / "bundle", scope)
