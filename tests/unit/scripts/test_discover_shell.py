# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool of a shell script, and the words of its command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, InvalidManifest
from mcpd.servers.scripts.discover import shell
from mcpd.servers.scripts.tool import Tool

PLAIN = {"type": "object", "properties": {"args": {"type": "string", "description": "Command arguments"}}}


def test_T11_2_a_shell_script_is_one_tool() -> None:
    assert shell.tool('#!/bin/sh\necho "$@"\n', "foo") == Tool("foo", "Execute foo command", PLAIN, function="")
    assert shell.tool("", "bar") == Tool("bar", "Execute bar command", PLAIN, function="")


@pytest.mark.parametrize(
    ("source", "description"),
    [
        (
            "#!/bin/sh\n# Shows the date.\n#\n# Usage: date [FORMAT]\n\n# no\ndate",
            "Shows the date.\n\nUsage: date [FORMAT]",
        ),
        ("#!/bin/sh\n\n# SPDX-License-Identifier: MIT\n# Copyright 2020 X\n# Says hello.\necho", "Says hello."),
        ("# ----\n# Does.\n# ----\n#\n# This is free\n# software under a license.\n#\n# More.", "Does.\n\nMore."),
        ("# shellcheck shell=sh\n# Hm.\n", "Hm."),
        ("echo\n# late\n", "Execute foo command"),
        ("#!/bin/sh\n# SPDX-License-Identifier: MIT\n\n# Second block.\n", "Second block."),
    ],
)
def test_T11_5_the_first_comment_is_the_description(source: str, description: str) -> None:
    assert shell.tool(source, "foo") == Tool("foo", description, PLAIN, function="")


def test_what_is_no_text_is_reported_with_its_line() -> None:
    with pytest.raises(InvalidManifest, match=r"^foo:2: .*NUL"):
        shell.tool("#!/bin/sh\n\0", "foo")
    with pytest.raises(InvalidManifest, match=r"^foo:1: longer"):
        shell.tool("x" * 3_000_000, "foo")


@given(st.text())
def test_any_text_is_a_tool_or_refused(source: str) -> None:
    try:
        found = shell.tool(source, "x")
    except InvalidManifest as error:
        message = str(error)
    else:
        assert found.input_schema == PLAIN
        return
    assert message.startswith("x:")


def test_words_of_a_command_line_are_split_as_a_shell_does() -> None:
    words = ["-l", "a b", "c", "d e", "$HOME", "`x`", "*"]
    assert shell.words("", {"args": "-l 'a b' \"c\" d\\ e $HOME `x` *"}) == words
    assert shell.words("", {"command_args": "x"}) == ["x"]
    assert shell.words("", {"args": ""}) == shell.words("", {}) == []
    assert shell.words("build", {"args": "a b"}) == ["build", "a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"args": "'x"}, "args: No closing quotation"),
        ({"args": "x\\"}, "args: No escaped character"),
        ({"command_args": 'a "b'}, "command_args: No closing quotation"),
        ({"args": "a\0b"}, "args: .*NUL"),
        ({"args": "\ud800"}, "args: .*half a character"),
        ({"args": "x" * 200_000}, "args: longer than"),
        ({"args": "x", "command_args": "y"}, "args and command_args"),
        ({"args": None}, "args: must be text"),
    ],
)
def test_command_lines_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        shell.words("", arguments)
