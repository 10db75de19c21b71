# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tools of shell scripts: the one that takes a command line, and those that a comment header describes."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidArgument, InvalidManifest
from mcpd.servers.scripts.discover import shell
from mcpd.servers.scripts.tool import Tool

PLAIN = {"type": "object", "properties": {"args": {"type": "string", "description": "Command arguments"}}}


def tools(source: str, name: str = "foo") -> dict[str, Tool]:
    found = shell.tools(textwrap.dedent(source), name)
    for tool in found:
        Draft202012Validator.check_schema(tool.input_schema)
    assert len({tool.name for tool in found}) == len(found)
    return {tool.name: tool for tool in found}


def parameter(tag: str) -> dict[str, Any]:
    """What one tag of a script makes of its property."""
    found = tools(f"# @describe Does it\n# {tag}\nmain() {{ :; }}\n")["foo"]
    (schema,) = found.input_schema["properties"].values()
    return {**schema, **({"!": True} if found.input_schema.get("required") else {})}


def test_T11_2_a_shell_script_is_one_tool() -> None:
    assert shell.tools('#!/bin/sh\necho "$@"\n', "foo") == [Tool("foo", "Execute foo command", PLAIN, function="")]
    assert shell.tools("", "bar") == [Tool("bar", "Execute bar command", PLAIN, function="")]


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
def test_T11_5_the_first_comment_describes_an_undocumented_script(source: str, description: str) -> None:
    assert tools(source)["foo"].description == description
    assert tools(source)["foo"].input_schema == PLAIN


def test_T11_3_every_command_is_a_tool() -> None:
    found = tools("""
        #!/usr/bin/env bash
        # @describe Backups
        # @meta version 1.5
        # @flag --verbose  Not of the commands

        # @cmd Makes a backup
        # of everything.
        # @arg   target! <DIR>     Where to
        # @option -n --name <NAME> What to call it,
        #   in the end
        # @option --level=3 <INT>
        # @option --exclude*
        # @option --mode[=full|partial]
        # @flag -f --dry-run       Only look
        backup() { :; }

        helper() { :; }

        # @cmd
        function restore-all { :; }

        # @cmd Hidden
        _private() { :; }

        # @cmd Nested
        remote::add () { :; }

        # @cmd like a builtin
        test_() { :; }

        # @cmd without a function
        echo "@cmd nothing"
    """)
    assert {name: tool.function for name, tool in found.items()} == {
        "backup": "backup",
        "restore-all": "restore-all",
        "remote_add": "remote::add",
        "test": "test_",
    }
    backup = found["backup"]
    assert backup.description == "Makes a backup\nof everything."
    assert backup.input_schema == {
        "type": "object",
        "properties": {
            "target": {"type": "string", "description": "Where to"},
            "name": {"type": "string", "description": "What to call it, in the end"},
            "level": {"type": "integer", "default": 3},
            "exclude": {"type": "array", "items": {"type": "string"}},
            "mode": {"type": "string", "enum": ["full", "partial"], "default": "full"},
            "dry_run": {"type": "boolean", "description": "Only look"},
        },
        "required": ["target"],
        "additionalProperties": False,
    }
    assert shell.words(backup, {"target": "/x", "dry_run": True, "exclude": ["a", "b c"], "name": "n", "level": 5}) == [
        "backup",
        "--name",
        "n",
        "--level",
        "5",
        "--exclude",
        "a",
        "--exclude",
        "b c",
        "--dry-run",
        "/x",
    ]
    assert shell.words(backup, {"target": "/x", "dry_run": False}) == ["backup", "/x"]
    assert shell.words(found["restore-all"], {}) == ["restore-all"]
    assert shell.words(found["remote_add"], {}) == ["remote", "add"]
    assert shell.words(found["test"], {}) == ["test"]
    with pytest.raises(InvalidArgument, match="takes no arguments"):
        shell.words(found["restore-all"], {"args": "--force"})


def test_options_of_the_script_are_inherited_where_it_says_so() -> None:
    source = "# @option --level <INT>\n# @flag --quiet\n# @arg x\n{}\n# @cmd A\n# @flag --quiet Mine\na() {{ :; }}\n"
    assert list(tools(source.format(""))["a"].input_schema["properties"]) == ["quiet"]
    inherited = tools(source.format("# @meta inherit-flag-options"))["a"].input_schema["properties"]
    assert inherited == {"quiet": {"type": "boolean", "description": "Mine"}, "level": {"type": "integer"}}


