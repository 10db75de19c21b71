# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was published, for whom, and how it is found again."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import given
from hypothesis import strategies as st
from signed_parts import EXAMPLE, EXAMPLE_ID, Site, contents, listed, mode, not_mine, payload_of, settle

from mcpd.clients import releases as module
from mcpd.clients.errors import ArtifactNotFound, SignatureError, error_object
from mcpd.clients.payload import canonical, id_of
from mcpd.clients.releases import KEPT, MAX_CHANGELOG, MAX_INDEX, MAX_WORD, statement
from mcpd.errors import InvalidArgument, NotFound, ReadOnly
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "tree")


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory that everybody may look into, which pytest's are not."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        Path(name).chmod(0o755)
        yield Path(name)


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
