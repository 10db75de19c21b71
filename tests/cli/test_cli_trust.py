# SPDX-License-Identifier: LGPL-2.1-or-later
"""source, key and sign."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import codec
from mcpd.paths import Scope
from mcpd.trust.keys import Keys, fingerprint
from mcpd.trust.signing import load_public, new_key, sign
from tests.rig import Rig
from tests.unit.catalog.catalog_paths import paths_below

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

SOURCE: dict[str, Any] = {
    "url": "https://example.com/r.json", "file": "/etc/mcp/sources.list.d/ex.toml", "scope": "system",
    "type": "registry", "state": "offline", "problem": "status 503", "updated": 0, "entries": 1234, "faults": [],
    "read-only": True, "signature": "required", "key": "ex", "signed-by": "ex-key",
}  # fmt: skip
KEY = {
    "name": "ex",
    "fingerprint": "SHA256:abc",
    "file": "/etc/mcp/keys.d/ex.pem",
    "scope": "system",
    "read-only": True,
}


@pytest.fixture
def key_calls(mcpd: FakeMcpd, monkeypatch: pytest.MonkeyPatch) -> FakeMcpd:
    """An mcpd that has a key and takes others."""
    monkeypatch.setattr(mcpd, "_ListKeys", lambda _frame: [[KEY]], raising=False)
    for member in ("AddKey", "RemoveKey"):
        monkeypatch.setattr(mcpd, f"_{member}", lambda _frame, *_args: [], raising=False)
    return mcpd


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "me.pem"
    path.write_bytes(new_key()[0])
    path.chmod(0o600)
    return path


async def test_source_list_says_who_vouches_and_how_old_it_is(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    now = int(time.time())
    mcpd.sources = [
        SOURCE | {"updated": now - 3 * 3600 - 60},
        SOURCE | {"url": "https://b.example/", "signature": "warn", "signed-by": "", "problem": "",
                  "faults": ["entry 3: id: bad", "entry 4: id: bad"], "state": "ready", "updated": now - 5 * 86400},
        SOURCE | {"url": "", "file": "/c.toml", "signature": "off", "signed-by": "", "state": "invalid"},
    ]  # fmt: skip
    ended = await mcpctl("source", "list")
    head, first, second, third, *_ = ended.out.splitlines()
    assert head.split() == ["URL", "NAME", "TYPE", "SCOPE", "STATE", "AGE", "ENTRIES", "SIGNED", "PROBLEM"]
    for part in ("https://example.com/r.json", "registry", "offline", " 3 h ", " 1234 ", " ex-key ", "status 503"):
        assert part in first
    assert " 5 d " in second
    assert second.endswith("2 errors in its entries")
    assert third.startswith("/c.toml ")
    assert "not required" in third
    assert json.loads((await mcpctl("source", "list", "--json")).out) == {"sources": mcpd.sources}


async def test_source_list_names_what_is_wrong_with_the_entries_of_each(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    many = [f"entry {at}: id: bad" for at in range(100)]
    mcpd.sources = [
        SOURCE
        | {
            "problem": "not signed by a trusted key: there is no signature",
            "faults": [many[0], f"{SOURCE['url']}: {many[1]}"],
        },
        SOURCE | {"url": "https://b.example/", "problem": "", "faults": [*many, "and 7 more errors"]},
        SOURCE | {"url": "https://c.example/", "faults": codec.Variant("as", [])},
    ]
    table, first, second = (await mcpctl("source", "list")).out.split("\n\n")
    rows = table.splitlines()[1:]
    assert rows[0].endswith("not signed by a trusted key: there is no signature; 2 errors in its entries")
    assert rows[1].endswith("  more than 100 errors in its entries")
    assert rows[2].endswith("  status 503")
    assert first.splitlines() == [f"In {SOURCE['url']}:", *(f"  {fault}" for fault in many[:2])]
    assert second.splitlines()[0] == "In https://b.example/:"
    assert second.splitlines()[20:] == [f"  {many[19]}", "  and others, see 'mcpctl source list --json'"]


@pytest.mark.parametrize("error", ["", "SourceUnavailable", "IntegrityMismatch"])
async def test_refresh_as_json_tells_how_each_source_is(mcpctl: Mcpctl, mcpd: FakeMcpd, error: str) -> None:
    mcpd.sources = [SOURCE]
    if error:
        mcpd.on_reading = lambda job: job.end("failed", f"org.mcpd.Mcp1.Error.{error}", "no route")
    ended = await mcpctl("refresh", "--json")
    assert (ended.code, json.loads(ended.out)) == (1, {"sources": [SOURCE]})
    mcpd.sources = [SOURCE | {"state": "ready"}]
    ended = await mcpctl("refresh", "--json")
    assert (ended.code, json.loads(ended.out)) == (int(bool(error)), {"sources": mcpd.sources})


async def test_a_source_is_shown_and_removed_by_its_name(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.sources = [
        SOURCE,
        SOURCE | {"url": "file:///list.json", "file": "/etc/mcp/sources.list"},
        SOURCE | {"url": "https://b.example/", "file": "/b/two.toml"},
        SOURCE | {"url": "https://c.example/", "file": "/c/two.toml"},
        SOURCE | {"url": "", "file": "/d/broken.toml"},
    ]
    rows = [line.split()[:3] for line in (await mcpctl("source", "list")).out.splitlines()]
    assert rows[1:3] == [[SOURCE["url"], "ex", "registry"], ["file:///list.json", "registry", "system"]]
    assert (await mcpctl("source", "remove", "ex")).out == f"Removed {SOURCE['url']}.\n"
    assert (await mcpctl("source", "remove", SOURCE["url"])).code == 0
    assert [call[1] for call in mcpd.calls if call[0] == "RemoveSource"] == [SOURCE["url"], SOURCE["url"]]
    for name, code, said in (
        ("two", 2, "2 registries are named 'two'"),
        ("broken", 2, "/d/broken.toml"),
        ("no", 4, "no"),
    ):
        ended = await mcpctl("source", "remove", name)
        assert (ended.code, said in ended.err) == (code, True), ended.err


async def test_a_key_that_is_not_there_is_warned_of(mcpctl: Mcpctl, key_calls: FakeMcpd) -> None:
    for key, said in (
        ("nope", "warning: there is no trusted key 'nope' yet; add it with: mcpctl key add FILE --name nope"),
        ("ex", ""),
    ):
        ended = await mcpctl("source", "add", "https://example.com/r.json", "--name", "n", "--key", key)
        assert (ended.code, ended.err[: len(said) or None]) == (0, said)
    assert [call[0] for call in key_calls.calls if call[0] != "ListSources"] == ["AddSource", "ListKeys"] * 2


async def test_source_add_says_what_is_asked_of_it(mcpctl: Mcpctl, key_calls: FakeMcpd) -> None:
    mcpd = key_calls
    url = "https://example.com/r.json"
    assert (await mcpctl("source", "add", url)).code == 0
    options = ("--name", "ex", "--type", "registry", "--signature", "required", "--key", "k")
    assert (await mcpctl("source", "add", url, *options)).code == 0
    assert (await mcpctl("source", "add", url, "--signature", "off")).code == 0
    assert [call for call in mcpd.calls if call[0] != "ListSources"] == [
        ("AddSource", url, {}),
        ("AddSource", url, {"name": "ex", "type": "registry", "signature": "required", "key": "k"}),
        ("ListKeys",),
        ("AddSource", url, {"signature": "off"}),
    ]
    before = len(mcpd.calls)
    assert (await mcpctl("source", "add", url, "--signature", "sometimes")).code == 2
    assert len(mcpd.calls) == before


@pytest.mark.parametrize(
    ("found", "out", "err"),
    [
        ({"state": "ready", "entries": 3}, "Added https://example.com/r.json, which has 3 servers.\n", ""),
        (
            {"state": "failed", "problem": "no route"},
            "Added https://example.com/r.json.\n",
            "warning: https://example.com/r.json could not be read (no route); none of its entries are known\n",
        ),
    ],
)
async def test_source_add_waits_until_the_registry_was_read(
    mcpctl: Mcpctl, mcpd: FakeMcpd, found: dict[str, Any], out: str, err: str
) -> None:
    mcpd.registry = found
    ended = await mcpctl("source", "add", "https://example.com/r.json")
    assert (ended.code, ended.out, ended.err) == (0, out, err)


async def test_key_list(mcpctl: Mcpctl, key_calls: FakeMcpd, monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = (await mcpctl("key", "list")).out.splitlines()
    assert head.split() == ["NAME", "FINGERPRINT", "SCOPE", "FILE"]
    assert row.split() == ["ex", "SHA256:abc", "system", "/etc/mcp/keys.d/ex.pem"]
    assert json.loads((await mcpctl("key", "list", "--json")).out) == {"keys": [KEY]}
    monkeypatch.setattr(key_calls, "_ListKeys", lambda _frame: [[]])
    ended = await mcpctl("key", "list")
    assert ended.out == ""
    assert "key add" in ended.err


async def test_key_add_and_remove(mcpctl: Mcpctl, key_calls: FakeMcpd, tmp_path: Path) -> None:
    public = new_key()[1]
    (tmp_path / "acme.pem.pub").write_bytes(public)
    ended = await mcpctl("key", "add", str(tmp_path / "acme.pem.pub"))
    assert (ended.code, ended.err) == (0, "")
    assert fingerprint(load_public(public).public_bytes_raw()) in ended.out
    assert (await mcpctl("key", "add", "-", "--name", "piped", stdin=public)).code == 0
    assert (await mcpctl("key", "remove", "acme")).code == 0
    text = public.decode()
    assert key_calls.calls == [("AddKey", "acme", text, {}), ("AddKey", "piped", text, {}), ("RemoveKey", "acme", {})]


async def test_a_private_key_is_not_sent(mcpctl: Mcpctl, key_calls: FakeMcpd, private: Path) -> None:
    ended = await mcpctl("key", "add", str(private))
    assert ended.code == 2
    assert str(private) in ended.err
    assert "private key" in ended.err
    assert key_calls.calls == []


@pytest.mark.parametrize(
    ("argv", "stdin", "code", "fault"),
    [
        (["key", "add", "-"], b"x", 2, "--name"),
        (["key", "add", "nowhere.pem"], b"", 4, "nowhere.pem"),
        (["key", "add", "-", "--name", "a"], b"ssh-ed25519 AAAA", 2, "standard input: not a public key in PEM"),
        (["key", "add", "-", "--name", "a"], b"x" * 100_000, 2, "larger"),
        (["sign", "a", "--key", "nowhere.pem"], b"", 4, "nowhere.pem"),
        (["sign", "a"], b"", 2, "--key"),
        (["sign", "-", "--key", "-"], b"", 2, "once"),
        (["sign", "a", "--key", "-"], b"no key", 2, "standard input: cannot sign"),
    ],
    ids=range(8),
)
async def test_what_is_refused_without_mcpd(
    mcpctl: Mcpctl, argv: list[str], stdin: bytes, code: int, fault: str
) -> None:
    ended = await mcpctl(*argv, stdin=stdin)
    assert ended.code == code
    assert fault in ended.err
    assert ended.out == ""


async def test_a_new_key_signs_what_its_public_half_verifies(mcpctl: Mcpctl, tmp_path: Path) -> None:
    private, registry = tmp_path / "me.pem", tmp_path / "r.json"
    registry.write_bytes(b'{"servers": []}')
    ended = await mcpctl("key", "new", str(private))
    assert (ended.code, ended.err) == (0, "")
    assert private.stat().st_mode & 0o777 == 0o600
    public = tmp_path / "me.pem.pub"
    assert (await mcpctl("sign", str(registry), "--key", str(private))).code == 0
    keys = Keys(paths_below(tmp_path), Scope.USER)
    added = keys.add("me", public.read_text())
    assert added.fingerprint in ended.out
    assert keys.signer(registry.read_bytes(), (tmp_path / "r.json.sig").read_bytes()) == added
    registry.write_bytes(b"{}")
    again = await mcpctl("sign", str(registry), str(public), "--key", str(private))
    assert again.out.count("Signed ") == 2
    assert keys.signer(b"{}", (tmp_path / "r.json.sig").read_bytes()) == added


async def test_standard_input_is_signed_to_standard_output(mcpctl: Mcpctl, private: Path) -> None:
    ended = await mcpctl("sign", "-", "--key", str(private), stdin=b"data")
    assert ended.out.encode() == sign(b"data", private.read_bytes())
    assert ended.err == ""


@pytest.mark.parametrize("there", ["me.pem", "me.pem.pub"])
async def test_no_key_is_overwritten(mcpctl: Mcpctl, tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    ended = await mcpctl("key", "new", str(tmp_path / "me.pem"))
    assert ended.code == 2
    assert str(tmp_path / there) in ended.err
    assert (tmp_path / there).read_text() == "precious"
    assert sorted(path.name for path in tmp_path.glob("me.*")) == [there]


async def test_a_key_that_others_may_read_is_warned_of(mcpctl: Mcpctl, private: Path, tmp_path: Path) -> None:
    private.chmod(0o644)
    (tmp_path / "a").write_text("")
    ended = await mcpctl("sign", str(tmp_path / "a"), "--key", str(private))
    assert ended.code == 0
    assert "chmod 600" in ended.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_signature_that_cannot_be_written(mcpctl: Mcpctl, private: Path, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/a").write_text("")
    (tmp_path / "dir").chmod(0o500)
    ended = await mcpctl("sign", str(tmp_path / "dir/a"), "--key", str(private))
    assert ended.code == 1
    assert "a.sig" in ended.err


def test_trust_ends_with_its_key(tmp_path: Path) -> None:
    """With the real mcpd: a registry is signed, trusted, changed by somebody else, and its key removed."""
    entry = {"id": "x", "name": "X", "source": {"type": "pypi", "package": "x", "version": "1"},
             "transports": [{"type": "stdio", "command": "x"}]}  # fmt: skip
    registry, private = tmp_path / "r.json", tmp_path / "me.pem"
    registry.write_text(json.dumps({"version": "1", "servers": [entry]}))
    with Rig() as rig:
        rig.start_daemon()

        def run(*argv: object) -> str:
            ended = rig.mcpctl(*map(str, argv))
            assert ended.returncode == 0, ended.stderr
            return ended.stdout

        def source() -> dict[str, Any]:
            (found,) = json.loads(run("source", "list", "--json"))["sources"]
            assert isinstance(found, dict)
            return found

        run("key", "new", private)
        run("sign", registry, "--key", private)
        run("source", "add", registry.as_uri(), "--name", "mine", "--signature", "required", "--key", "me")
        assert rig.mcpctl("refresh").returncode == 1
        run("key", "add", f"{private}.pub")
        run("refresh")
        assert (source()["state"], source()["signed-by"], source()["entries"]) == ("ready", "me", 1)
        registry.write_text(registry.read_text() + " ")
        assert rig.mcpctl("refresh").returncode == 1
        assert (source()["state"], source()["signed-by"], source()["entries"]) == ("refused", "me", 1)
        run("key", "remove", "me")
        assert (source()["state"], source()["signed-by"]) == ("untrusted", "")
        assert json.loads(run("search", "--json"))["servers"] == []
        run("source", "remove", registry.as_uri())
        assert json.loads(run("source", "list", "--json")) == {"sources": []}
