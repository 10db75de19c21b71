# SPDX-License-Identifier: LGPL-2.1-or-later
"""References to responses, and conditions over them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, LimitExceeded
from mcpd.servers.ensembles.format.references import check, check_condition, holds, resolve, substitute

RESPONSE = (
    '{"items": [{"title": "One"}, {"title": "Two"}], "ok": true, "score": 7, "inner": "{\\"deep\\": 1}", "n": null}'
)
VALUES: dict[str, Any] = {"reader": RESPONSE, "input": "do it", "parsed": {"a-b": [1, [2, 3]]}, "list": '["x", "y"]'}

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("${input}", "do it"),
        ("${reader}", RESPONSE),
        ("${reader.items.1.title}", "Two"),
        ("${reader.items[0].title}", "One"),
        ("${reader.inner.deep}", 1),
        ("${reader.n}", None),
        ("${list.0}", "x"),
        ("${list[1]}", "y"),
        ("${parsed.a-b[1].0}", 2),
        (" ${input} ", "do it"),
    ],
)
def test_a_reference_reads_what_its_path_leads_to(reference: str, value: object) -> None:
    assert resolve(reference, VALUES) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reader",
        "$",
        "${",
        "${}",
        "${reader",
        "$reader",
        "${reader.}",
        "${.a}",
        "${a..b}",
        "${a b}",
        "${a[x]}",
        "${a[-1]}",
        "${a[]}",
        "${reader} and more",
        "${a}${b}",
        "${é}",
        "${a\n}",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a reference"):
        resolve(text, VALUES)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${writer}", 'there is no "writer"'),
        ("${reader.title}", '"reader" has no "title"; it has items, ok, score'),
        ("${reader.items.2.title}", '"reader.items" is a list of 2 and has no "2"'),
        ("${reader.items.title}", 'is a list of 2 and has no "title"'),
        ("${reader.score.x}", '"reader.score" is neither an object nor a list'),
        ("${input.key}", '"input" is neither an object nor a list'),
    ],
)
def test_a_reference_that_reads_nothing_says_how_far_it_got(reference: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        resolve(reference, VALUES)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("${reader.ok}", True),
        ("${reader.n}", False),
        ("${reader.missing}", False),
        ("${writer}", False),
        ("${reader.ok} == true", True),
        ("${reader.ok} == 1", False),
        ("${reader.ok} != 1", True),
        ("${reader.score} == 7", True),
        ("${reader.score}==7.0", True),
        ('${reader.score} == "7"', False),
        ("${reader.items.0.title} == One", True),
        ('${reader.items.0.title} == "One"', True),
        ("${reader.items[0].title} == 'One'", True),
        ("${reader.items.0.title} != Two", True),
        ("${reader.missing} == null", True),
        ("${reader.missing} != One", True),
        ('${list} == ["x", "y"]', True),
        ('${list} == ["y", "x"]', False),
        ('${reader.items.0} == {"title": "One"}', True),
        ('${reader.items.0} == {"title": true}', False),
        ("${input} == 'do it'", True),
        ("${parsed.a-b} == [1, [2, 3]]", True),
        ("${parsed.a-b} == [true, [2, 3]]", False),
    ],
)
def test_conditions(condition: str, answer: bool) -> None:
    assert holds(condition, VALUES) is answer


@pytest.mark.parametrize("text", ["false", "False", "no", "NO", "0", "", " \n", "null", "[]", "{ }", "false\n"])
def test_text_that_says_no_does_not_hold(text: str) -> None:
    assert not holds("${it}", {"it": text})


@pytest.mark.parametrize("value", [False, None, 0, 0.0, [], {}])
def test_values_that_are_nothing_do_not_hold(value: object) -> None:
    assert not holds("${it}", {"it": value})


@pytest.mark.parametrize("value", ["yes", "true", "[0]", "nothing", 1, [0], {"a": None}, "0 faults"])
def test_all_else_holds(value: object) -> None:
    assert holds("${it}", {"it": value})


def test_a_models_answer_is_compared_without_the_space_around_it() -> None:
    assert holds("${it} == approve", {"it": "approve\n"})
    assert holds("${it} == 3", {"it": " 3\n"})
    assert not holds("${it} == approve", {"it": "I approve"})


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "$",
        "${",
        "${a",
        "true",
        "a == b",
        "${a} ==",
        "${a} = b",
        "${a} == b c",
        "${a} == b && ${c}",
        "${a} > 3",
        "not ${a}",
        "${a} == 'it's'",
        '${a} == "open',
        "${a} == ${b}",
        "${a} == True",
        "${a} == -Infinity",
        "${a} == " + "[" * 300 + "]" * 300,
        "${a} == " + "1" * 2000,
    ],
)
def test_what_is_no_condition_is_refused(condition: str) -> None:
    for reading in (lambda: holds(condition, {"a": 1}), lambda: check_condition(condition)):
        with pytest.raises(InvalidArgument) as refused:
            reading()
        assert len(refused.value.message) < 400


def test_pythons_words_are_pointed_out_in_a_condition() -> None:
    with pytest.raises(InvalidArgument, match="write true"):
        check_condition("${a} == True")


def test_substitution_keeps_types_where_a_reference_stands_alone() -> None:
    given = {"whole": "${reader.items}", "number": "${reader.score}", "text": "${input}", "list": ["${reader.ok}", 3]}
    assert substitute(given, VALUES) == {
        "whole": [{"title": "One"}, {"title": "Two"}],
        "number": 7,
        "text": "do it",
        "list": [True, 3],
    }


def test_substitution_puts_text_into_text() -> None:
    text = "Task: ${input}; first ${reader.items.0.title}, score ${reader.score}, ${reader.n}, ${reader.items.0}"
    assert substitute(text, VALUES) == 'Task: do it; first One, score 7, null, {"title": "One"}'


def test_what_is_put_in_is_not_read_again() -> None:
    assert substitute("a ${it} b", {"it": "${input}", "input": "secret"}) == "a ${input} b"
    assert substitute("${it}", {"it": "${input}", "input": "secret"}) == "${input}"


@pytest.mark.parametrize("text", ["$", "${", "costs $5", "${a b}", "${}", "$${", "f(${x()})", "${reader"])
def test_what_only_looks_like_a_reference_stays(text: str) -> None:
    assert substitute(text, {}) == text


def test_substitution_of_what_is_missing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match='"reader" has no "nothing"'):
        substitute({"a": ["text ${reader.nothing}"]}, VALUES)


def test_substitution_leaves_keys_and_other_values_alone() -> None:
    assert substitute({"${input}": [None, 1.5, True]}, VALUES) == {"${input}": [None, 1.5, True]}


def test_substitution_has_a_limit() -> None:
    values = {"big": "x" * 1_000_000}
    assert len(substitute(["${big}"] * 4, values)) == 4
    with pytest.raises(LimitExceeded, match="4 MiB"):
        substitute(["${big}"] * 5, values)
    with pytest.raises(LimitExceeded, match="4 MiB"):
        substitute("${big}" * 5, values)


def test_hostile_responses_are_just_text() -> None:
    for hostile in ("[" * 100_000, '{"a": ' * 100_000, "9" * 100_000, '{"a": NaN}'):
        with pytest.raises(InvalidArgument, match="neither an object nor a list"):
            resolve("${it.a}", {"it": hostile})
        assert not holds("${it.a}", {"it": hostile})


def test_text_larger_than_a_response_may_be_is_not_parsed() -> None:
    with pytest.raises(LimitExceeded):
        resolve("${it.0}", {"it": "[" + "1," * 3_000_000 + "1]"})


def test_half_a_surrogate_pair_is_not_put_in() -> None:
    with pytest.raises(InvalidArgument, match="surrogate"):
        substitute("${it.a}", {"it": '{"a": "\\ud800"}'})


def test_check_names_what_is_referred_to() -> None:
    assert check("${b.x} and ${a} and ${b} and ${no ref}") == ("b", "a")
    assert check("plain $ text") == ()
    assert check_condition("${a.b} == 3") == ("a",)
    with pytest.raises(InvalidArgument):
        check("${a..b}")


@given(NAMES, st.lists(NAMES, max_size=3), JSON)
def test_what_a_path_is_built_to_reach_is_reached(name: str, keys: list[str], value: Any) -> None:
    response = value
    for key in reversed(keys):
        response = {key: response}
    reference = "${" + ".".join([name, *keys]) + "}"
    assert check(reference) == (name,)
    assert resolve(reference, {name: response}) == value
    if keys:
        assert resolve(reference, {name: json.dumps(response)}) == value
    assert substitute([reference], {name: response}) == [value]


@given(JSON)
def test_a_value_equals_itself_as_a_literal(value: Any) -> None:
    literal = json.dumps(value)
    if len(literal) < 900:
        values = {"it": {"inner": value}}
        assert holds("${it.inner} == " + literal, values)
        assert not holds("${it.inner} != " + literal, values)


@given(st.text(alphabet="${}[].ab01 =!'\"", max_size=40))
def test_any_text_is_a_condition_or_is_refused(text: str) -> None:
    try:
        names = check_condition(text)
    except InvalidArgument:
        return
    assert isinstance(holds(text, dict.fromkeys(names, '{"a": [0, "b"]}')), bool)


@given(st.text(alphabet="${}[].ab01 ", max_size=40))
def test_substitution_of_text_without_references_changes_nothing(text: str) -> None:
    try:
        names = check(text)
    except InvalidArgument:
        names = ()
    if names:
        with pytest.raises(InvalidArgument):
            substitute(text, {})
    else:
        assert substitute(text, {}) == text