def test_a_script_without_commands_is_one_structured_tool() -> None:
    found = tools("# @describe Greets\n# @option --greeting=Hello\n# @arg names+\necho\n")["foo"]
    assert (found.description, found.function) == ("Greets", "")
    assert found.input_schema["required"] == ["names"]
    assert shell.words(found, {"names": ["a", "b"], "greeting": "Hi"}) == ["--greeting", "Hi", "a", "b"]
    assert tools("# @describe Only this\necho")["foo"] == Tool("foo", "Only this", PLAIN, function="")


@pytest.mark.parametrize(
    ("tag", "schema"),
    [
        ("@arg va", {"type": "string"}),
        ("@arg vb! Needed", {"type": "string", "description": "Needed", "!": True}),
        ("@arg vc*", {"type": "array", "items": {"type": "string"}}),
        ("@arg vd+", {"type": "array", "items": {"type": "string"}, "minItems": 1, "!": True}),
        ("@arg vx~", {"type": "array", "items": {"type": "string"}}),
        ("@arg vna <PATH>", {"type": "string"}),
        ("@arg vni! <INT>", {"type": "integer", "!": True}),
        ("@arg vnn <NUM> A number", {"type": "number", "description": "A number"}),
        ("@arg vda=a", {"type": "string", "default": "a"}),
        ("@arg vda='a b' Text", {"type": "string", "default": "a b", "description": "Text"}),
        ("@arg vdb=`_fn`", {"type": "string"}),
        ("@arg vdi=7 <INT>", {"type": "integer", "default": 7}),
        ("@arg vdi=x <INT>", {"type": "integer", "default": "x"}),
        ("@arg vca[a|b]", {"type": "string", "enum": ["a", "b"]}),
        ("@arg vcb[=a|b] Either", {"type": "string", "enum": ["a", "b"], "default": "a", "description": "Either"}),
        ('@arg vcc*[a|"b c|d"]', {"type": "array", "items": {"type": "string", "enum": ["a", "b c|d"]}}),
        ("@arg vci[1|2] <INT>", {"type": "integer", "enum": [1, 2]}),
        ("@arg vci[1|x] <INT>", {"type": "string", "enum": ["1", "x"]}),
        ("@arg vci[=01|02] <INT>", {"type": "string", "enum": ["01", "02"], "default": "01"}),
        ("@arg vcn[1|2.5] <NUM>", {"type": "number", "enum": [1, 2.5]}),
        ("@arg vcn[1.0|2.50] <NUM>", {"type": "string", "enum": ["1.0", "2.50"]}),
        ("@arg vfa[`_fn`]", {"type": "string"}),
        ("@arg vfb[?`_fn`]", {"type": "string"}),
        ("@arg vfd*,[`_fn`]", {"type": "array", "items": {"type": "string"}}),
        ("@arg vea $$", {"type": "string"}),
        ("@arg veb! $BE <INT> Bound", {"type": "integer", "description": "Bound", "!": True}),
        ("@option --oa", {"type": "string"}),
        ("@option -b --ob short", {"type": "string", "description": "short"}),
        ("@option -c", {"type": "string"}),
        ("@option --oc!", {"type": "string", "!": True}),
        ("@option --of*,", {"type": "array", "items": {"type": "string"}}),
        ("@option --onb <FILE> <FILE>", {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}),
        ("@option --onc <CMD> <FILE+>", {"type": "array", "items": {"type": "string"}, "minItems": 2}),
        ("@option --one <A> <B?>", {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}),
        ("@option --ocb[=a|b]", {"type": "string", "enum": ["a", "b"], "default": "a"}),
        ("@option --od=1.5 <NUM>", {"type": "number", "default": 1.5}),
        ("@option --od*=a", {"type": "array", "items": {"type": "string"}, "default": ["a"]}),
        ("@flag -f --fa Does", {"type": "boolean", "description": "Does"}),
        ("@flag --fd*", {"type": "integer", "minimum": 0, "maximum": 16}),
    ],
)
def test_T11_6_tags_become_properties(tag: str, schema: dict[str, Any]) -> None:
    assert parameter(tag) == schema


@pytest.mark.parametrize("tag", ["@option --rest~", "@option -D%"])
def test_an_option_that_swallows_other_words_is_not_offered(tag: str) -> None:
    schema = tools(f"# @describe X\n# {tag}\n# @flag --y\n")["foo"].input_schema
    assert schema["properties"] == {"y": {"type": "boolean"}}


