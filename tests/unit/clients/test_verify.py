# SPDX-License-Identifier: LGPL-2.1-or-later
"""Anybody checks a configuration, offline, and is told what is wrong with it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.errors import SignatureError
from mcpd.clients.keys import id_of_key
from mcpd.clients.releases import MAX_DOCUMENT, load_public_key, verify_document
from mcpd.errors import McpdError
from tests.unit.clients.signed_parts import EXAMPLE, EXAMPLE_ID, Site, payload_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

pytestmark = pytest.mark.process

NAMES = {"mcpServers": {"é": {"command": "a b", "args": ["€", "😀", "\x7f", "\t"], "env": {"KEY": "${KEY}"}}}}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One that nothing changes."""
    site = Site(tmp_path_factory.mktemp("one") / "tree")
    site.publish()
    return site


def document(site: Site) -> dict[str, Any]:
    release = site.releases.latest("cursor", "default")
    assert release is not None
    return release.to_json()


def trusted(site: Site) -> dict[str, Ed25519PublicKey]:
    public = load_public_key(site.tree.verification_key)
    return {id_of_key(public): public}


def test_what_get_config_answers_verifies(one: Site) -> None:
    data = json.dumps(document(one)).encode()
    public = load_public_key(one.tree.verification_key_raw)
    for keys in (one.keys, trusted(one), public):
        found = verify_document(data, "config.json", keys)
        assert (found.artifact_id, found.client_id, found.profile_id) == (EXAMPLE_ID, "cursor", "default")
        assert (found.created_at, found.signing_key_id) == ("2026-11-23T12:00:00.000005Z", one.keys.current())
        assert found.servers == ("brave-search", "filesystem")
        assert found.key_created_at == ("2026-11-23T12:00:00.000005Z" if keys is one.keys else None)
        assert found.key_expires_at is None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda doc: json.dumps(doc, indent=4, ensure_ascii=False, sort_keys=True),
        lambda doc: json.dumps({"content": [], "structuredContent": doc, "isError": False}),
        lambda doc: json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": [], "structuredContent": doc}}),
        lambda doc: json.dumps({**doc, "published": True, "warnings": ["x"]}),
        lambda doc: json.dumps(
            {
                "content": [{"type": "text", "text": json.dumps(doc, indent=2)}],
                "structuredContent": doc,
                "resultType": "complete",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "x"}},
            }
        ),
    ],
    ids=["spelled-otherwise", "structured-content", "response", "publish", "all-of-a-result"],
)
def test_in_whatever_it_came(one: Site, wrap: Callable[[Any], str]) -> None:
    assert verify_document(wrap(document(one)).encode(), "x", trusted(one)).artifact_id == EXAMPLE_ID


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for member in path[:-1]:
            value = value[member]
        value[path[-1]] = to

    return change


ZEROS = base64.b64encode(bytes(64)).decode()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_set("payload", "mcpServers", "filesystem", "command", to="evil"), "the id is wrong"),
        (_set("payload", "mcpServers", "new", to={}), "the id is wrong"),
        (_set("artifact_id", to="0" * 64), "the id is wrong"),
        (_set("artifact_id", to="A" * 64), "artifact_id"),
        (_set("signature", to=ZEROS), ": the signature is not valid"),
        (_set("signature", to=""), ": the signature is not valid: it is missing"),
        (_set("signature", to="not Base64"), "not Base64"),
        (_set("signature", to="é" * 88), "not Base64"),
        (_set("signature", to=5), "signature"),
        (_set("client_id", to="zed"), "release signature"),
        (_set("profile_id", to="prod"), "release signature"),
        (_set("created_at", to="2027-01-01T00:00:00Z"), "release signature"),
        (_set("created_at", to="\ud800"), "x: "),
        (_set("metadata", "release_signature", to=ZEROS), "release signature"),
        (_set("metadata", to={}), "release signature.*it is missing"),
        (_set("metadata", to=None), "metadata"),
        (_set("signing_key_id", to="orchestration-0123456789abcdef"), "trusted"),
        (_set("payload", to=[]), "payload"),
        (_set("payload", to={"a": "\ud800"}), "x: "),
    ],
    ids=[
        "command", "server", "id", "no-id", "signature", "no-signature", "not-base64", "not-ascii", "number", "client",
        "profile", "time", "half-surrogate", "release-signature", "no-release-signature", "no-metadata", "key", "array",
        "half-surrogate-payload",
    ],
)  # fmt: skip
def test_verification_says_what_was_changed(one: Site, change: Callable[[dict[str, Any]], None], match: str) -> None:
    value = document(one)
    change(value)
    with pytest.raises(SignatureError, match=match) as caught:
        verify_document(json.dumps(value).encode(), "x", trusted(one))
    assert caught.value.message.startswith("x: ")


