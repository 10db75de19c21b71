# SPDX-License-Identifier: LGPL-2.1-or-later
"""config and secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidConfig

if TYPE_CHECKING:
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

PROPERTIES = [
    {"key": "digits", "type": "integer"},
    {"key": "scale", "type": "number"},
    {"key": "exact", "type": "boolean"},
    {"key": "roots", "type": "list"},
    {"key": "pin", "type": "string"},
    {"key": "home", "type": "path"},
    {"key": "any"},
]


@pytest.fixture
def known(mcpd: FakeMcpd) -> FakeMcpd:
    """mcpd with a server that has properties of every type."""
    mcpd.servers["calculator"]["configurable-properties"] = PROPERTIES
    return mcpd


async def test_config_get_prints_values_defaults_and_set_secrets(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    properties = [
        {"key": "digits", "type": "integer", "default": 2},
        {"key": "roots", "type": "list", "required": True},
        {"key": "api_key", "sensitive": True},
        {"key": "other_key", "sensitive": True, "type": "string"},
        {"key": "exact", "type": "boolean", "default": False},
    ]
    mcpd.servers["calculator"]["configurable-properties"] = properties
    mcpd.config["calculator"] = ({"digits": 3, "name": "x", "roots": ["/a"], "exact": False}, ["api_key"])
    whole = await mcpctl("config", "get", "calculator")
    assert [line.split("  ") for line in whole.out.splitlines()] == [
        line.split("  ")
        for line in (
            "KEY        TYPE               DEFAULT  VALUE",
            "digits     integer            2        3",
            'roots      list, required              ["/a"]',
            "api_key    sensitive                   (set, not shown)",
            "other_key  string, sensitive",
            "exact      boolean            false    false",
            "name                                   x",
        )
    ]
    as_json = await mcpctl("config", "get", "calculator", "--json")
    assert json.loads(as_json.out) == {
        "values": {"digits": 3, "name": "x", "roots": ["/a"], "exact": False}, "secrets-set": ["api_key"],
        "properties": properties,
    }  # fmt: skip
    assert (await mcpctl("config", "get", "calculator", "name")).out == "x\n"
    assert json.loads((await mcpctl("config", "get", "calculator", "name", "--json")).out) == "x"
    unset = await mcpctl("config", "get", "calculator", "other_key")
    assert (unset.code, unset.err.endswith("lists its properties\n")) == (4, True)
    unknown = await mcpctl("config", "get", "calculator", "digit")
    assert (unknown.code, "has no property 'digit'" in unknown.err, "mean 'digits'?" in unknown.err) == (1, True, True)
    mcpd.errors["SetConfig"] = InvalidConfig("calculator has no property 'digit'")
    assert (await mcpctl("config", "set", "calculator", "digit=3")).code == unknown.code
    secret = await mcpctl("config", "get", "calculator", "api_key")
    assert (secret.code, "sensitive" in secret.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["roots=~/src"], ["~/src"]),
        (["roots=/a,~/b c, d"], ["/a", "~/b c", "d"]),
        (["roots=/a", "roots=/b,/c"], ["/a", "/b", "/c"]),
        (['roots=["/a,b"]', "roots=/c"], ["/a,b", "/c"]),
        (["roots=[]"], []),
    ],
)
async def test_a_list_is_set_item_by_item(mcpctl: Mcpctl, known: FakeMcpd, words: list[str], value: list[str]) -> None:
    assert (await mcpctl("config", "set", "calculator", *words)).code == 0
    assert known.calls[-1] == ("SetConfig", "calculator", {"roots": value}, {})


async def test_a_directory_that_does_not_exist_is_set_with_a_warning(mcpctl: Mcpctl, known: FakeMcpd) -> None:
    known.servers["calculator"]["permissions"] = [
        "filesystem:rw:{config.roots}", "filesystem:ro:{config.home}", "filesystem:create:{config.made}", "network"
    ]  # fmt: skip
    home = Path(mcpctl.environ["HOME"])
    (home / "there").mkdir(parents=True)
    words = ["roots=~/there,~/gone,/nowhere", "home=~/away", "made=~/made", "pin=~/pin"]
    done = await mcpctl("config", "set", "calculator", *words)
    assert done.code == 0
    assert known.calls[-1][:2] == ("SetConfig", "calculator")
    assert done.err.splitlines() == [
        f"warning: {key}: {path} does not exist; create it before calculator starts"
        for key, path in (("roots", home / "gone"), ("roots", "/nowhere"), ("home", home / "away"))
    ]
    assert (await mcpctl("config", "set", "calculator", "roots=~/there")).err == ""


async def test_a_path_relative_to_the_current_directory_becomes_absolute(mcpctl: Mcpctl, known: FakeMcpd) -> None:
    assert (await mcpctl("config", "set", "calculator", "roots=.,./x,.hidden", "home=../y", "pin=./z")).code == 0
    here = Path.cwd()
    expected = {"roots": [str(here), f"{here}/x", ".hidden"], "home": f"{here.parent}/y", "pin": "./z"}
    assert known.calls[-1] == ("SetConfig", "calculator", expected, {})


async def test_values_for_what_a_registry_offers_are_typed_as_it_says(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.pages = [[{"id": "calculator", "configurable-properties": PROPERTIES}]]
    words = ["--set", "roots=~/src", "--set", "pin=42", "--set", "new=42"]
    assert (await mcpctl("install", "calculator", *words)).code == 0
    (call,) = [call for call in mcpd.calls if call[0] == "Install"]
    assert call[2]["config"] == {"roots": ["~/src"], "pin": "42", "new": 42}


async def test_config_set_types_values_by_the_properties(mcpctl: Mcpctl, known: FakeMcpd) -> None:
    pairs = ["digits=3", "scale=1.5", "exact=true", 'roots=["/a", "/b c"]', "pin=0042", "home=~/x", "any=5", "new=a=b"]
    assert (await mcpctl("config", "set", "calculator", *pairs)).code == 0
    assert known.calls[-1] == (
        "SetConfig", "calculator",
        {"digits": 3, "scale": 1.5, "exact": True, "roots": ["/a", "/b c"], "pin": "0042", "home": "~/x", "any": "5",
         "new": "a=b"}, {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("digits=1.5", "digits is an integer, not '1.5'; for example: digits=3"),
        ("digits=true", "digits is an integer, not 'true'"),
        ("exact=maybe", "exact is a boolean, not 'maybe'; for example: exact=yes"),
        ("roots=[/a", "roots is a list, not '[/a'; for example: roots=a,b"),
        ("roots=", "roots is empty; for example: roots=a,b, or roots=[] for no item"),
        ("roots= , ", "roots is empty"),
        ("scale=", "scale is a number, not ''"),
        ("scale=NaN", "scale is a number, not 'NaN'"),
    ],
)
async def test_config_set_refuses_what_does_not_fit(mcpctl: Mcpctl, known: FakeMcpd, pair: str, text: str) -> None:
    ended = await mcpctl("config", "set", "calculator", pair)
    assert ended.code == 1
    assert text in ended.err
    assert [call[0] for call in known.calls] == ["GetServer"]


@pytest.mark.parametrize(
    ("word", "value"), [("yes", True), ("on", True), ("TRUE", True), ("no", False), ("Off", False), ("false", False)]
)
async def test_a_boolean_is_set_with_the_words_that_systemd_takes(
    mcpctl: Mcpctl, known: FakeMcpd, word: str, value: object
) -> None:
    assert (await mcpctl("config", "set", "calculator", f"exact={word}")).code == 0
    assert known.calls[-1] == ("SetConfig", "calculator", {"exact": value}, {})


async def test_the_daemon_has_the_last_word(mcpctl: Mcpctl, known: FakeMcpd) -> None:
    known.errors["SetConfig"] = InvalidConfig("calculator has no property 'new'; it has digits, scale")
    ended = await mcpctl("config", "set", "calculator", "new=1")
    assert (ended.code, ended.err) == (1, "mcpctl: calculator has no property 'new'; it has digits, scale\n")


async def test_config_unset_drops_all_properties_that_are_named(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert (await mcpctl("config", "unset", "calculator", "digits", "pin")).code == 0
    assert mcpd.calls[-1] == ("SetConfig", "calculator", {}, {"unset": ["digits", "pin"]})


@pytest.mark.parametrize(("command", "word"), [("set", "api_key=s3cret"), ("unset", "api_key")])
async def test_the_command_for_a_secret_is_named(mcpctl: Mcpctl, known: FakeMcpd, command: str, word: str) -> None:
    known.servers["calculator"]["configurable-properties"] = [*PROPERTIES, {"key": "api_key", "sensitive": True}]
    ended = await mcpctl("config", command, "calculator", word)
    assert ended.code == 1
    assert f"'mcpctl secret {command} calculator api_key'" in ended.err
    assert "s3cret" not in ended.err
    assert [call[0] for call in known.calls] == ["GetServer"]


async def test_a_secret_travels_in_a_descriptor_only(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("secret", "set", "calculator", "api_key", stdin="schlüssel\nzwei\n".encode())
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert mcpd.calls == [("SetSecret", "calculator", "api_key", 0, {})]
    assert mcpd.received == ["schlüssel\nzwei".encode()]


async def test_a_secret_on_the_command_line_is_refused(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("secret", "set", "calculator", "api_key=s3cret", stdin=b"other")
    assert (ended.code, "api_key is followed by a value" in ended.err, "s3cret" in ended.err) == (2, True, False)
    assert mcpd.calls == []


async def test_unset_is_an_empty_secret(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert (await mcpctl("secret", "unset", "calculator", "api_key")).code == 0
    assert mcpd.received == [b""]


@pytest.mark.parametrize(("secret", "code"), [(b"", 2), (b"\n", 2), (b"x" * 65537, 1)])
async def test_secrets_nobody_means(mcpctl: Mcpctl, mcpd: FakeMcpd, secret: bytes, code: int) -> None:
    ended = await mcpctl("secret", "set", "calculator", "api_key", stdin=secret)
    assert ended.code == code
    assert mcpd.calls == []
