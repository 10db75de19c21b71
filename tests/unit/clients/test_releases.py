# SPDX-License-Identifier: LGPL-2.1-or-later
"""Releases: publishing, tampering, several writers and crashes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients import releases as module
from mcpd.clients.errors import ArtifactNotFound, SignatureError, error_object
from mcpd.clients.keys import id_of_key, parse_public_key
from mcpd.clients.payload import canonical, id_of
from mcpd.clients.releases import KEPT, MAX_CHANGELOG, MAX_INDEX, MAX_WORD, statement
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, NotFound, ReadOnly
from mcpd.paths import Scope
from tests.unit.clients import signing_process
from tests.unit.clients.signed_parts import (
    EXAMPLE,
    EXAMPLE_ID,
    Site,
    contents,
    listed,
    mode,
    not_mine,
    payload_of,
    settle,
)
from tests.unit.clients.signing_process import SCENARIOS
from tests.unit.killed import kill_at_each_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.clients.releases import Release


class Steps:
    """The files that this process opens below a directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.opened: list[str] = []
        self.directories = 0
        real = os.open

        def opened(path: Any, *rest: Any, **named: Any) -> int:
            if rest[0] & os.O_DIRECTORY:
                self.directories += 1
            elif "dir_fd" in named or str(path).startswith(str(root)):
                self.opened.append(str(path))
            return real(path, *rest, **named)

        monkeypatch.setattr(os, "open", opened)


def test_a_release_has_the_members_of_the_specification(site: Site) -> None:
    found = site.publish().to_json()
    assert list(found) == [
        "artifact_id", "client_id", "profile_id", "created_at", "payload", "signature", "signing_key_id", "metadata",
    ]  # fmt: skip
    assert found["artifact_id"] == EXAMPLE_ID
    assert (found["client_id"], found["profile_id"]) == ("cursor", "default")
    assert found["created_at"] == "2026-11-23T12:00:00.000005Z"
    assert found["payload"] == EXAMPLE
    assert found["signing_key_id"] == site.keys.current()
    metadata = found["metadata"]
    assert isinstance(metadata, dict)
    assert metadata.pop("release_signature")
    assert metadata == {"generator": "mcpd", "generator_version": "1.0", "source": "x", "changelog": "Something new"}
    assert json.loads(json.dumps(found)) == found


def test_anybody_can_verify_both_signatures(site: Site) -> None:
    release = site.publish()
    public: Any = load_pem_public_key(site.tree.verification_key.read_bytes())
    public.verify(base64.b64decode(release.signature), canonical(EXAMPLE))
    said = {
        key: release.to_json()[key]
        for key in ("artifact_id", "client_id", "profile_id", "created_at", "signing_key_id")
    }
    data = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    public.verify(base64.b64decode(str(release.metadata["release_signature"])), data)
    assert data == statement(EXAMPLE_ID, "cursor", "default", release.created_at, release.signing_key_id)


def test_the_artifact_is_a_file_of_its_hash_with_the_bytes_that_were_signed(site: Site) -> None:
    site.publish()
    assert [path.name for path in site.tree.artifacts.iterdir()] == [f"{EXAMPLE_ID}.json"]
    assert site.blob().read_bytes() == canonical(EXAMPLE)


def test_an_artifact_is_written_once(site: Site) -> None:
    site.publish()
    before = site.blob().stat().st_ino, site.blob().stat().st_ctime_ns
    site.publish()
    site.publish(client="claude-desktop")
    assert (site.blob().stat().st_ino, site.blob().stat().st_ctime_ns) == before
    assert len(list(site.tree.artifacts.iterdir())) == 1


def test_the_same_payload_for_another_client_changes_nothing_of_the_first(site: Site) -> None:
    first = site.publish(client="cursor")
    site.clock.forward(hours=1)
    second = site.publish(client="claude-desktop", profile="dev")
    assert first.artifact_id == second.artifact_id
    assert site.again().releases.latest("cursor", "default") == first
    assert site.again().releases.latest("claude-desktop", "dev") == second
    assert site.releases.get("cursor", "default", EXAMPLE_ID) == first


