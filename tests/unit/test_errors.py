# SPDX-License-Identifier: LGPL-2.1-or-later
"""The error table: one row per class, the same in code and in docs/errors.md."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from mcpd import errors

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"
ROW = re.compile(r"^\| `(\w+)` \| `([\w.]+)` \| (-?\d+) \| (\d+) \| (\d) \|", re.MULTILINE)


def test_every_error_is_documented_as_it_is() -> None:
    documented = {
        name: (dbus, int(code), int(status), int(exit_code))
        for name, dbus, code, status, exit_code in ROW.findall(DOCUMENT.read_text())
    }
    actual = {cls.__name__: (cls.dbus_name, cls.jsonrpc_code, cls.http_status, cls.exit_code) for cls in errors.TABLE}
    assert documented == actual


def test_the_dbus_interfaces_name_only_errors_that_there_are() -> None:
    named = {
        name
        for file in (DOCUMENT.parents[1] / "dbus").glob("*.xml")
        for name in re.findall(r"\borg(?:\.\w+)+\.Error\.\w+", file.read_text())
    }
    assert named
    assert named <= {cls.dbus_name for cls in errors.TABLE}


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("sreach", "search"),
        ("server-memory", "org.example.server-memory"),
        ("none-like-it", None),
    ],
)
def test_a_message_names_what_was_probably_meant(word: str, meant: str | None) -> None:
    known = ("search", "mcp-server-time", "org.example.server-memory", "my-server-memo")
    assert errors.did_you_mean(word, iter(known)) == (f"; did you mean {meant!r}?" if meant else "")


def test_dbus_names_are_unique_and_lead_back_to_their_class() -> None:
    for cls in errors.TABLE:
        assert type(errors.from_dbus(cls.dbus_name, "x")) is cls


def test_an_unknown_dbus_name_becomes_the_base_class_with_its_message() -> None:
    error = errors.from_dbus("com.example.Odd", "strange")
    assert type(error) is errors.McpdError
    assert error.message == "strange"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, errors.NoSpace),
        (errno.EDQUOT, errors.NoSpace),
        (errno.EACCES, errors.ReadOnly),
        (errno.EROFS, errors.ReadOnly),
        (errno.EIO, errors.McpdError),
    ],
)
def test_an_oserror_keeps_what_was_being_done(number: int, kind: type[errors.McpdError]) -> None:
    error = errors.from_oserror(OSError(number, "reason"), "writing /a/b")
    assert type(error) is kind
    assert "writing /a/b" in error.message
    assert "reason" in error.message
