# SPDX-License-Identifier: LGPL-2.1-or-later
"""What counts as an update."""

from __future__ import annotations

from typing import Any

import pytest

from mcpd.install.updates import is_update
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
