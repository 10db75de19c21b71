# SPDX-License-Identifier: LGPL-2.1-or-later
"""No value of an argument becomes an option: real shells parse the words and print what they understood."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidArgument
from mcpd.servers.scripts.discover import shell

pytestmark = pytest.mark.process

LOOP = r"""
# @describe A parser written by hand
# @option --name
# @option --tag*
# @flag --force
# @arg first
# @arg rest*
while [ $# -gt 0 ]; do
  case $1 in
    --name|--tag) printf '%s\0%s\0' "$1" "$2"; shift 2 ;;
    --name=*|--tag=*) printf '%s\0%s\0' "${1%%=*}" "${1#*=}"; shift ;;
    --force) printf -- '--force\0'; shift ;;
    --) shift; break ;;
    -*) exit 9 ;;
    *) break ;;
  esac
done
printf '|\0'
[ $# -eq 0 ] || printf '%s\0' "$@"
"""

GETOPTS = r"""
# @describe A parser of POSIX
# @option -n
# @option -t*
# @flag -f
# @arg first
# @arg rest*
while getopts n:t:f option; do
  case $option in
    n|t) printf '%s\0%s\0' "-$option" "$OPTARG" ;;
    f) printf -- '-f\0' ;;
    *) exit 9 ;;
  esac
done
shift $((OPTIND - 1))
printf '|\0'
[ $# -eq 0 ] || printf '%s\0' "$@"
"""

# Looks at every word by itself, wherever it is, so what begins like an option is one.
EVERYWHERE = r"""
# @describe A parser that knows no end of options
# @flag --force
# @arg first
# @arg rest*
rest=
for word; do
  case $word in
    --force) printf -- '--force\0' ;;
    -*) exit 9 ;;
  esac
done
printf '|\0'
for word; do
  case $word in
    --force) ;;
    *) printf '%s\0' "$word" ;;
  esac
done
"""

VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "-",
        "--",
        "--force",
        "-f",
        "-n",
        "--name",
        "--name=x",
        "-nx",
        "=",
        "--=",
        "-ff",
        "+f",
        "|",
        "a b",
        "",
        "'",
        "$(id)",
        "\n",
    ]
)
LISTS = st.lists(VALUES, max_size=3)


def understood(script: str, arguments: dict[str, Any]) -> tuple[list[str], list[str]] | None:
    """The option words and the others that *script* found in *arguments*; None if they were refused before."""
    (tool,) = shell.tools(script, "script")
    Draft202012Validator(tool.input_schema).validate(arguments)
    try:
        words = shell.words(tool, arguments)
    except InvalidArgument:
        return None
    done = subprocess.run(["sh", "-c", script, "script", *words], capture_output=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    found = done.stdout.decode().split("\0")[:-1]
    bar = 0
    while found[bar] != "|":
        bar += 2 if found[bar] in OPTIONS else 1
    return found[:bar], found[bar + 1 :]


OPTIONS = {"--name", "--tag", "-n", "-t"}


def expected(arguments: dict[str, Any], flags: dict[str, str]) -> tuple[list[str], list[str]]:
    options: list[str] = []
    for name, flag in flags.items():
        value = arguments.get(name)
        if value is True:
            options.append(flag)
        elif value is not None and value is not False:
            options += [word for item in (value if isinstance(value, list) else [value]) for word in (flag, item)]
    first = [arguments["first"]] if "first" in arguments else []
    return options, [*first, *arguments.get("rest", [])]


def dictionaries(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"first": VALUES}, optional=values)


@given(dictionaries(name=VALUES, tag=LISTS, force=st.booleans(), rest=LISTS))
@example({"first": "--force", "rest": ["--name"], "name": "--force", "tag": ["--", "--force"]})
def test_a_loop_finds_what_was_given_and_nothing_else(arguments: dict[str, Any]) -> None:
    assert understood(LOOP, arguments) == expected(arguments, {"name": "--name", "tag": "--tag", "force": "--force"})


@given(dictionaries(n=VALUES, t=LISTS, f=st.booleans(), rest=LISTS))
@example({"first": "-f", "rest": ["-n"], "n": "x"})
def test_getopts_finds_what_was_given_and_nothing_else(arguments: dict[str, Any]) -> None:
    flags = {"n": "-n", "t": "-t", "f": "-f"}
    refused = any(item.startswith("-") for item in [arguments.get("n", ""), *arguments.get("t", [])])
    assert understood(GETOPTS, arguments) == (None if refused else expected(arguments, flags))


@given(dictionaries(force=st.booleans(), rest=LISTS))
@example({"first": "--force"})
@example({"first": "--", "rest": ["--force"]})
def test_a_script_that_knows_no_end_of_options_gets_no_such_word(arguments: dict[str, Any]) -> None:
    refused = any(item.startswith("-") for item in [arguments["first"], *arguments.get("rest", [])])
    assert understood(EVERYWHERE, arguments) == (None if refused else expected(arguments, {"force": "--force"}))


@pytest.mark.parametrize("number", [-5, -0.25, -1e30])
def test_negative_numbers_reach_scripts_without_options(number: float) -> None:
    script = "# @describe Prints\n# @arg first <NUM>\nprintf '|\\0%s\\0' \"$1\"\n"
    found = understood(script, {"first": number})
    assert found is not None
    assert float(found[1][0]) == number
