# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signed registries: who vouches for an entry, what is refused, and that trust is judged when it is asked for."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.catalog import Catalog, Query
from mcpd.catalog.refresh import Refresher
from mcpd.errors import McpdError, NotFound, SignatureInvalid
from mcpd.paths import Paths, Scope
from mcpd.settings import Settings
from mcpd.trust.signing import new_key, sign
from tests.unit.catalog.catalog_server import answer, ids, registry, serving
from tests.unit.catalog.signed_registry import Signed, updated

if TYPE_CHECKING:
    from mcpd.trust.keys import TrustedKey

SHA256 = "ab" * 32


async def test_what_a_trusted_key_signed_is_verified(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    await signed.catalog.refresh()
    (line,) = signed.catalog.sources()
    assert (line.state, line.signed_by, line.problem) == ("ready", "example", "")
    assert signed.verified() == [True]
    found = signed.catalog.find("one")
    assert (found.verified, found.signer) == (True, "example")


async def test_removing_the_key_ends_it_at_once(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    await signed.catalog.refresh()
    signed.keys.remove("example")
    assert signed.verified() == [False]
    assert not signed.catalog.find("one").verified
    assert signed.catalog.sources()[0].signed_by == ""
    assert "not trusted" in signed.catalog.sources()[0].problem
    signed.keys.add("again", signed.public)
    assert signed.catalog.find("one").signer == "again"


async def test_of_a_source_that_has_to_be_signed_nothing_is_offered_without_its_key(signed: Signed) -> None:
    signed.catalog.add_source(signed.url, name="example", signature="required", key="example")
    await signed.catalog.refresh()
    assert ids(signed.catalog) == ["one"]
    signed.keys.remove("example")
    assert signed.catalog.sources()[0].state == "untrusted"
    assert signed.catalog.query(Query()) == ([], "")
    assert signed.catalog.query(Query(text="one")) == ([], "")
    assert signed.catalog.query(Query(source=signed.url)) == ([], "")
    with pytest.raises(NotFound):
        signed.catalog.find("one")
    signed.keys.add("other", signed.public)
    assert ids(signed.catalog) == []


@pytest.mark.parametrize("policy", ["required", "warn"])
async def test_a_key_that_is_asked_for_and_not_there_is_named(signed: Signed, policy: str) -> None:
    signed.catalog.add_source(signed.url, name="example", signature=policy, key="example")
    await signed.catalog.refresh()
    signed.keys.remove("example")
    fault = r"must be signed by the key 'example'.*keys\.d.*'mcpctl key add'"
    assert re.search(fault, signed.catalog.sources()[0].problem)
    if policy == "required":
        with pytest.raises(SignatureInvalid, match=fault):
            await signed.catalog.refresh()
        assert re.search(fault, signed.catalog.sources()[0].problem)


@pytest.mark.parametrize("key", ["example", ""])
async def test_what_was_changed_after_it_was_signed_is_called_so(signed: Signed, key: str) -> None:
    signed.catalog.add_source(signed.url, name="example", signature="required", key=key)
    await signed.catalog.refresh()
    signed.file.write_bytes(registry("evil"))
    other = "the key 'example'.*by another key" if key else "a trusted key.*by a key that is not trusted"
    with pytest.raises(SignatureInvalid) as caught:
        await signed.catalog.refresh()
    (line,) = signed.catalog.sources()
    assert line.state == "refused"
    for text in (caught.value.message, line.problem):
        assert re.search("refused", text)
        assert re.search("changed after it was signed", text)
        assert re.search(other, text)
        assert "off" not in text
        assert "less" not in text


@pytest.mark.parametrize("fault", ["none", "garbage", "unknown-key", "other-bytes", "other-name"])
async def test_a_bad_signature_is_refused_where_one_is_required(signed: Signed, fault: str) -> None:
    signed.catalog.add_source(signed.url, name="example", signature="required", key="example")
    await signed.catalog.refresh()
    data = registry("evil")
    stranger, public = new_key()
    if fault == "other-name":
        signed.keys.add("stranger", public.decode())
    signed.write(data, stranger if fault in ("unknown-key", "other-name") else None)
    if fault == "none":
        signed.signature.unlink()
    elif fault == "garbage":
        signed.signature.write_text("not base64 of anything")
    elif fault == "other-bytes":
        signed.signature.write_bytes(sign(b"else", signed.private))
    with pytest.raises(SignatureInvalid, match="'example'"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["one"]
    assert signed.verified() == [True]
    assert signed.catalog.sources()[0].state == "refused"


async def test_what_was_verified_is_not_replaced_by_what_is_not(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    await signed.catalog.refresh()
    signed.write(registry("evil"), new_key()[0])
    with pytest.raises(SignatureInvalid, match='signature = "off"'):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["one"]
    signed.catalog.remove_source(signed.url)
    signed.catalog.add_source(signed.url)
    await signed.catalog.refresh()
    assert ids(signed.catalog) == ["evil"]
    assert signed.verified() == [False]


async def test_unsigned_is_used_with_a_warning_and_off_asks_nothing(signed: Signed) -> None:
    signed.signature.unlink()
    signed.catalog.add_source(signed.url)
    await signed.catalog.refresh()
    (line,) = signed.catalog.sources()
    assert (line.state, line.signed_by) == ("ready", "")
    assert "not signed by a trusted key" in line.problem
    signed.write(registry("one"))
    signed.catalog.add_source(signed.url, name="example", signature="off")
    await signed.catalog.refresh()
    assert signed.catalog.sources()[0].problem == ""
    assert signed.verified() == [False]


async def test_a_signature_that_comes_later_counts(paths: Paths, signed: Signed) -> None:
    data = registry("one")
    async with serving() as server:
        server.answers = {"/a": answer(data, ETag='"same"')}
        signed.catalog.add_source(f"{server.base}/a")
        await signed.catalog.refresh()
        assert signed.verified() == [False]
        server.answers["/a.sig"] = answer(sign(data, new_key()[0]))
        await signed.catalog.refresh()
        await signed.catalog.refresh()
        assert signed.verified() == [False]
        assert len([path for path, headers in server.requests if path == "/a" and "if-none-match" not in headers]) == 2
        server.answers["/a.sig"] = answer(sign(data, signed.private))
        await signed.catalog.refresh()
        assert signed.verified() == [True]
        server.requests.clear()
        await signed.catalog.refresh()
        assert [path for path, _ in server.requests] == ["/a"]


PINS: dict[str, tuple[dict[str, Any], bool]] = {
    "npm": ({"source": {"type": "npm", "package": "a", "version": "1.2.3"}}, True),
    "npm-tag": ({"source": {"type": "npm", "package": "a", "version": "latest"}}, False),
    "npm-none": ({"source": {"type": "npm", "package": "a"}}, False),
    "pypi": ({"source": {"type": "pypi", "package": "a", "version": "1.0.post1"}}, True),
    "pypi-range": ({"source": {"type": "pypi", "package": "a", "version": "1.*"}}, False),
    "git": ({"source": {"type": "git", "url": "https://example.com/a", "rev": "a" * 40}}, True),
    "git-branch": ({"source": {"type": "git", "url": "https://example.com/a", "rev": "main"}}, False),
    "mcpb": ({"source": {"type": "mcpb", "url": "https://example.com/a", "sha256": SHA256}}, True),
    "mcpb-open": ({"source": {"type": "mcpb", "url": "https://example.com/a"}}, False),
    "summary": (
        {"transports": [], "manifest": "https://example.com/m", "integrity": {"manifestSha256": SHA256}},
        True,
    ),
    "summary-open": ({"transports": [], "manifest": "https://example.com/m"}, False),
    "remote": ({}, True),
    "local": ({"source": {"type": "local", "path": "/opt/x"}}, False),
}


@pytest.mark.parametrize("kind", PINS)
async def test_only_what_is_pinned_is_verified(signed: Signed, kind: str) -> None:
    more, expected = PINS[kind]
    if "source" in more:
        more = {"transports": [{"type": "stdio", "command": "a"}], **more}
    signed.write(registry("one", **more))
    signed.catalog.add_source(signed.url)
    await signed.catalog.refresh()
    assert signed.verified() == [expected]
    assert signed.catalog.find("one").verified is expected


async def test_a_bundle_is_vouched_for_by_a_signed_registry_that_pins_it(signed: Signed) -> None:
    source = {"type": "mcpb", "url": "https://example.com/a.mcpb", "sha256": SHA256}
    signed.write(registry("one", transports=[{"type": "stdio", "command": "a"}], source=source))
    signed.catalog.add_source(signed.url)
    assert signed.catalog.pins_sha256(SHA256) == ""
    await signed.catalog.refresh()
    assert signed.catalog.pins_sha256(SHA256) == "example"
    assert signed.catalog.pins_sha256("cd" * 32) == ""
    assert signed.catalog.pins_sha256("") == ""
    signed.keys.remove("example")
    assert signed.catalog.pins_sha256(SHA256) == ""


async def test_without_its_signature_server_a_verified_source_stays_as_it_was(signed: Signed) -> None:
    data = registry("one")
    async with serving() as server:
        server.answers = {"/a": answer(data), "/a.sig": answer(sign(data, signed.private))}
        signed.catalog.add_source(f"{server.base}/a")
        await signed.catalog.refresh()
        server.answers = {"/a": answer(registry("two")), "/a.sig": answer(b"", "503 No")}
        with pytest.raises(McpdError, match="503"):
            await signed.catalog.refresh()
    assert ids(signed.catalog) == ["one"]


async def test_what_has_to_be_signed_is_refused_though_it_did_not_change(signed: Signed) -> None:
    async with serving() as server:
        data = registry("one")
        server.answers = {"/a": answer(data, ETag='"same"'), "/a.sig": answer(sign(data, signed.private))}
        signed.catalog.add_source(f"{server.base}/a", name="a", signature="required")
        await signed.catalog.refresh()
        signed.keys.remove("example")
        with pytest.raises(SignatureInvalid, match="required"):
            await signed.catalog.refresh()
        assert signed.catalog.sources()[0].state == "untrusted"
        signed.keys.add("example", signed.public)
        assert await signed.catalog.refresh() == []
        assert signed.verified() == [True]


async def test_the_signature_of_a_file_says_nothing_of_an_api_at_its_place(signed: Signed) -> None:
    data = registry("one")
    async with serving() as server:
        url = f"{server.base}/a"
        server.answers = {"/a": answer(data, ETag='"same"'), "/a.sig": answer(sign(data, signed.private))}
        signed.catalog.add_source(url, name="a", type="registry")
        await signed.catalog.refresh()
        assert signed.verified() == [True]
        signed.catalog.add_source(url, type="official")
        server.answers["/a?limit=100&version=latest"] = answer(
            json.dumps(
                {"servers": [{"server": {"name": "com.example/evil", "description": "x", "version": "1"}}]}
            ).encode()
        )
        await signed.catalog.refresh()
        assert ids(signed.catalog) == ["com.example.evil"]
        signed.catalog.add_source(url, type="registry")
        assert signed.verified() == [False]
        await signed.catalog.refresh()
        assert ids(signed.catalog) == ["one"]
        assert signed.verified() == [True]


async def test_keys_are_not_read_in_the_event_loop(signed: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    signed.catalog.add_source(signed.url)
    await signed.catalog.refresh()
    trusted = signed.keys.trusted
    asked_in: list[threading.Thread] = []

    def asked(fingerprint: str, only: str = "") -> TrustedKey | None:
        asked_in.append(threading.current_thread())
        return trusted(fingerprint, only)

    monkeypatch.setattr(signed.keys, "trusted", asked)
    await signed.catalog.refresh()
    signed.write(updated("2026-01-02", "two"))
    await signed.catalog.refresh()
    assert asked_in
    assert threading.current_thread() not in asked_in
    assert ids(signed.catalog) == ["two"]


async def test_what_another_process_found_verified_meanwhile_stays(
    paths: Paths, signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(registry("evil"), new_key()[0])
    other = Catalog(paths, Scope.USER, Settings(), signed.keys)
    judge = Refresher._verify_signature

    async def slow(self: Refresher, *values: Any, **more: Any) -> Any:
        found = await judge(self, *values, **more)
        monkeypatch.undo()
        signed.write(registry("good"))
        assert await other.refresh() == []
        return found

    monkeypatch.setattr(Refresher, "_verify_signature", slow)
    with pytest.raises(SignatureInvalid, match="although the previous file was signed"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["good"]
    assert signed.verified() == [True]
