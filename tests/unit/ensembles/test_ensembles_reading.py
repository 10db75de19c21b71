# SPDX-License-Identifier: LGPL-2.1-or-later
"""YAML as plain data with lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidConfig
from mcpd.model.base import check_json
from mcpd.servers.ensembles.format.reading import MAX_DEPTH, MAX_NODES, MAX_SIZE, read

TEXT = st.text(st.characters(codec="utf-8"), max_size=200)
PRINTABLE = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=20)
MARKS = st.text(st.sampled_from(list("-?:,[]{}#&*!|>'\"%@`~<= \n\tab01.eEx_\\u\r\u2028é")), max_size=80)
LINES = st.lists(
    st.sampled_from(
        ["a: 1", "  b: [1, 2", "- c", "  - d: {e: f}", "? g", ": h", "&i j: *i", "<<: *i", "k: |", "   l", "m: >-", "",
         "...", "---", "%YAML 1.2", "%TAG ! !x", "!!int 3: !!float x", '"n\\u12": 1', "'o", "\tp: q", "#", "]", "}"]
    )
)  # fmt: skip


def refused(text: str) -> InvalidConfig:
    """Why *text* cannot be read."""
    with pytest.raises(InvalidConfig) as error:
        read(text, "dir/it.yaml")
    data = error.value.data
    assert data is not None
    assert set(data) == {"file", "line", "column"}
    assert error.value.message.startswith(f"dir/it.yaml:{data['line']}: ")
    assert "\n" not in error.value.message
    return error.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("---\n...\n", None),
        ("\ufeffa: 1", {"a": 1}),
        ("[1, -2, 0x10, 0o17, 010, 1_000]", [1, -2, 16, 15, 10, 1000]),
        ("[1.5, -2e3, .5, 1.]", [1.5, -2000.0, 0.5, 1.0]),
        ("[true, False, TRUE]", [True, False, True]),
        ("[~, null, Null, {a: }]", [None, None, None, {"a": None}]),
        ("[yes, no, on, off, y]", ["yes", "no", "on", "off", "y"]),
        ("[2024-01-31, 12:30:00, =]", ["2024-01-31", "12:30:00", "="]),
        ("['1', \"2\", !!str 3, ! 4]", ["1", "2", "3", "4"]),
        ("[!!int '1', !!float 2, !!bool 'true', !!null '']", [1, 2.0, True, None]),
        ("!!map {a: !!seq [b]}", {"a": ["b"]}),
        ("a: |\n  one\n  two\n", {"a": "one\ntwo\n"}),
        ("a: >-\n  one\n  two\n", {"a": "one two"}),
        ("1: a\ntrue: b\n2024-01-01: c\n~: d\n", {"1": "a", "true": "b", "2024-01-01": "c", "~": "d"}),
        ("a: &x [1]\nb: *x\n", {"a": [1], "b": [1]}),
        ("&k a: 1\nb: {*k : 2}\n", {"a": 1, "b": {"a": 2}}),
        ("when: ${a.b} == 1", {"when": "${a.b} == 1"}),
        ("%YAML 1.2\n---\na: yes", {"a": "yes"}),
    ],
)
def test_what_stands_for_what(text: str, value: object) -> None:
    data, _ = read(text, "f")
    assert data == value
    assert json.dumps(data) == json.dumps(value)


def test_merge_keys_fill_in_what_is_not_said() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc:\n  <<: [*a, *b]\n  x: 9\nd: {<<: *a}\ne: {'<<': 5}\n"
    data, positions = read(text, "f")
    assert data["c"] == {"x": 9, "y": 2, "z": 4}
    assert data["d"] == {"x": 1, "y": 2}
    assert data["e"] == {"<<": 5}
    assert positions.line(["c", "x"]) == 5
    assert positions.line(["c", "z"]) == 2


def test_positions_are_of_keys_and_elements() -> None:
    text = (
        "name: a\nagents:\n  - name: one\n    script: |\n      text\n  - {name: two,\n     when: x}\n  -\n    name: c\n"
    )
    _, positions = read(text, "f")
    assert positions.position([]) == (1, 1)
    assert positions.position(["agents"]) == (2, 1)
    assert positions.position(["agents", 0]) == (3, 5)
    assert positions.position(["agents", 0, "script"]) == (4, 5)
    assert positions.position(["agents", 1, "when"]) == (7, 6)
    assert positions.line(["agents", 2]) == 9


def test_a_path_that_is_not_there_is_at_its_deepest_part_that_is() -> None:
    _, positions = read("a:\n  b:\n    - c\n", "f")
    assert positions.line(["a", "x", "y"]) == 1
    assert positions.line(["a", "b", 7]) == 2
    assert positions.line(["a", "b", "0"]) == 2
    assert positions.line(["z"]) == 1
    assert positions.line(["a", "b", 0, "deeper"]) == 3


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 'the key "a" is here a second time, after line 1'),
        ("x: {a: 1, 'a': 2}", 1, 'the key "a" is here a second time'),
        ("a\nb: 1", 2, 'a ":" where no key can be'),
        ("a: b: c", 1, 'a ":" where no key can be'),
        ("a: 1\nbc\nd: 2", 2, 'no ":" after its key'),
        ("a:\n\tb: 1", 2, "use spaces"),
        ("a: x\nb:\ty", 2, "use spaces"),
        ("a: - b", 1, 'a "-" where no list can begin'),
        ("a: 1\nb: 'it's'", 2, "text comes after the end of a value"),
        ("a: [b]]", 1, '"]" that belongs to nothing'),
        ("a: *.py", 1, "*.py names nothing"),
        ("a: * x", 1, "put it in quotes"),
        ("a: >x", 1, "begins on the next line"),
        ("a: {when: ${b}}", 1, "text with brackets or braces has to be in quotes"),
        ("a: 1\nb: [1,\n  2\n", 2, 'what begins here lacks its "]"'),
        ("a: {b: 1\n", 1, 'what begins here lacks its "}"'),
        ("a: 1\nb: 'x\nc: 2\n", 2, "what begins here in quotes has no end"),
        ("a: @x", 1, "put it in quotes"),
        ("a:\n  - b\n c: d\n", 3, "check its indentation"),
        ('a: "\\q"', 1, "'q' cannot follow a backslash"),
        ("a: *x", 1, "*x names nothing"),
        ("a: &x [1, *x]", 1, "*x is in what it names itself"),
        ("a: 1\n---\nb: 2\n", 2, "a second document"),
        ("? [a]\n: b\n", 1, "a key has to be text"),
        ("a: &x [b]\n*x : c", 2, "a key has to be text"),
        ("<<: 3", 1, "keys of a mapping"),
        ("<<: [{a: 1}, 2]", 1, "keys of a mapping"),
        ("a: 1\nb: !!binary aGk=", 2, "the tag !!binary is not known"),
        ("a: !!python/object:os.system x", 1, "!!python/object:os.system"),
        ("!custom {a: 1}", 1, "the tag !custom"),
        ("!!set {a, b}", 1, "the tag !!set"),
        ("!!timestamp 2024-01-01: 1", 1, "the tag !!timestamp"),
        ("!e!x a", 1, "tag"),
        ("a: .inf", 1, '".inf" is no float that JSON has'),
        ("a: .NaN", 1, "no float that JSON has"),
        ("a: 1e999", 1, "no float that JSON has"),
        ("a: " + "9" * 5000, 1, "no int that JSON has"),
        ("a: 0x" + "f" * 5000, 1, "no int that JSON has"),
        ("a: !!int x", 1, '"x" is no int'),
        ("a: !!bool x", 1, '"x" is no bool'),
        ('a: "\\0"', 1, "NUL"),
        ('a: "\\ud800"', 1, "surrogate"),
        ('"\\ud800": a', 1, "surrogate"),
        ("a: 1\nb: \x01", 2, "U+0001"),
        ("%YAML 1.1\n---\na: yes", 2, "YAML 1.2"),
        ("%YAML 1.3\n---\na: yes", 1, "YAML"),
        ("%YAML 2.0\n---\na: yes", 1, "version"),
        ("%YAML 1." + "9" * 5000 + "\n---\na", 1, "YAML"),
        ('a: "\\UFFFFFFFF"', 1, "YAML"),
    ],
)  # fmt: skip
def test_faults_are_in_plain_words_at_their_line(text: str, line: int, words: str) -> None:
    error = refused(text)
    assert words in error.message
    assert error.data is not None
    assert error.data["line"] == line
    assert len(error.message) < 260


def test_the_last_depth_and_no_further() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f")[0]
    assert "deeper than 64" in refused("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2)).message


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "[a, ", "{? [", "[\n", "&a [", "!!seq ["])
def test_text_that_only_nests_is_refused_early(opening: str) -> None:
    refused(opening * (MAX_SIZE // len(opening)))


def test_depth_counts_through_aliases() -> None:
    half = "[" * 40 + "]" * 40
    assert "deeper than 64" in refused(f"a: &a {half}\nb: {'[' * 40}*a{']' * 40}").message


def test_what_aliases_repeat_is_limited() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert "what aliases repeat" in refused("\n".join(lines)).message
    long = f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 100)}]"
    assert "what aliases repeat" in refused(long).message


def test_size_and_number_of_values_are_limited() -> None:
    assert read("# " + "x" * (MAX_SIZE - 2), "f")[0] is None
    assert "larger than 256 KiB" in refused("# " + "x" * MAX_SIZE).message
    assert "more than 20000 values" in refused("- a\n" * MAX_NODES).message


@given(TEXT | MARKS | LINES.map("\n".join))
def test_any_text_is_plain_data_or_is_refused_with_its_line(text: str) -> None:
    try:
        data, positions = read(text, "dir/it.yaml")
    except InvalidConfig:
        line = (refused(text).data or {})["line"]
        assert isinstance(line, int)
        assert 1 <= line <= len(text.splitlines()) + 1
        return
    check_json(data)
    json.dumps(data, allow_nan=False)
    assert positions.line([]) >= 1


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | PRINTABLE,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PRINTABLE, inner, max_size=4),
    )
)
def test_json_is_read_as_it_is(value: Any) -> None:
    assert read(json.dumps(value, indent=1), "f")[0] == value
