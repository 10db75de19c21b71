# SPDX-License-Identifier: LGPL-2.1-or-later
"""What counts as an update."""

from __future__ import annotations

from typing import Any

import pytest

from mcpd.install.updates import content_digest, is_made_from, is_update
from mcpd.model import Entry, Manifest

HERE = "https://registry.test/list.json"


@pytest.mark.parametrize(
    ("installed", "offered", "update"),
    [
        ("1.0", "1.1", True),
        ("1.9", "1.10", True),
        ("1.10", "1.9", False),
        ("1.0rc1", "1.0", True),
        ("1.0", "1.0rc1", False),
        ("v1.0", "1.0.1", True),
        ("2025.9.25", "2026.1.2", True),
        ("1.0", "1.0", False),
        ("1.0", "", False),
    ],
)
def test_newer_is_what_people_mean(installed: str, offered: str, *, update: bool) -> None:
    manifest = Manifest.parse({"id": "a", "version": installed, "origin": {"registry": HERE}}, "test")
    assert is_update(manifest, Entry.parse({"id": "a", "version": offered}, "test"), HERE) is update


def test_a_version_of_thousands_of_digits_harms_nobody() -> None:
    huge = Entry.parse({"id": "a", "version": "1." + "9" * 5000}, "test")
    manifest = Manifest.parse({"id": "a", "version": "1.08", "origin": {"registry": HERE}}, "test")
    assert is_update(manifest, huge, HERE)


def test_the_same_version_with_another_pin_is_an_update() -> None:
    git = {"type": "git", "url": "https://h.test/x", "rev": "a" * 40}
    document = {"id": "a", "version": "1", "source": git}
    manifest = Manifest.parse({**document, "origin": {"registry": HERE}}, "test")
    other_pin = Entry.parse({"id": "a", "version": "1", "source": {**git, "rev": "b" * 40}}, "test")
    assert is_update(manifest, other_pin, HERE)
    assert not is_update(Manifest.parse(document, "test"), other_pin, HERE)
    pinned = Manifest.parse({**document, "origin": {"registry": HERE, "pinned": True}}, "test")
    assert not is_update(pinned, Entry.parse({"id": "a", "version": "2", "source": git}, "test"), HERE)


@pytest.mark.parametrize(
    ("origin", "source", "update"),
    [
        ({"registry": HERE}, {}, True),
        ({"registry": "https://other.test/list.json"}, {}, False),
        ({"registry": ""}, {}, False),
        (None, {}, True),
        ({"name": "org/test"}, {}, True),
        (None, {"package": "another"}, False),
        (None, {"type": "pypi"}, False),
        (None, {"path": "servers/a"}, False),
        (None, {"url": "https://other.test"}, False),
    ],
)
def test_an_update_comes_from_where_the_server_came_from(
    origin: dict[str, str] | None, source: dict[str, str], *, update: bool
) -> None:
    document: dict[str, Any] = {"id": "a", "version": "1", "source": {"type": "npm", "package": "a", **source}}
    manifest = Manifest.parse(document | ({} if origin is None else {"origin": origin}), "test")
    entry = Entry.parse({"id": "a", "version": "2", "source": {"type": "npm", "package": "a"}}, "test")
    assert is_update(manifest, entry, HERE) is update


ENTRY: dict[str, Any] = {
    "id": "a",
    "version": "1",
    "name": "A",
    "summary": "s",
    "source": {"type": "npm", "package": "a", "version": "1"},
    "transports": [{"type": "stdio", "command": "npx", "args": ["a"]}],
    "permissions": ["network", "devices"],
    "env": {"A": "1"},
    "runtime": {"sharing": "all"},
    "configurableProperties": [{"key": "k", "label": "K", "description": "d", "default": "x"}],
    "integrity": {"manifestSha256": "a"},
    "manifest": "https://registry.test/a.json",
}


def changed(**fields: Any) -> Entry:
    return Entry.parse({**ENTRY, **fields}, "test")


def installed(**fields: Any) -> Manifest:
    origin = {"registry": HERE, "content": content_digest(changed()), **fields.pop("origin", {})}
    return Manifest.parse({**ENTRY, **fields, "origin": origin}, "test")


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"name": "B", "summary": "t", "description": "u", "icon": "https://h.test/i.png", "screenshots": []},
        {"categories": ["x"], "license": "MIT", "tools": [{"name": "x"}], "origin": {"name": "x"}, "serverJson": {}},
        {"permissions": ["devices", "network"]},
        {"configurableProperties": [{"required": False, "key": "k", "label": "L", "title": "t", "default": "x"}]},
        {"source": {"version": "1", "package": "a", "type": "npm", "url": "", "rev": None}},
    ],
)
def test_texts_for_people_are_no_update(texts: dict[str, Any]) -> None:
    assert content_digest(changed(**texts)) == content_digest(changed())
    assert not is_update(installed(), changed(**texts), HERE)


@pytest.mark.parametrize(
    "content",
    [
        {"source": {"type": "npm", "package": "b", "version": "1"}},
        {"source": {"type": "npm", "package": "a", "version": "1", "sha256": "a" * 64}},
        {"source": {"type": "npm", "package": "a", "version": "1", "registryBaseUrl": "https://h.test"}},
        {"source": None},
        {"transports": [{"type": "stdio", "command": "npx", "args": ["a", "--all"]}]},
        {"transports": [*ENTRY["transports"], {"type": "sse", "url": "https://h.test"}]},
        {"permissions": ["network"]},
        {"env": {"A": "2"}},
        {"runtime": {}},
        {"configurableProperties": [{"key": "k", "default": "y"}]},
        {"configurableProperties": [{"key": "k", "default": "x", "sensitive": True}]},
        {"configurableProperties": []},
        {"integrity": {"manifestSha256": "b"}},
        {"manifest": "https://registry.test/b.json"},
    ],
)
def test_the_same_version_with_other_content_is_an_update(content: dict[str, Any]) -> None:
    assert is_update(installed(), changed(**content), HERE)
    assert not is_update(installed(origin={"pinned": True}), changed(**content), HERE)
    assert not is_update(installed(), changed(**content), "https://other.test")
    assert not is_update(installed(version="2"), changed(**content), HERE)


def test_a_digest_made_in_another_way_says_nothing() -> None:
    assert not is_update(installed(origin={"content": "0-abc"}), changed(), HERE)
    assert not is_update(installed(origin={"content": 3}), changed(permissions=[]), HERE)


def test_credentials_of_a_source_are_not_its_content() -> None:
    git = {"type": "git", "url": "https://h.test/x"}
    with_token = {**git, "url": "https://me:token@h.test/x"}
    assert content_digest(changed(source=git)) == content_digest(changed(source=with_token))


def test_the_digest_survives_writing_and_reading() -> None:
    again = Entry.parse(changed().to_json(), "test")
    assert content_digest(again) == content_digest(changed())


def test_an_update_that_waits_is_known_again() -> None:
    assert is_made_from(installed(), changed(summary="else"), HERE)
    assert not is_made_from(installed(), changed(permissions=[]), HERE)
    assert not is_made_from(installed(), changed(version="2"), HERE)
    assert not is_made_from(installed(), changed(), "https://other.test")
