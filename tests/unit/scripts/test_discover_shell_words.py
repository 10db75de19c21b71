# SPDX-License-Identifier: LGPL-2.1-or-later
"""How the arguments of shell tools become words of a command line."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument
from mcpd.servers.scripts.discover import shell

if TYPE_CHECKING:
    from mcpd.servers.scripts.tool import Tool


def tools(source: str) -> dict[str, Tool]:
    return {tool.name: tool for tool in shell.tools(textwrap.dedent(source), "foo")}


def test_words_of_a_command_line_are_split_as_a_shell_does() -> None:
    tool = tools("")["foo"]
    words = ["-l", "a b", "c", "d e", "$HOME", "`x`", "*"]
    assert shell.words(tool, {"args": "-l 'a b' \"c\" d\\ e $HOME `x` *"}) == words
    assert shell.words(tool, {"command_args": "x"}) == ["x"]
    assert shell.words(tool, {"args": ""}) == shell.words(tool, {}) == []


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
        ({"args": None}, "args: has to be text"),
    ],
)
def test_command_lines_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        shell.words(tools("")["foo"], arguments)


STRUCTURED = """
    # @describe X
    # @option --long
    # @option -s
    # @option --pair <A> <B>
    # @flag -q*
    # @arg first <NUM>
    # @arg rest*
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"long": "a b"}, ["--long", "a b"]),
        ({"long": "-x"}, ["--long=-x"]),
        ({"long": "--long"}, ["--long=--long"]),
        ({"long": ""}, ["--long", ""]),
        ({"long": True, "s": 3}, ["--long", "true", "-s", "3"]),
        ({"long": 2.0, "s": 0.5}, ["--long", "2", "-s", "0.5"]),
        ({"long": -3}, ["--long=-3"]),
        ({"pair": ["a", "b"]}, ["--pair", "a", "b"]),
        ({"q": 3}, ["-q", "-q", "-q"]),
        ({"q": 0}, []),
        ({"first": 1, "rest": ["b", "c"]}, ["1", "b", "c"]),
        ({"first": -1.5}, ["-1.5"]),
        ({"rest": []}, []),
        ({"unknown": "--x"}, []),
    ],
)
def test_arguments_become_words(arguments: dict[str, Any], words: list[str]) -> None:
    assert shell.words(tools(STRUCTURED)["foo"], arguments) == words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"s": "-x"}, "s: '-x' begins with '-'"),
        ({"s": -1}, "s: '-1' begins with '-'"),
        ({"pair": ["a", "--b"]}, "pair: '--b' begins with '-'"),
        ({"first": "-x"}, "first: '-x' begins with '-'"),
        ({"first": 1, "rest": ["x", "--"]}, "rest: '--' begins with '-'"),
        ({"rest": ["x"]}, "rest: give first, too"),
        ({"q": 10**9}, "q: .*at most 16"),
        ({"q": "x"}, "q: .*at most 16"),
        ({"long": "a\0b"}, "long: .*NUL"),
        ({"first": "\udcff"}, "first: .*half a character"),
        ({"long": float("inf")}, "long: has to be"),
        ({"long": 16**5000}, "long: has to be"),
        ({"long": "-" + "x" * 131_069}, "long: longer than"),
    ],
)
def test_words_that_would_be_something_else_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        shell.words(tools(STRUCTURED)["foo"], arguments)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('eval "$(argc --argc-eval "$0" "$@")"', [["--", "1", "x"], ["--", "1", "-x"]]),
        ("while getopts s:q o; do :; done", [["1", "x"], ["--", "1", "-x"]]),
        ('o=$(getopt -o s:q -- "$@")', [["1", "x"], ["--", "1", "-x"]]),
        ("case $1 in\n  --) shift ;; esac", [["1", "x"], ["--", "1", "-x"]]),
        ("echo $# # arguments\nwhile getopts s:q o; do :; done", [["1", "x"], ["--", "1", "-x"]]),
        ("cat <<EOF\nText\nEOF\nif ! o=$(/bin/getopt s:q -- $*); then exit; fi", [["1", "x"], ["--", "1", "-x"]]),
        ("o=`LC_ALL=C getopt s:q -- $*`", [["1", "x"], ["--", "1", "-x"]]),
    ],
)
def test_scripts_that_know_the_end_of_options_are_told(more: str, words: list[list[str]]) -> None:
    tool = tools(f"# @describe X\n# @option -s\n# @flag -q\n# @arg first\n# @arg rest*\n{more}\n")["foo"]
    assert [shell.words(tool, {"first": 1, "rest": [rest]}) for rest in ("x", "-x")] == words


@pytest.mark.parametrize(
    "more",
    [
        "# no getopts needed here",
        "run # getopts a: o",
        "run;# getopts a: o",
        "#--)",
        '# eval "$(argc --argc-eval "$0" "$@")"',
        "echo 'getopts is not used'",
        'echo "(getopts is not used)"',
        "echo no getopts here",
        "cat <<EOF\ngetopts a: o\n  --) x\nEOF",
        "cat <<-'EOF'\n\tgetopts a: o\n\tEOF",
        "my-getopts a",
    ],
)
def test_what_a_script_only_says_of_the_end_of_options_is_not_known(more: str) -> None:
    tool = tools(f"# @describe X\n# @arg first\n{more}\n")["foo"]
    assert shell.words(tool, {"first": "x"}) == ["x"]
    with pytest.raises(InvalidArgument, match="'-rf' begins with '-'"):
        shell.words(tool, {"first": "-rf"})


def test_digits_and_plus_can_be_options_too() -> None:
    tool = tools("# @describe X\n# @flag -5\n# @arg n <INT>\n")["foo"]
    with pytest.raises(InvalidArgument, match="n: '-5' begins"):
        shell.words(tool, {"n": -5})
    tool = tools("# @describe X\n# @flag +x\n# @option --o\n# @arg n\n")["foo"]
    with pytest.raises(InvalidArgument, match=r"n: '\+x' begins"):
        shell.words(tool, {"n": "+x"})
    assert shell.words(tool, {"o": "+x"}) == ["--o=+x"]
    tool = tools("# @describe X\n# @meta symbol @file\n# @arg n\n")["foo"]
    with pytest.raises(InvalidArgument, match="n: '@f' begins"):
        shell.words(tool, {"n": "@f"})


@given(
    st.dictionaries(
        st.sampled_from(["long", "s", "pair", "q", "first", "rest", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=3),
        ),
    )
)
@example({"rest": [["x"]], "first": {"a": 1}})
def test_any_arguments_are_words_or_refused(arguments: dict[str, Any]) -> None:
    try:
        words = shell.words(tools(STRUCTURED)["foo"], arguments)
    except InvalidArgument:
        return
    assert all(isinstance(word, str) and "\0" not in word for word in words)
