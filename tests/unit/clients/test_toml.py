# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers in TOML files: their tables are replaced, added and removed, and all else stays as it was."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from mcpd.clients.editing import edit, read
from mcpd.errors import InvalidConfig

KEY = ("mcp_servers",)
RUN: dict[str, Any] = {"command": "mcpctl", "args": ["run", "x"], "env": {"A": "1"}}

CODEX = """model = "o"

# documents
[mcp_servers.docs]
command = "npx" # by hand
args = ["-y",
  "docs"]

[mcp_servers.docs.env]
TOKEN = "t"

# what is trusted
[projects."/home/x"]
trust_level = "trusted"
"""
RUN_TABLES = '[mcp_servers.n]\ncommand = "mcpctl"\nargs = ["run", "x"]\n\n[mcp_servers.n.env]\nA = "1"\n'


def change(text: str, changes: dict[str, Any], *key: str) -> str:
    result = edit(text.encode(), "toml", key or KEY, "map", changes, "f.toml")
    assert edit(result, "toml", key or KEY, "map", changes, "f.toml") == result
    return result.decode()


def test_new_tables_of_codex_come_behind_the_last_server() -> None:
    after = CODEX.replace('TOKEN = "t"\n', 'TOKEN = "t"\n\n' + RUN_TABLES)
    assert change(CODEX, {"n": RUN}) == after
    assert change(after, {"n": None}) == CODEX
    assert change(CODEX.replace("\n", "\r\n"), {"n": RUN}) == after.replace("\n", "\r\n")


def test_a_replaced_table_keeps_its_place_and_the_comments_around_it() -> None:
    start, end = CODEX.index("[mcp_servers.docs]"), CODEX.index("\n# what")
    assert (
        change(CODEX, {"docs": {"command": "y"}}) == CODEX[:start] + '[mcp_servers.docs]\ncommand = "y"\n' + CODEX[end:]
    )
    assert change(CODEX, {"docs": None}) == CODEX[:start] + CODEX[end:]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "[mcp_servers.n]\nx = 1\n"),
        ("# c", "# c\n\n[mcp_servers.n]\nx = 1"),
        ("a = 1\n", "a = 1\n\n[mcp_servers.n]\nx = 1\n"),
        ("[mcp_servers]\n", "[mcp_servers]\n\n[mcp_servers.n]\nx = 1\n"),
        ("[mcp_servers]\n  a = {}\n[z]\n", "[mcp_servers]\n  a = {}\n\n[mcp_servers.n]\nx = 1\n[z]\n"),
        ("mcp_servers.a.x = 1\nb = 2\n[z]\n", "mcp_servers.a.x = 1\nb = 2\n\n[mcp_servers.n]\nx = 1\n[z]\n"),
    ],
    ids=["empty", "comment", "foreign", "header", "section", "dotted"],
)
def test_new_servers_are_tables_behind_what_holds_the_last_one(before: str, after: str) -> None:
    assert change(before, {"n": {"x": 1}}) == after
    # A blank document, or one that ends without a line break, is given back as it was, too.
    assert change(after, {"n": None}) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[mcp_servers]\na.x = 1\nb = 2 # b\na.y = 2\n", "[mcp_servers]\nb = 2 # b\n\n[mcp_servers.a]\nz = 3\n"),
        ("[mcp_servers.a.env]\nX = 1\n[q]\n[mcp_servers.a]\ny = 1\n", "[mcp_servers.a]\nz = 3\n[q]\n"),
    ],
    ids=["dotted", "out-of-order"],
)
def test_a_server_in_several_places_becomes_one_table(before: str, after: str) -> None:
    assert change(before, {"a": {"z": 3}}) == after


def test_longer_paths_are_found_and_made() -> None:
    assert change("[a.b.x]\ny = 1\n", {"n": {"z": 1}}, "a", "b") == "[a.b.x]\ny = 1\n\n[a.b.n]\nz = 1\n"
    assert change("[a]\ny = 1\n", {"n": {"z": 1}}, "a", "b") == "[a]\ny = 1\n\n[a.b.n]\nz = 1\n"


