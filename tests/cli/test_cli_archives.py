# SPDX-License-Identifier: LGPL-2.1-or-later
"""install of bundles, archives, server.json files and signed manifests: what is sent to mcpd for them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.cli.targets import name_and_version
from mcpd.errors import McpdError, SignatureInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

DIGEST = "AB" * 32
SIGNATURE = "c2lnbmF0dXJl"
SERVER_JSON = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "com.example/calculator",
    "description": "Adds numbers",
    "version": "1.0.2",
    "packages": [
        {
            "registryType": "npm",
            "identifier": "@example/calculator",
            "version": "1.0.2",
            "transport": {"type": "stdio"},
            "environmentVariables": [{"name": "API_KEY", "isRequired": True, "isSecret": True}],
        }
    ],
}
MANIFEST = {
    "id": "calculator", "name": "Calculator", "source": {"type": "npm", "package": "calculator", "version": "1.0"},
}  # fmt: skip


def sent(mcpd: FakeMcpd) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(mcpd.received[-1])
    return document


@pytest.mark.parametrize("suffix", [".mcpb", ".dxt", ".MCPB"])
async def test_a_bundle_travels_as_a_file(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path, suffix: str) -> None:
    bundle = tmp_path / f"calculator{suffix}"
    bundle.write_bytes(b"PK" + bytes(300_000))
    digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
    ended = await mcpctl("install", str(bundle), *(["--sha256", digest] if suffix == ".mcpb" else []))
    assert (ended.code, ended.out) == (0, "Installed calculator 1.0 (user).\n")
    assert mcpd.received == [bundle.read_bytes()]
    assert mcpd.calls[0] == ("InstallBundle", 0, {"consent": False, "reinstall": False, "config": {}, "sha256": digest})


async def test_a_bundle_that_is_vouched_for_as_something_else_is_sent_as_unverified(
    mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Once(dict[str, McpdError]):
        def __getitem__(self, member: str) -> McpdError:
            return self.pop(member)

    bundle = tmp_path / "calculator.mcpb"
    bundle.write_bytes(b"PK")
    monkeypatch.setattr(mcpd, "errors", Once(InstallBundle=SignatureInvalid("under another id")))
    ended = await mcpctl("install", str(bundle))
    assert (ended.code, ended.out) == (0, "Installed calculator 1.0 (user).\n")
    assert "calculator.mcpb: installing as unverified: the registry lists this file under another id" in ended.err
    (_, _, options) = mcpd.calls[0]
    assert (options["unverified"], options["sha256"]) == (True, hashlib.sha256(b"PK").hexdigest())


async def test_a_file_that_hashes_to_something_else_is_not_sent(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    for name in ("calculator.mcpb", "calculator.tar.gz"):
        (tmp_path / name).write_bytes(b"other")
        ended = await mcpctl("install", str(tmp_path / name), "--sha256", DIGEST)
        assert ended.code == 1
        assert f"{tmp_path / name} has the SHA-256 digest {hashlib.sha256(b'other').hexdigest()}" in ended.err
    assert mcpd.calls == []


@pytest.mark.parametrize(
    ("target", "source", "server_id", "version"),
    [
        ("https://example.com/calculator-1.2.3.mcpb",
         {"type": "mcpb", "url": "https://example.com/calculator-1.2.3.mcpb"}, "calculator", "1.2.3"),
        ("https://example.com/dl/calculator.tar.gz?raw=1#sub/dir",
         {"type": "archive", "url": "https://example.com/dl/calculator.tar.gz?raw=1", "path": "sub/dir"},
         "calculator", ""),
        ("http://127.0.0.1:8000/calculator_v2.0.zip",
         {"type": "archive", "url": "http://127.0.0.1:8000/calculator_v2.0.zip"}, "calculator", "2.0"),
    ],
)  # fmt: skip
async def test_a_url_is_sent_with_its_digest(
    mcpctl: Mcpctl, mcpd: FakeMcpd, target: str, source: dict[str, str], server_id: str, version: str
) -> None:
    ended = await mcpctl("install", target, "--sha256", DIGEST)
    assert ended.code == 0, ended.err
    assert sent(mcpd)["source"] == source | {"sha256": DIGEST.lower()}
    assert (sent(mcpd)["id"], sent(mcpd)["version"]) == (server_id, version)


async def test_an_archive_of_this_machine_is_pinned_as_it_is(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    archive = tmp_path / "calculator 1.0.zip"
    archive.write_bytes(b"PK")
    ended = await mcpctl(
        "install", str(archive), "--id", "calculator", "--command", "python3", "--permission", "network"
    )
    assert ended.code == 0, ended.err
    digest = hashlib.sha256(b"PK").hexdigest()
    assert sent(mcpd)["source"] == {"type": "archive", "url": archive.as_uri(), "sha256": digest}
    assert (sent(mcpd)["id"], sent(mcpd)["permissions"]) == ("calculator", ["network"])


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["https://example.com/a.mcpb"], 2, "--sha256"),
        (["https://example.com/a.tar.gz"], 2, "--sha256"),
        (["https://example.com/v1.2.tar.gz", "--sha256", DIGEST], 2, "--id"),
        (["https://example.com/a.mcpb", "--sha256", "12"], 2, "64 hexadecimal digits"),
        (["https://example.com/a.mcpb", "--sha256", DIGEST, "--command", "x"], 2, "a bundle, and its manifest"),
        (["./a.mcpb", "--id", "x"], 2, "omit --id"),
        (["./nowhere.mcpb"], 4, "there is no file nowhere.mcpb"),
        (["./nowhere.zip"], 4, "nowhere.zip"),
        (["calculator", "--sha256", DIGEST], 2, "--sha256 applies only to bundles"),
        (["pypi:calculator", "--source", "https://r.example/r.json"], 2, "omit --source"),
        (["ftp://example.com/a.zip", "--sha256", DIGEST], 2, "--sha256"),
    ],
)
async def test_archives_nobody_can_read(mcpctl: Mcpctl, mcpd: FakeMcpd, argv: list[str], code: int, text: str) -> None:
    ended = await mcpctl("install", *argv)
    assert (ended.code, text in ended.err) == (code, True), ended.err
    assert mcpd.calls == []


async def test_an_id_may_end_like_an_archive(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["com.example.zip"] = {"id": "com.example.zip", "scope": "user"}
    assert (await mcpctl("install", "com.example.zip")).code == 0
    assert ("Install", "com.example.zip") in [call[:2] for call in mcpd.calls]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("a.zip", ("a", "")), ("a-b_1.0.tar.gz", ("a-b", "1.0")), ("a-v2.0.1-rc1.tgz", ("a", "2.0.1-rc1")),
        ("v1.0.zip", ("", "1.0")), ("server2.mcpb", ("server2", "")), ("a-1.mcpb", ("a-1", "")), (".zip", ("", "")),
    ],
)  # fmt: skip
def test_archives_are_named_like_their_files(file: str, expected: tuple[str, str]) -> None:
    assert name_and_version(file) == expected


async def test_a_server_json_becomes_an_entry(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    file.write_text(json.dumps(SERVER_JSON))
    mcpd.servers["com.example.calculator"] = {"id": "com.example.calculator", "scope": "user"}
    ended = await mcpctl("install", str(file), "--permission", "devices")
    assert ended.code == 0, ended.err
    assert sent(mcpd)["id"] == "com.example.calculator"
    assert sent(mcpd)["source"]["type"] == "npm"
    assert "devices" in sent(mcpd)["permissions"]
    (key,) = sent(mcpd)["configurableProperties"]
    assert (key["key"], key["sensitive"]) == ("API_KEY", True)


async def test_a_signature_travels_with_the_very_bytes(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    file = tmp_path / "calculator.json"
    for document in (MANIFEST, SERVER_JSON | {"name": "calculator"}):
        text = json.dumps(document, indent=3) + "\n\n"
        file.write_text(text)
        (tmp_path / "calculator.json.sig").write_text(SIGNATURE + "\n")
        ended = await mcpctl("install", str(file))
        assert ended.code == 0, ended.err
        assert mcpd.received[-1] == text.encode()
        assert [call for call in mcpd.calls if call[0] == "InstallManifest"][-1][2]["signature"] == SIGNATURE


@pytest.mark.parametrize(
    ("document", "argv"),
    [
        (MANIFEST, ["--permission", "network"]),
        (MANIFEST, ["--id", "calculator"]),
        ({"id": "calculator", "transports": []}, []),
        (MANIFEST | {"source": {"type": "local", "path": "sub"}}, []),
    ],
)
async def test_a_signature_of_something_else_is_left_out(
    mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path, document: dict[str, Any], argv: list[str]
) -> None:
    file = tmp_path / "calculator.json"
    file.write_text(json.dumps(document))
    (tmp_path / "calculator.json.sig").write_text(SIGNATURE)
    ended = await mcpctl("install", str(file), *argv)
    assert ended.code == 0, ended.err
    assert f"{file}.sig is not used" in ended.err
    assert "signature" not in mcpd.calls[0][2]


async def test_a_signature_that_is_no_signature_is_refused(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    (tmp_path / "calculator.json").write_text(json.dumps(MANIFEST))
    (tmp_path / "calculator.json.sig").write_bytes(bytes(100_000))
    ended = await mcpctl("install", f"{tmp_path}/calculator.json")
    assert ended.code == 2
    assert "calculator.json.sig" in ended.err
    assert mcpd.calls == []


@pytest.mark.parametrize(
    ("document", "text"),
    [({"servers": []}, "source add"), ({"servers": {}}, "mcpctl import"), ({"mcpServers": {}}, "mcpctl import")],
)
async def test_a_file_with_many_servers_has_other_commands(
    mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path, document: dict[str, Any], text: str
) -> None:
    (tmp_path / "many.json").write_text(json.dumps(document))
    ended = await mcpctl("install", f"{tmp_path}/many.json")
    assert (ended.code, text in ended.err) == (2, True)