def test_nothing_is_made_by_asking(site: Site) -> None:
    assert site.releases.latest("cursor", "default") is None
    assert site.releases.history("cursor", "default") == []
    assert site.releases.published() == []
    with pytest.raises(NotFound):
        site.releases.get("cursor", "default", EXAMPLE_ID)
    assert not site.tree.root.exists()


def test_the_newest_is_first(site: Site) -> None:
    made = []
    for name in ("one", "two", "three", "one"):
        made.append(site.publish(payload_of(name)))
        site.clock.forward(minutes=1)
    for releases in (site.releases, site.again().releases):
        assert releases.latest("cursor", "default") == made[-1]
        assert releases.history("cursor", "default") == listed(*made[::-1])
        assert releases.get("cursor", "default", made[1].artifact_id) == made[1]
        assert releases.get("cursor", "default", made[0].artifact_id) == made[3]


@pytest.mark.parametrize("name", ["", "abc123", "A" * 64, EXAMPLE_ID + "\n", "../" * 20, "\0" * 64, "\x1b[0m" * 30])
def test_an_invalid_id_is_not_found(site: Site, name: str) -> None:
    site.publish()
    with pytest.raises(NotFound, match="not found") as caught:
        site.releases.get("cursor", "default", name)
    assert caught.value.message.isprintable()


def test_an_artifact_is_found_only_where_it_was_published(site: Site) -> None:
    site.publish(client="cursor")
    site.publish(payload_of("other"), client="claude-desktop")
    for client, profile in (("claude-desktop", "default"), ("cursor", "dev")):
        with pytest.raises(ArtifactNotFound) as caught:
            site.releases.get(client, profile, EXAMPLE_ID)
        assert error_object(caught.value) == {
            "error": "artifact_not_found",
            "message": f"Artifact '{EXAMPLE_ID}' not found",
            "details": {"artifact_id": f"it was not published for {client}/{profile}"},
        }


def test_what_was_published_is_listed(site: Site) -> None:
    for client, profile in (("zed", "dev"), ("cursor", "prod"), ("cursor", "default")):
        site.publish(client=client, profile=profile)
    (site.tree.indexes / "README").write_text("")
    (site.tree.indexes / "zed/notes.txt").write_text("")
    (site.tree.indexes / "zed/.dev.json.0123456789ab~tmp").write_text("")
    (site.tree.indexes / "Other").mkdir()
    assert site.releases.published() == [("cursor", "default"), ("cursor", "prod"), ("zed", "dev")]


@pytest.mark.parametrize(
    ("client", "profile"), [("../x", "default"), ("cursor", "a/b"), ("", ""), ("Cursor", "default")]
)
def test_what_is_no_id_is_not_published(site: Site, client: str, profile: str) -> None:
    with pytest.raises(InvalidArgument):
        site.publish(client=client, profile=profile)
    assert not site.tree.root.exists()


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param([], id="array"),
        pytest.param("text", id="text"),
        pytest.param(None, id="null"),
        pytest.param({"mcpServers": {}, "a": float("nan")}, id="nan"),
        pytest.param({"mcpServers": {}, "a": "\ud800"}, id="half-surrogate"),
        pytest.param({1: 2}, id="number-key"),
        pytest.param({}, id="nothing"),
        pytest.param({"mcpServers": []}, id="no-servers"),
        pytest.param({"mcpServers": {"one": "npx"}}, id="no-entry"),
        pytest.param({"mcpServers": {}, "a": "x" * 9_000_000}, id="huge"),
    ],
)
def test_what_cannot_be_signed_is_not_published(site: Site, payload: Any) -> None:
    with pytest.raises(InvalidArgument):
        site.publish(payload)
    assert not site.tree.root.exists()


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("changelog", "x" * (MAX_CHANGELOG + 1)),
        ("changelog", "\udc80"),
        ("generator", "x" * (MAX_WORD + 1)),
        ("generator_version", "\0"),
        ("source", "x" * (MAX_WORD + 1)),
    ],
    ids=["long-changelog", "half-surrogate", "long-generator", "nul", "long-source"],
)
def test_what_a_release_says_of_itself_is_bounded(site: Site, member: str, text: str) -> None:
    about = {"generator": "mcpd", "generator_version": "1", "changelog": "", member: text}
    with pytest.raises(InvalidArgument, match=member):
        site.releases.publish("cursor", "default", EXAMPLE, **about)
    assert not site.tree.root.exists()


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")).filter(
            lambda key: key != "mcpServers"
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just("é"),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b"]), inner),
        ),
    )
)
def test_what_was_published_is_what_is_read(site: Site, payload: dict[str, Any]) -> None:
    payload = {**payload, "mcpServers": {"one": payload}}
    made = site.publish(payload)
    found = site.again().releases.latest("cursor", "default")
    assert found == made
    assert found is not None
    assert found.payload == payload
    assert found.artifact_id == id_of(payload)