@pytest.mark.parametrize("text", ["mcp_servers = {}\n", "\nmcp_servers = { a.x = 1, b = {} } # c\n"])
def test_servers_in_an_inline_table_are_read_but_not_edited(text: str) -> None:
    found = read(text.encode(), "toml", KEY, "map", "f")
    assert found == tomllib.loads(text)["mcp_servers"]
    with pytest.raises(InvalidConfig, match=r"^f:[12]: .*inline table; .*\[mcp_servers.NAME\]"):
        edit(text.encode(), "toml", KEY, "map", {"n": {}}, "f")


LOOKALIKE = """x = [
  [1], # ]
  [2, "}", 'mcp_servers.a = 1'],
]
'=' = '''
[mcp_servers.no]
a = [
'''
# of a
[mcp_servers.a] # a
args = [
  "[mcp_servers.b]", # [mcp_servers.b]
  ]
env = { "a=b,}" = "1, c = 2}", d . 'e.f' = [{}, {g = "}"}] }

  # of z
[z]
y = \"\"\"\\
  \\\"\"\"
  [mcp_servers.a]
\"\"\"
"""


def test_what_only_looks_like_a_table_is_left_alone() -> None:
    start, end = LOOKALIKE.index("[mcp_servers.a]"), LOOKALIKE.index("\n  # of z")
    added = change(LOOKALIKE, {"n": {"x": 1}})
    assert added == LOOKALIKE[:end] + "\n[mcp_servers.n]\nx = 1\n" + LOOKALIKE[end:]
    assert change(added, {"n": None}) == LOOKALIKE
    assert change(LOOKALIKE, {"a": None}) == LOOKALIKE[:start] + LOOKALIKE[end:]


@pytest.mark.parametrize(
    "text",
    [
        "prompt = '''\n" + "[a](b) {c} \\\n" * 20_000 + "'''\n",
        "x = [\n" + "[],\n" * 10_000 + "]\n",
        "".join(f'[projects."/home/{number}"]\ntrust_level = "trusted"\n\n' for number in range(2_000))[:-1],
    ],
    ids=["text", "arrays", "tables"],
)
def test_a_large_file_is_edited(text: str) -> None:
    assert change(text, {"n": {"x": 1}}) == text + "\n[mcp_servers.n]\nx = 1\n"


def test_dates_are_read_as_text() -> None:
    assert read(b"[mcp_servers.a]\nd = 1979-05-27\nt = [07:32:00]\n", "toml", KEY, "map", "f") == {
        "a": {"d": "1979-05-27", "t": ["07:32:00"]}
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a = 1\na = 2\n", "f:2: not TOML"),
        ("a = \n", "f:1: not TOML"),
        ("[mcp_servers.a]\n[mcp_servers.a]\n", "f:2: not TOML"),
        ("mcp_servers = 1\n", "mcp_servers is not a table"),
        ("[[mcp_servers]]\n", "mcp_servers is not a table"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("\n" + "a." * 100_000 + "a = 1", "a key of more than 64 parts"),
        ("[mcp_servers.a]\nx = inf\n", "not finite"),
        ("a = 1\r", "not TOML"),
    ],
    ids=["twice", "nothing", "table-twice", "number", "array", "deep", "long-key", "infinite", "old-mac"],
)
def test_what_cannot_be_read_is_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        edit(text.encode(), "toml", KEY, "map", {"n": {}}, "f")
    assert fault in caught.value.message


def test_what_toml_cannot_hold_is_refused() -> None:
    entries: list[Any] = [{"x": None}, {"x": [{"y": None}]}, "text", {"x": float("nan")}]
    for entry in entries:
        with pytest.raises(InvalidConfig, match=r"^f: n"):
            edit(b"", "toml", KEY, "map", {"n": entry}, "f")
    with pytest.raises(InvalidConfig, match="list"):
        read(b"", "toml", KEY, "list", "f")