@given(st.data())
def test_no_changed_byte_goes_unseen(data: st.DataObject) -> None:
    content = bytearray(SAMPLE[1])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        found = verify_document(bytes(content), "x", SAMPLE[2])
    except SignatureError:
        return
    # What is not signed: what it was made with, and spaces.
    changed, before = json.loads(bytes(content)), json.loads(SAMPLE[1])
    for value in (changed, before):
        value["metadata"] = value["metadata"]["release_signature"]
    assert changed == before
    assert found.artifact_id == EXAMPLE_ID


SAMPLE: tuple[Site, bytes, dict[str, Ed25519PublicKey]]


@pytest.fixture(scope="module", autouse=True)
def sample(one: Site) -> None:
    """The same for all examples of a property."""
    global SAMPLE  # noqa: PLW0603 - hypothesis takes no fixtures of a function
    SAMPLE = (one, json.dumps(document(one)).encode(), trusted(one))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"not JSON",
        b"\xff\xfe\xfa",
        b'{"error": "client_not_found", "message": "Client not found"}',
        b'{"structuredContent": null}',
        b'{"result": {"structuredContent": []}}',
        b'{"artifact_id": NaN}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"artifact_id": ' + b"[" * 900 + b"]" * 900 + b"}",
        b"9" * 10_000,
    ],
    ids=[
        "empty", "null", "array", "object", "text", "bytes", "error", "no-content", "array-content", "nan", "deep",
        "deep-object", "deep-member", "digits",
    ],
)  # fmt: skip
def test_what_is_no_configuration(one: Site, data: bytes) -> None:
    with pytest.raises(SignatureError, match=r"^x: "):
        verify_document(data, "x", trusted(one))


def test_what_is_too_large(one: Site) -> None:
    with pytest.raises(SignatureError, match="larger"):
        verify_document(b" " * (MAX_DOCUMENT + 1), "x", trusted(one))


def test_what_is_checked_is_what_every_reader_sees(one: Site) -> None:
    good = json.dumps(document(one))
    evil = json.dumps(payload_of("evil"))
    for data in (
        f'{{"payload": {evil}, {good[1:]}',
        good.replace('"command"', '"command": "evil", "command"', 1),
    ):
        with pytest.raises(SignatureError, match="occurs twice"):
            verify_document(data.encode(), "x", trusted(one))
    for wrapped in (
        {"payload": payload_of("evil"), "structuredContent": document(one)},
        {**document(one), "payload": payload_of("evil"), "structuredContent": document(one)},
        {"result": document(one), "client_id": "zed"},
    ):
        with pytest.raises(SignatureError):
            verify_document(json.dumps(wrapped).encode(), "x", trusted(one))


EVIL = payload_of("evil")["mcpServers"]


