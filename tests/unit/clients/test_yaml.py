# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers in YAML files in block style: their lines are replaced, added and removed, all else stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.editing import edit, read
from mcpd.errors import InvalidConfig
from tests.unit.clients.made import ENTRIES

KEY = ("servers",)
RUN: dict[str, Any] = {"command": "mcpctl", "args": ["run", "a b"], "env": {"A": "yes", "B": "${X}"}, "e": {}}

GOOSE = """# Goose
GOOSE_PROVIDER: anthropic   # which
extensions:
  # built in
  developer:
    bundled: true
    type: builtin   # x

  memory:
    enabled: false
    args:
    - a

# last words
GOOSE_MODEL: o
"""


def change(text: str, changes: dict[str, Any], shape: Any = "map", key: tuple[str, ...] = KEY) -> str:
    result = edit(text.encode(), "yaml", key, shape, changes, "f.yaml")
    assert edit(result, "yaml", key, shape, changes, "f.yaml") == result
    return result.decode()


@given(ENTRIES, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12))
def test_any_text_is_written_so_that_it_is_read_back(entry: dict[str, Any], name: str) -> None:
    for before in (b"", b"servers:\n    a:\n        x: 1\n"):
        result = edit(before, "yaml", KEY, "map", {name: entry}, "f")
        assert read(result, "yaml", KEY, "map", "f")[name] == entry


def test_extensions_of_goose_keep_their_comments() -> None:
    new = """  n:
    command: mcpctl
    args:
    - run
    - "a b"
    env:
      A: "yes"
      B: "${X}"
    e: {}
""".replace("  n:", '  "n":')
    after = GOOSE.replace("    - a\n", "    - a\n" + new)
    assert change(GOOSE, {"n": RUN}, key=("extensions",)) == after
    assert change(after, {"n": None}, key=("extensions",)) == GOOSE
    replaced = GOOSE.replace("    bundled: true\n    type: builtin   # x\n", "    x: 1\n")
    assert change(GOOSE, {"developer": {"x": 1}}, key=("extensions",)) == replaced
    emptied = change(GOOSE, {"developer": None, "memory": None}, key=("extensions",))
    tail = "extensions: {}\n  # built in\n\n\n# last words\nGOOSE_MODEL: o\n"
    assert emptied == GOOSE[: GOOSE.index("extensions")] + tail


def test_servers_of_continue_are_a_list() -> None:
    before = "name: L\nmcpServers:\n- name: a\n  command: x\n- uses: foo/bar\n-   name: b  # c\n    command: y\n"
    after = change(before, {"a": None, "b": {"command": "z", "args": ["r"]}, "q": {"x": 1}}, "list", ("mcpServers",))
    assert after == (
        "name: L\nmcpServers:\n- uses: foo/bar\n- name: b\n  command: z\n  args:\n  - r\n- name: q\n  x: 1\n"
    )
    assert read(after.encode(), "yaml", ("mcpServers",), "list", "f")["q"] == {"name": "q", "x": 1}
    with pytest.raises(InvalidConfig, match="does not begin on its own line"):
        change("s:\n- # c\n  name: a\n", {"a": None}, "list", ("s",))
    assert change("s:\n- name: a\n", {"a": None}, "list", ("s",)) == "s: []\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "servers:\n  q:\n    x: 1\n"),
        ("# c\n", "# c\nservers:\n  q:\n    x: 1\n"),
        ("---\n", "---\nservers:\n  q:\n    x: 1\n"),
        ("a: 1", "a: 1\nservers:\n  q:\n    x: 1"),
        ("a: 1\n...\n", "a: 1\nservers:\n  q:\n    x: 1\n...\n"),
        ("servers: # c\nb: 1\n", "servers: # c\n  q:\n    x: 1\nb: 1\n"),
        ("servers: ~ # c\n", "servers: # c\n  q:\n    x: 1\n"),
        ("servers: {}\n", "servers:\n  q:\n    x: 1\n"),
        ("a: |+\n  x\n\n", "a: |+\n  x\n\nservers:\n  q:\n    x: 1\n"),
        ("servers:\n   a: |\n     b\n\n\nz: 1\n", "servers:\n   a: |\n     b\n\n\n   q:\n      x: 1\nz: 1\n"),
    ],
    ids=range(10),
)
def test_new_servers_wherever_there_was_none(before: str, after: str) -> None:
    assert change(before, {"q": {"x": 1}}) == after