@pytest.mark.parametrize(
    "line",
    [
        "@arg",
        "@option name",
        "@flag",
        "@arg $1 string",
        "@arg x[a|b",
        "@arg x(y)",
        "@option --",
        "@option -h | --help Text",
        "@arg x[`f`",
    ],
)
def test_malformed_tags_are_reported_where_tags_are_meant_and_else_ignored(line: str) -> None:
    with pytest.raises(InvalidManifest, match=r"^foo:2: @(arg|option|flag) "):
        shell.tools(f"# @describe X\n# {line}\n", "foo")
    assert tools(f"# Text\n# {line}\n")["foo"].input_schema == PLAIN


def test_comments_of_shdoc_are_no_header() -> None:
    found = tools("# @description Does\n# @option --force\n# @exitcode 0\nf() { :; }\n")
    assert found["foo"].input_schema == PLAIN


def test_what_is_no_text_is_reported_with_its_line() -> None:
    with pytest.raises(InvalidManifest, match=r"^foo:2: .*NUL"):
        shell.tools("#!/bin/sh\n\0", "foo")
    with pytest.raises(InvalidManifest, match=r"^foo:1: longer"):
        shell.tools("x" * 3_000_000, "foo")


def test_of_too_many_commands_the_first_thousand_are_tools() -> None:
    source = "# @describe X\n" + "".join(f"# @cmd\nc{n}() {{ :; }}\n" for n in range(1500))
    assert list(tools(source)) == [f"c{n}" for n in range(1000)]


def test_inherited_options_do_not_multiply_without_limit() -> None:
    options = "".join(f"# @option --option{n} <INT> About option {n}\n" for n in range(200))
    commands = "".join(f"# @cmd\n# @arg own!\nc{n}() {{ :; }}\n" for n in range(20_000))
    found = shell.tools(f"# @describe X\n# @meta inherit-flag-options\n{options}{commands}", "x")
    assert len(found) == 1000
    assert len(found[0].input_schema["properties"]) == 201
    assert sum(len(json.dumps(tool.input_schema)) for tool in found) < 5_000_000
    for tool in found:
        names = list(tool.input_schema["properties"])
        assert names == [option.name for option in tool.options]
        assert {*tool.input_schema.get("required", [])} <= {*names}


def test_parameters_that_make_a_tool_too_large_are_left_out_from_the_first_on() -> None:
    source = "# @describe X\n# @arg first!\n" + "".join(f"# @arg rest{n}!\n" for n in range(50_000))
    schema = tools(source)["foo"].input_schema
    names = list(schema["properties"])
    assert 1000 < len(names) < 10_000
    assert names == ["first", *(f"rest{n}" for n in range(len(names) - 1))]
    assert schema["required"] == names


def test_of_two_inherited_options_with_one_name_the_first_counts() -> None:
    source = "# @describe X\n# @meta inherit-flag-options\n# @option --x One\n# @option --x* Two\n# @cmd\nc() { :; }\n"
    found = tools(source)["c"]
    assert found.input_schema["properties"] == {"x": {"type": "string", "description": "One"}}
    assert not found.options[0].repeats


def test_of_two_parameters_with_one_name_the_first_counts() -> None:
    found = tools("# @describe X\n# @arg x One\n# @arg x* Two\n")["foo"]
    assert found.input_schema["properties"] == {"x": {"type": "string", "description": "One"}}
    assert len(found.options) == 1


_LINES = st.sampled_from(
    [
        "# @describe X",
        "# @cmd Y",
        "f() {",
        "# @arg a",
        "# @option -b --bb*[x|y] <INT>",
        "# @flag --cc",
        "# more",
        "#",
        "",
        "# @meta symbol +x",
        "# @option +d",
        "# @arg e=`f`",
        "function g",
        "# @description",
        "}",
        "# @option --h[=",
        "# @arg j[a|",
    ]
)


_TAGS = st.text(max_size=20).map(lambda text: f"# @option --x{text}")


@given(st.text() | st.lists(_LINES | _TAGS, max_size=30).map("\n".join))
def test_any_text_is_tools_or_refused(source: str) -> None:
    try:
        found = shell.tools(source, "x")
    except InvalidManifest as error:
        message = str(error)
    else:
        for tool in found:
            Draft202012Validator.check_schema(tool.input_schema)
            assert {option.name for option in tool.options} <= {*tool.input_schema["properties"]}
        return
    assert message.startswith("x:")