@pytest.mark.parametrize(
    ("wrap", "named"),
    [
        (lambda doc: {**doc, "mcpServers": EVIL}, "'mcpServers' is not signed"),
        (lambda doc: {**doc, "metadata": {**doc["metadata"], "mcpServers": EVIL}}, "'metadata.mcpServers' is not"),
        (lambda doc: {"structuredContent": doc, "mcpServers": EVIL}, "'mcpServers' is not signed"),
        (lambda doc: {"result": doc, "mcpServers": EVIL}, "'mcpServers' is not signed"),
        (lambda doc: {"result": {"structuredContent": doc, "mcpServers": EVIL}}, "'mcpServers' is not signed"),
        (lambda doc: {"structuredContent": doc, "_meta": {"mcpServers": EVIL}}, "_meta"),
        (lambda doc: {"structuredContent": doc, "isError": True}, "isError"),
        (lambda doc: {"structuredContent": doc, "content": [{"type": "text", "text": "evil"}]}, "not JSON"),
        (lambda doc: {"structuredContent": doc, "content": [_text(EVIL)]}, "'content' differs"),
        (lambda doc: {"structuredContent": doc, "content": [_text(doc), _text(EVIL)]}, "'content' differs"),
        (lambda doc: {"structuredContent": doc, "content": [_text({**doc, "mcpServers": EVIL})]}, "'content' differs"),
        (lambda doc: {"structuredContent": doc, "content": [{**_text(doc), "x": EVIL}]}, r"'content\.0\.x' is not"),
        (lambda doc: {"structuredContent": doc, "content": [{"type": "image", "data": ""}]}, r"content\.0"),
        (lambda doc: {"structuredContent": {"structuredContent": doc}}, "no signed configuration"),
        (lambda doc: {**doc, "published": EVIL}, "published"),
        (lambda doc: {**doc, "warnings": [EVIL]}, "warnings"),
        (lambda doc: {**doc, "metadata": {**doc["metadata"], "generator": EVIL}}, "generator"),
    ],
    ids=[
        "document", "metadata", "result", "response", "result-in-response", "meta", "error", "text", "content",
        "one-content-more", "more-in-content", "more-in-a-block", "image", "twice", "published", "warnings",
        "generator",
    ],
)  # fmt: skip
def test_nothing_that_is_not_signed_is_vouched_for(one: Site, wrap: Callable[[Any], Any], named: str) -> None:
    with pytest.raises(SignatureError, match=f"^x: .*{named}"):
        verify_document(json.dumps(wrap(document(one))).encode(), "x", trusted(one))


def _text(value: Any) -> dict[str, str]:
    return {"type": "text", "text": json.dumps(value)}


def test_somebody_elses_key_vouches_for_nothing(one: Site, tmp_path: Path) -> None:
    data = json.dumps(document(one)).encode()
    other = Site(tmp_path / "other")
    other.keys.initialize()
    public = load_public_key(other.tree.verification_key)
    with pytest.raises(SignatureError, match=f"{one.keys.current()}.*trusted.*{id_of_key(public)}"):
        verify_document(data, "x", trusted(other))
    with pytest.raises(SignatureError, match="trusted keys: none"):
        verify_document(data, "x", {})
    with pytest.raises(SignatureError, match="is not in"):
        verify_document(data, "x", other.keys)
    with pytest.raises(SignatureError, match=id_of_key(public)):
        verify_document(data, "x", public)
    with pytest.raises(SignatureError, match="signature is not valid"):
        verify_document(data, "x", {str(one.keys.current()): public})


def test_after_a_rotation_for_thirty_days(site: Site) -> None:
    site.publish()
    data = json.dumps(document(site)).encode()
    change = site.keys.initialize(regenerate=True)
    found = verify_document(data, "x", site.keys)
    assert (found.signing_key_id, found.key_expires_at) == (change.previous, change.expires_at)
    site.clock.forward(days=31)
    with pytest.raises(SignatureError, match="valid until"):
        verify_document(data, "x", site.keys)


def test_a_public_key_is_read_in_both_forms(one: Site) -> None:
    pem, raw = load_public_key(one.tree.verification_key), load_public_key(one.tree.verification_key_raw)
    assert pem.public_bytes_raw() == raw.public_bytes_raw() == one.tree.verification_key_raw.read_bytes()
    assert id_of_key(pem) == one.keys.current()