def test_scalars_mean_what_the_core_schema_says() -> None:
    text = "servers: {a: [yes, 0o17, 0x1F, 1_0, 12, 1e3, .5, ~, TRUE, !!str 1, '1', 2001-01-01, *x]}\nb: &x 1\n"
    text = "b: &x 1\n" + text.replace("\nb: &x 1", "")
    assert read(text.encode(), "yaml", KEY, "map", "f")["a"] == (
        ["yes", 15, 31, "1_0", 12, 1000.0, 0.5, None, True, "1", "1", "2001-01-01", 1]
    )


def test_aliases_elsewhere_do_not_keep_a_server_from_being_changed() -> None:
    before = "x: &x {k: 1}\nservers:\n  a: *x\n  b: {<<: *x, c: 1}\n  c: 1\n"
    assert change(before, {"c": {"z": 1}, "a": None}) == "x: &x {k: 1}\nservers:\n  b: {<<: *x, c: 1}\n  c:\n    z: 1\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("servers: &x\n  a: 1\nb: *x\n", "f:1: the map around the servers has an anchor or a tag"),
        ("servers: !!map\n  a: 1\n", "an anchor or a tag"),
        ("x: &x {a: 1}\nservers:\n  <<: *x\n", "f:3: a merge key"),
        ("servers:\n  a: &x {}\nb: *x\n", "f:2: a has an anchor"),
        ("b: &x 1\nservers:\n  &x a: 1\nc: *x\n", "f:3: a has an anchor"),
        ('servers:\n  a:\n    n: !!int "5"\n', "f:3: a tag (!) is in a"),
        ("b: &x {}\nservers:\n  a:\n    <<: *x\n", "f:4: a merge key (<<) is in a; expand it"),
        ("x: &x {}\nservers: *x\n", "f:2: servers is not a map"),
        ("a: 1\n---\nb: 1\n", "f:2: the file contains more than one document"),
        ("%YAML 1.1\n---\na: 1\n", "directives"),
        ("servers: []\n", "f:1: servers is not a map"),
        ("- a\n", "f:1: the document is not a map"),
        ("servers: {}\nservers: {}\n", "f:2: servers occurs twice"),
        ("servers:\n  a: 1\n  'a': 2\n", "f:3: two servers are named a"),
        ("servers:\n  ? {x: 1}\n  : 2\n", "f:2: a key is not a string"),
        ("servers:\n\ta: 1\n", "f:2: not YAML"),
        ("servers: *x\n", "has no anchor"),
        ("servers: &a\n  a: *a\n", "aliases expand to too many"),
        ("[" * 100_000, "nested deeper than 200 levels"),
        ("- " * 100_000, "nested deeper than 200 levels"),
        ('a: "\\UFFFFFFFF"', "not YAML"),
        ("servers: {a: {x: 1}}\n", "f:1: the servers are in flow style"),
        ('{"servers": {}}', "f:1: the servers are in flow style"),
        ("servers:\n  b: 1\n  ? a\n  : 1\n", "f:3: a server does not begin on its own line"),
        ("servers:\n  a: .inf\n", "not finite"),
        ("servers:\n  a: " + "1" * 5000, "too many digits"),
    ],
    ids=range(26),
)
def test_what_cannot_be_edited_is_refused_by_line(text: str, fault: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        edit(text.encode(), "yaml", KEY, "map", {"a": {"new": 1}}, "f")
    assert fault in caught.value.message


def test_a_bomb_of_aliases_is_refused() -> None:
    bomb = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    with pytest.raises(InvalidConfig, match="aliases expand to too many"):
        read(f"{bomb}servers:\n  x: *a39\n".encode(), "yaml", KEY, "map", "f")
    assert read(f"{bomb}servers:\n  x: 1\n".encode(), "yaml", KEY, "map", "f") == {"x": 1}


def test_a_bomb_of_many_servers_is_refused() -> None:
    bomb = "b0: &b0 [1]\n" + "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 16))
    servers = "".join(f"  s{n}: *b15\n" for n in range(100))
    with pytest.raises(InvalidConfig, match="aliases expand to too many"):
        read(f"{bomb}servers:\n{servers}".encode(), "yaml", KEY, "map", "f")


def test_a_server_of_a_list_may_be_named_by_an_alias() -> None:
    before = b"me: &me mine\nservers:\n  - name: *me\n    x: 1\n  - name: &list [a]\n  - name: *list\n"
    assert read(before, "yaml", KEY, "list", "f") == {"mine": {"name": "mine", "x": 1}}
    assert edit(before, "yaml", KEY, "list", {"mine": {"name": "mine", "x": 1}}, "f") == before