def test_what_a_caller_does_to_its_payload_stays_with_it(site: Site) -> None:
    payload = payload_of("one")
    made = site.publish(payload)
    payload["mcpServers"]["one"]["command"] = "evil"
    settle(site.tree.root)
    for _ in range(3):
        found = site.releases.latest("cursor", "default")
        assert found is not None
        assert found.payload == payload_of("one") == made.payload
        found.payload.clear()
        found.metadata.clear()
        made.payload["mcpServers"] = payload_of("one")["mcpServers"]
    again = site.releases.latest("cursor", "default")
    assert again is not None
    assert again.metadata["changelog"] == "Something new"


def test_an_unchanged_release_is_not_read_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made = site.publish()
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") == made
    steps = Steps(monkeypatch, site.tree.root)
    for _ in range(3):
        assert site.releases.latest("cursor", "default") == made
        assert site.releases.get("cursor", "default", EXAMPLE_ID) == made
    assert (steps.opened, steps.directories) == ([], 0)
    assert site.again().releases.latest("cursor", "default") == made
    assert len(steps.opened) == 4


def test_many_artifacts_are_not_all_kept_in_memory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HELD", 3)
    made = [site.publish(payload_of(f"s{number}")) for number in range(6)]
    settle(site.tree.root)
    for release in made[::-1]:
        assert site.releases.get("cursor", "default", release.artifact_id) == release
    steps = Steps(monkeypatch, site.tree.root)
    assert site.releases.get("cursor", "default", made[0].artifact_id) == made[0]
    assert steps.opened == []
    assert site.releases.get("cursor", "default", made[5].artifact_id) == made[5]
    assert len(steps.opened) == 1