@pytest.mark.parametrize(
    "kind", ["empty", "31 bytes", "33 bytes", "private", "rsa", "fifo", "directory", "huge", "missing"]
)
def test_what_is_no_public_key(one: Site, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    spki = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    content: dict[str, Callable[[], object]] = {
        "empty": lambda: path.write_bytes(b""),
        "31 bytes": lambda: path.write_bytes(bytes(31)),
        "33 bytes": lambda: path.write_bytes(bytes(33)),
        "private": lambda: path.write_bytes(one.signing_key.read_bytes()),
        "rsa": lambda: path.write_bytes(generate_private_key(65537, 2048).public_key().public_bytes(*spki)),
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "huge": lambda: path.write_bytes(bytes(1_000_000)),
        "missing": lambda: None,
    }
    content[kind]()
    with pytest.raises(McpdError, match=str(path)) as caught:
        load_public_key(path)
    assert isinstance(caught.value, SignatureError) == (kind != "missing")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("payload", [EXAMPLE, NAMES], ids=["example", "beyond-ascii"])
def test_openssl_verifies_the_artifact_and_the_release(site: Site, tmp_path: Path, payload: Any) -> None:
    release = site.publish(payload)
    said = ("artifact_id", "client_id", "profile_id", "created_at", "signing_key_id")
    statement = json.dumps({key: release.to_json()[key] for key in sorted(said)}, separators=(",", ":"))
    (tmp_path / "statement").write_text(statement)
    openssl = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(site.tree.verification_key), "-rawin"]
    for path, signature in (
        (site.blob(release.artifact_id), release.signature),
        (tmp_path / "statement", str(release.metadata["release_signature"])),
    ):
        (tmp_path / "sig").write_bytes(base64.b64decode(signature))
        command = [*openssl, "-in", str(path), "-sigfile", str(tmp_path / "sig")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stdout.strip()) == (0, "Signature Verified Successfully"), done.stderr
        (tmp_path / "changed").write_bytes(path.read_bytes() + b" ")
        command = [*openssl, "-in", str(tmp_path / "changed"), "-sigfile", str(tmp_path / "sig")]
        assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode != 0


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("payload", [EXAMPLE, NAMES], ids=["example", "beyond-ascii"])
def test_jq_and_sha256sum_give_the_id(site: Site, tmp_path: Path, payload: Any) -> None:
    release = site.publish(payload)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(release.to_json(), indent=2, ensure_ascii=False))
    done = subprocess.run(["jq", "-cSa", ".payload", str(path)], capture_output=True, check=True, timeout=120)
    assert hashlib.sha256(done.stdout.replace(b"\n", b"")).hexdigest() == release.artifact_id
    assert done.stdout.rstrip(b"\n") == site.blob(release.artifact_id).read_bytes()


SCRIPT = """
import base64, hashlib, json, sys
from cryptography.hazmat.primitives.serialization import load_pem_public_key
config = json.load(open(sys.argv[1]))
key = load_pem_public_key(open(sys.argv[2], "rb").read())
canonical = json.dumps(config["payload"], sort_keys=True, separators=(",", ":")).encode()
assert hashlib.sha256(canonical).hexdigest() == config["artifact_id"]
key.verify(base64.b64decode(config["signature"]), canonical)
"""
"""What the specification shows, with the function that reads PEM."""


def test_the_method_of_the_source_document_verifies(site: Site, tmp_path: Path) -> None:
    release = site.publish(NAMES).to_json()
    path = tmp_path / "config.json"
    command = [sys.executable, "-I", "-c", SCRIPT, str(path), str(site.tree.verification_key)]
    path.write_text(json.dumps(release))
    assert subprocess.run(command, check=False, timeout=120).returncode == 0
    path.write_text(json.dumps({**release, "payload": EXAMPLE, "artifact_id": EXAMPLE_ID}))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "InvalidSignature" in done.stderr