def test_the_history_of_a_large_payload_is_small(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = payload_of(*(f"s{number}" for number in range(8000)))
    made = []
    for _ in range(30):
        made.append(listed(site.publish(payload))[0])
        site.clock.forward(minutes=1)
    releases = site.again().releases
    assert releases.history("cursor", "default") == made[::-1]
    steps = Steps(monkeypatch, site.tree.root)
    tracemalloc.start()
    try:
        found = releases.history("cursor", "default")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 30
    assert steps.opened.count(f"{made[0].artifact_id}.json") == 1
    # A parsed one takes some forty times its file, a few times that if several are held at once.
    assert most < 80 * site.blob(made[0].artifact_id).stat().st_size


def test_the_oldest_of_very_many_is_dropped(site: Site) -> None:
    one = site.publish(payload_of("one"))
    path = site.tree.index("cursor", "default")
    index = json.loads(path.read_text())
    path.write_text(json.dumps({"releases": index["releases"] * KEPT}))
    two = site.publish(payload_of("two"))
    entries = json.loads(path.read_text())["releases"]
    assert len(entries) == KEPT
    assert [each["artifact_id"] for each in entries[:2]] == [two.artifact_id, one.artifact_id]
    assert site.releases.latest("cursor", "default") == two


def test_a_list_stays_small_enough_to_be_read(site: Site) -> None:
    def publish() -> None:
        site.releases.publish(
            "cursor", "default", EXAMPLE, generator="x", generator_version="y", changelog="\x01" * MAX_CHANGELOG
        )

    publish()
    path = site.tree.index("cursor", "default")
    index = json.loads(path.read_text())
    size = path.stat().st_size
    path.write_text(json.dumps({"releases": index["releases"] * (MAX_INDEX // size)}))
    publish()
    publish()
    assert path.stat().st_size <= MAX_INDEX
    assert 10 < len(site.again().releases._entries("cursor", "default")) < KEPT


def test_members_of_later_versions_survive(site: Site) -> None:
    site.publish()
    path = site.tree.index("cursor", "default")
    index = json.loads(path.read_text())
    index["releases"][0]["approved_by"] = ["somebody"]
    path.write_text(json.dumps(index))
    site.publish(payload_of("two"))
    assert json.loads(path.read_text())["releases"][1]["approved_by"] == ["somebody"]


def test_the_newest_are_signed_again_after_a_rotation(site: Site) -> None:
    old = [site.publish(payload_of("one")), site.publish(payload_of("two")), site.publish(client="zed")]
    assert site.releases.resign() == 0
    site.clock.forward(days=1)
    key = site.keys.initialize(regenerate=True).key_id
    untouched = site.publish(client="goose")
    assert site.releases.resign() == 2
    assert site.releases.resign() == 0
    for client, before in (("cursor", old[1]), ("zed", old[2])):
        after = site.again().releases.latest(client, "default")
        assert after is not None
        assert (after.artifact_id, after.signing_key_id) == (before.artifact_id, key)
        assert after.created_at == "2026-11-24T12:00:00.000005Z"
        assert {**after.metadata, "release_signature": ""} == {**before.metadata, "release_signature": ""}
    assert site.releases.latest("goose", "default") == untouched
    assert site.releases.history("cursor", "default")[1:] == listed(old[1], old[0])


def test_a_release_whose_key_has_expired_is_history(site: Site) -> None:
    old = site.publish(payload_of("old"))
    site.keys.initialize(regenerate=True)
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") == old
    site.clock.forward(days=31)
    for releases in (site.releases, site.again().releases):
        with pytest.raises(SignatureError, match="valid until"):
            releases.latest("cursor", "default")
        with pytest.raises(SignatureError, match="valid until"):
            releases.get("cursor", "default", old.artifact_id)
        assert releases.get("cursor", "default", old.artifact_id, expired=True) == old
        assert releases.history("cursor", "default") == listed(old)
    assert site.releases.resign() == 1
    latest = site.releases.latest("cursor", "default")
    assert latest is not None
    assert latest.payload == old.payload


def test_everybody_reads_the_systems_and_root_writes_them(passable: Path) -> None:
    site = Site(passable / "tree", Scope.SYSTEM)
    made = site.publish()
    assert mode(site.blob()) == mode(site.tree.index("cursor", "default")) == 0o644
    before = contents(site.tree.root)
    with not_mine(site.tree.root):
        other = site.again()
        assert other.releases.latest("cursor", "default") == made
        assert other.releases.get("cursor", "default", EXAMPLE_ID) == made
        assert other.releases.published() == [("cursor", "default")]
        assert other.keys.current() == made.signing_key_id
        with pytest.raises(ReadOnly, match=re.escape(str(site.tree.root))):
            other.publish()
        with pytest.raises(ReadOnly):
            other.keys.sign(b"data")
        with pytest.raises(ReadOnly):
            other.releases.resign()
    assert contents(site.tree.root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else, who may not look into it")
def test_nobody_else_reads_a_users(passable: Path) -> None:
    site = Site(passable / "tree")
    site.publish()
    with not_mine(site.tree.root):
        with pytest.raises(ReadOnly, match="index"):
            site.again().releases.latest("cursor", "default")
        with pytest.raises(ReadOnly, match="index"):
            site.again().releases.published()


def index_of(site: Site, client: str = "cursor") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.tree.index(client, "default").read_text())
    return found


def put_index(site: Site, index: object, client: str = "cursor") -> None:
    site.tree.index(client, "default").write_text(json.dumps(index))


def check_refused(site: Site, match: str) -> None:
    """By who has it in memory, and by who has not."""
    for releases in (site.releases, site.again().releases):
        for attempt in (
            lambda r: r.latest("cursor", "default"),
            lambda r: r.history("cursor", "default"),
            lambda r: r.get("cursor", "default", EXAMPLE_ID),
        ):
            with pytest.raises(SignatureError, match=match) as caught:
                attempt(releases)
            assert "client publish cursor --profile default" in caught.value.message


def _other_content(path: Path) -> None:
    path.write_bytes(canonical(payload_of("evil")))


def _one_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _spaced(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))


def _symlink(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


BLOBS: dict[str, Callable[[Path], object]] = {
    "other-content": _other_content,
    "one-byte": _one_byte,
    "cut": _cut,
    "empty": lambda path: path.write_bytes(b""),
    "spaced": _spaced,
    "missing": lambda path: path.unlink(),
    "symlink": _symlink,
    "fifo": _fifo,
    "huge": _huge,
}


@pytest.mark.parametrize("kind", BLOBS)
def test_a_changed_artifact_is_refused_until_it_is_published_again(site: Site, kind: str) -> None:
    made = site.publish()
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") == made
    BLOBS[kind](site.blob())
    check_refused(site, EXAMPLE_ID)

    site.clock.forward(hours=1)
    again = site.publish()
    assert site.blob().read_bytes() == canonical(again.payload)
    for releases in (site.releases, site.again().releases):
        assert releases.latest("cursor", "default") == again
        assert releases.history("cursor", "default") == listed(again, made)


def test_another_artifact_does_not_suffer(site: Site) -> None:
    good = site.publish(payload_of("good"))
    site.publish()
    _cut(site.blob())
    assert site.again().releases.get("cursor", "default", good.artifact_id) == good


@pytest.mark.parametrize("member", ["artifact_id", "created_at", "signature", "signing_key_id", "release_signature"])
@pytest.mark.parametrize("source", ["made-up", "of-another-release"])
def test_a_release_that_was_changed_is_refused(site: Site, member: str, source: str) -> None:
    site.publish(payload_of("other"), client="zed")
    site.clock.forward(hours=1)
    site.keys.initialize(regenerate=True)
    site.publish()
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") is not None
    index = index_of(site)
    entry = index["releases"][0]
    made_up = {
        "artifact_id": "0" * 64,
        "created_at": "2027-01-01T00:00:00Z",
        "signature": base64.b64encode(bytes(64)).decode(),
        "signing_key_id": "orchestration-0123456789abcdef",
        "release_signature": base64.b64encode(bytes(64)).decode(),
    }
    other = index_of(site, "zed")["releases"][0]
    assert other[member] != entry[member]
    entry[member] = other[member] if source == "of-another-release" else made_up[member]
    put_index(site, index)
    for releases in (site.releases, site.again().releases):
        with pytest.raises(SignatureError, match="cursor/default"):
            releases.latest("cursor", "default")


def test_a_release_for_one_client_is_not_valid_for_another(site: Site) -> None:
    site.publish(client="zed")
    site.publish(payload_of("other"), client="cursor")
    put_index(site, index_of(site, "zed"))
    check_refused(site, "release signature")


def test_a_release_that_was_made_with_a_key_of_somebody_else(site: Site, tmp_path: Path) -> None:
    site.publish()
    other = Site(tmp_path / "other")
    other.publish()
    put_index(site, index_of(other))
    check_refused(site, "is not in")


def test_an_old_release_that_was_changed_is_refused_where_it_is_asked_for(site: Site) -> None:
    old = site.publish(payload_of("old"))
    new = site.publish()
    index = index_of(site)
    index["releases"][1]["created_at"] = "2020-01-01T00:00:00Z"
    put_index(site, index)
    assert site.releases.latest("cursor", "default") == new
    assert site.releases.get("cursor", "default", EXAMPLE_ID) == new
    for attempt in (
        lambda: site.releases.history("cursor", "default"),
        lambda: site.releases.get("cursor", "default", old.artifact_id),
    ):
        with pytest.raises(SignatureError, match="release signature"):
            attempt()


def _without(member: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        index = json.loads(path.read_text())
        del index["releases"][0][member]
        path.write_text(json.dumps(index))

    return change


def _wrong_type(path: Path) -> None:
    index = json.loads(path.read_text())
    index["releases"][0]["signature"] = 5
    path.write_text(json.dumps(index))


INDEXES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": _cut,
    "not-json": lambda path: path.write_bytes(b"not JSON"),
    "not-utf8": lambda path: path.write_bytes(b'{"releases": ["\xff"]}'),
    "array": lambda path: path.write_bytes(b"[]"),
    "no-list": lambda path: path.write_bytes(b"{}"),
    "null": lambda path: path.write_bytes(b'{"releases": null}'),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "deep-member": lambda path: path.write_bytes(b'{"releases": [], "x": ' + b"[" * 100 + b"]" * 100 + b"}"),
    "half-surrogate": lambda path: path.write_bytes(b'{"releases": [], "x": "\\ud800"}'),
    "nan": lambda path: path.write_bytes(b'{"releases": [NaN]}'),
    "long-number": lambda path: path.write_bytes(b'{"releases": [' + b"9" * 5000 + b"]}"),
    "no-signature": _without("signature"),
    "no-id": _without("artifact_id"),
    "wrong-type": _wrong_type,
    "symlink": _symlink,
    "fifo": _fifo,
    "huge": _huge,
}


@pytest.mark.parametrize("kind", INDEXES)
def test_a_list_that_is_broken_is_named_and_never_overwritten(site: Site, kind: str) -> None:
    made = site.publish()
    path = site.tree.index("cursor", "default")
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") == made
    INDEXES[kind](path)
    before = path.lstat().st_ino, path.lstat().st_ctime_ns
    check_refused(site, r"default\.json")
    with pytest.raises(SignatureError, match=r"default\.json.*move it away"):
        site.publish()
    assert (path.lstat().st_ino, path.lstat().st_ctime_ns) == before

    path.unlink()
    again = site.publish()
    assert site.again().releases.history("cursor", "default") == listed(again)


@pytest.mark.parametrize(
    "content",
    [
        b"{}", b"[]", b'"text"', b'{"mcpServers":[]}', b'{"mcpServers":{"a":5}}', b'{"mcpServers": {}}', b"not JSON",
        b'{"mcpServers":{},"mcpServers":{"a":{}}}', b'{"mcpServers":{"a":{"b":NaN}}}', b"\xff", b"[" * 100_000,
        b'{"mcpServers":{"a":{"b":' + b"[" * 200 + b"]" * 200 + b"}}}",
    ],
    ids=[
        "nothing", "array", "text", "servers", "entry", "spaced", "not-json", "twice", "nan", "not-utf8", "deep",
        "deep-entry",
    ],
)  # fmt: skip
def test_what_is_signed_and_no_configuration_is_refused(site: Site, content: bytes) -> None:
    """Who took over a server has its key too."""
    site.publish()
    name, created = hashlib.sha256(content).hexdigest(), "2026-11-23T13:00:00Z"
    site.blob(name).write_bytes(content)
    signature, key = site.keys.sign(content)
    index = index_of(site)
    index["releases"][:0] = [
        {
            "artifact_id": name,
            "created_at": created,
            "signature": signature,
            "signing_key_id": key,
            "release_signature": site.keys.sign(statement(name, "cursor", "default", created, key))[0],
        }
    ]
    put_index(site, index)
    for attempt in (
        lambda: site.releases.latest("cursor", "default"),
        lambda: site.releases.history("cursor", "default"),
        lambda: site.releases.get("cursor", "default", name),
    ):
        with pytest.raises(SignatureError, match=rf"{name}\.json \(cursor/default\).*client publish cursor"):
            attempt()
    again = site.publish()
    assert site.releases.latest("cursor", "default") == again


@pytest.mark.parametrize("place", ["index", "index/cursor", "artifacts"])
def test_releases_that_lie_elsewhere_are_none(site: Site, tmp_path: Path, place: str) -> None:
    site.publish()
    (site.tree.root / place).rename(tmp_path / "outside")
    (site.tree.root / place).symlink_to(tmp_path / "outside")
    before = contents(tmp_path / "outside")
    match = f"{site.tree.root / place}: a symlink"
    with pytest.raises(SignatureError, match=match):
        site.again().releases.latest("cursor", "default")
    with pytest.raises(SignatureError, match=match):
        site.again().releases.history("cursor", "default")
    if place != "artifacts":
        with pytest.raises(InvalidConfig, match=match):
            site.releases.published()
    with pytest.raises(McpdError, match=match):
        site.publish(payload_of("new"))
    assert contents(tmp_path / "outside") == before


def test_nothing_is_written_when_the_key_cannot_be_used(site: Site) -> None:
    site.publish()
    site.signing_key.chmod(0o644)
    before = contents(site.tree.root)
    with pytest.raises(SignatureError, match="chmod 600"):
        site.publish(payload_of("new"))
    assert contents(site.tree.root) == before


def test_one_release_that_cannot_be_trusted_does_not_keep_others_from_being_signed_again(site: Site) -> None:
    bad = site.publish(payload_of("bad"), client="cursor")
    site.publish(client="zed")
    (site.tree.artifacts / f"{bad.artifact_id}.json").write_bytes(b"{}")
    key = site.keys.initialize(regenerate=True).key_id
    with pytest.raises(SignatureError, match="cursor/default"):
        site.releases.resign()
    latest = site.releases.latest("zed", "default")
    assert latest is not None
    assert latest.signing_key_id == key
    with pytest.raises(SignatureError):
        site.releases.latest("cursor", "default")


pytestmark = pytest.mark.process

PROGRAM = str(Path(__file__).with_name("signing_process.py"))
COUNT = 12


class Started:
    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> None:
        command = [sys.executable, "-W", "error", PROGRAM, *(str(each) for each in arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)

    def ended(self) -> list[tuple[int, str]]:
        said = [process.communicate(timeout=120)[1] for process in self.processes]
        return [(process.returncode, text) for process, text in zip(self.processes, said, strict=True)]


def servers_of(release: Release) -> dict[str, Any]:
    servers = release.payload["mcpServers"]
    assert isinstance(servers, dict)
    return servers


@pytest.fixture
def started() -> Iterator[Started]:
    """Ends what it started."""
    found = Started()
    yield found
    for process in found.processes:
        if process.returncode is None:
            process.kill()
            process.communicate()


def test_nothing_that_was_published_is_lost(tmp_path: Path, started: Started) -> None:
    root = tmp_path / "tree"
    names = ("one", "two", "three")
    for name in names:
        started.start("publish", root, name, COUNT)
    assert started.ended() == [(0, "")] * len(names)
    site = Site(root)
    history = site.releases.history("cursor", "default")
    made = [site.releases.get("cursor", "default", release.artifact_id) for release in history]
    found = [next(iter(servers_of(release))) for release in made]
    assert sorted(found) == sorted(f"{name}-{number}" for name in names for number in range(COUNT))
    for name in names:
        assert [each for each in found if each.startswith(name)] == [f"{name}-{n}" for n in reversed(range(COUNT))]
    assert len({release.signing_key_id for release in history}) == 1
    assert len(list(site.tree.artifacts.iterdir())) == COUNT * len(names)


def test_keys_are_replaced_while_others_publish_and_read(tmp_path: Path, started: Started) -> None:
    root = tmp_path / "tree"
    site = Site(root)
    site.publish()
    started.start("publish", root, "one", COUNT)
    started.start("rotate", root, COUNT)
    started.start("publish", root, "two", COUNT)
    reads = 0
    while any(process.poll() is None for process in started.processes):
        assert site.releases.latest("cursor", "default") is not None
        reads += 1
    assert reads > 0
    assert started.ended() == [(0, "")] * 3
    assert len(site.keys.listing()) == COUNT + 1
    history = site.releases.history("cursor", "default")
    made = [site.releases.get("cursor", "default", release.artifact_id, expired=True) for release in history]
    found = {next(iter(servers_of(release))) for release in made}
    assert found >= {f"{name}-{number}" for name in ("one", "two") for number in range(COUNT)}
    site.releases.resign()
    latest = site.releases.latest("cursor", "default")
    assert latest is not None
    assert latest.signing_key_id == site.keys.current()


def test_what_another_process_publishes_is_seen(tmp_path: Path, started: Started) -> None:
    root = tmp_path / "tree"
    site = Site(root)
    old = site.publish()
    settle(root)
    assert site.releases.latest("cursor", "default") == site.releases.latest("cursor", "default") == old
    started.start("publish", root, "other", 1)
    assert started.ended() == [(0, "")]
    latest = site.releases.latest("cursor", "default")
    assert latest is not None
    assert list(latest.payload["mcpServers"]) == ["other-0"]  # type: ignore[arg-type]


def key_of_files(site: Site) -> set[str]:
    return {
        id_of_key(parse_public_key(path.read_bytes(), str(path)))
        for path in (site.tree.verification_key, site.tree.verification_key_raw)
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(scenario: str, work: Path) -> None:
    runs = kill_at_each_step(signing_process, scenario, work)
    assert runs > 15

    prepare, change = SCENARIOS[scenario]
    has_old = prepare is not SCENARIOS["first"][0]
    old = EXAMPLE if has_old else None
    new = EXAMPLE if scenario in {"rotate", "lost"} else payload_of("new")
    seen = set()
    for number in range(1, runs + 1):
        where = f"killed before step {number}"
        site = Site(work / str(number))
        # What only reads finds a whole release, whose key is known.
        if scenario != "repair":
            latest = site.releases.latest("cursor", "default")
            payload = latest.payload if latest else None
            assert payload in (old, new), where
            seen.add((repr(payload), latest is not None and latest.signing_key_id == site.keys.current()))
        # What signs ends what was begun, with one key that all public files are of.
        if scenario == "lost" and not site.signing_key.exists():
            with pytest.raises(SignatureError, match="missing"):
                site.keys.sign(b"data")
        else:
            _, key = site.keys.sign(b"data")
            assert key == site.keys.current(), where
            assert key_of_files(site) == {key}, where
            assert [record.key_id for record in site.keys.listing() if record.retired_at is None] == [key], where
            assert (site.releases.latest("cursor", "default") is not None) or not has_old, where
        # And the same change again does all of it.
        change(site)
        final = site.again().releases.latest("cursor", "default")
        assert final is not None
        assert final.payload == new, where
        assert final.signing_key_id == site.keys.current(), where
        assert [str(path) for path in site.tree.root.rglob("*~tmp")] == [], where
        known = {id_of(payload) for payload in (old, new) if payload is not None}
        assert {release.artifact_id for release in site.releases.history("cursor", "default")} <= known, where
    assert len(seen) == (0 if scenario == "repair" else 2)
