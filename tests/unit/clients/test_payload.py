# SPDX-License-Identifier: LGPL-2.1-or-later
"""Payloads made from installed servers, and their canonical JSON."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.families import Families, packaged
from mcpd.clients.payload import ARTIFACT_ID, BRIDGE, canonical, generate, id_of, rebased, timestamp, uses_bridge
from mcpd.clients.profiles import Profiles
from mcpd.clients.validation import validate
from mcpd.errors import InvalidArgument
from mcpd.model.base import MAX_DEPTH
from tests.unit.clients.payload_parts import family, profile, server
from tests.unit.clients.signed_parts import EXAMPLE, EXAMPLE_ID

if TYPE_CHECKING:
    from mcpd.clients.families import Family
    from mcpd.clients.profiles import Profile
    from mcpd.store.index import InstalledServer


def entries(servers: list[InstalledServer], client: Family, wanted: Profile) -> dict[str, Any]:
    found = generate(servers, client, wanted).payload
    assert list(found) == ["mcpServers"]
    assert isinstance(found["mcpServers"], dict)
    return found["mcpServers"]


def test_a_server_is_run_by_mcpctl() -> None:
    made = generate([server("io.github.me.files")], family(), profile())
    assert made.payload == {
        "mcpServers": {"io.github.me.files": {"command": "mcpctl", "args": ["run", "io.github.me.files"]}}
    }
    assert made.warnings == []


def test_the_order_of_the_servers_changes_nothing() -> None:
    servers = [server("b"), server("a"), server("C")]
    one, other = generate(servers, family(), profile()), generate(reversed(servers), family(), profile())
    assert list(one.payload["mcpServers"]) == ["C", "a", "b"]  # type: ignore[arg-type]
    assert id_of(one.payload) == id_of(other.payload)


@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param(server("x", problem="its manifest is broken"), id="problem"),
        pytest.param(server("x", broken=True), id="no-manifest"),
        pytest.param(server("x", disabled="the map says so"), id="disabled"),
        pytest.param(server("x", layer="vendor"), id="vendor"),
        pytest.param(server("x", layer="vendor", script=True), id="vendor-script"),
    ],
)
def test_what_cannot_be_used_or_was_not_installed_is_left_out(left_out: InstalledServer) -> None:
    assert list(entries([server("kept"), left_out], family(), profile())) == ["kept"]


def test_the_profile_says_which_servers() -> None:
    servers = [
        server("mine"),
        server("ours", layer="system"),
        server("theirs", layer="vendor"),
        server("s", script=True),
    ]
    assert list(entries(servers, family(), profile())) == ["mine", "ours", "s"]
    assert list(entries(servers, family(), profile(scripts=False))) == ["mine", "ours"]
    assert list(entries(servers, family(), profile(layers=["vendor"]))) == ["theirs"]
    assert list(entries(servers, family(), profile(include=["m*", "s"], exclude=["*ine"]))) == ["s"]
    assert list(entries(servers, family(), profile(include=["M*"]))) == []


def test_whether_a_server_has_its_values_makes_no_difference() -> None:
    """The service that signs cannot look at them, and they may be set later."""
    assert list(entries([server(configured=False)], family(), profile())) == ["one"]


def test_no_value_of_a_configuration_gets_into_a_payload() -> None:
    known = server(
        config={"api_key": "hunter2"},
        env={"TOKEN": "hunter2"},
        configurableProperties=[{"key": "api_key", "sensitive": True, "default": "hunter2"}],
    )
    for client in Families([packaged("clients")]).all():
        assert "hunter2" not in repr(generate([known], client, profile()))


def test_variables_are_passed_on_as_placeholders() -> None:
    wanted = profile(variables={"o*": ["B", "A"], "*": ["A"], "p": ["NOT"]})
    client = family(expansion={"prefix": "${env:", "suffix": "}", "fields": ["env"]})
    found = entries([server("one")], client, wanted)
    assert found["one"]["env"] == {"A": "${env:A}", "B": "${env:B}"}
    assert list(found["one"]["env"]) == ["A", "B"]


def test_variables_are_left_out_where_the_client_fills_in_none() -> None:
    made = generate([server("b"), server("a")], family(expansion=None), profile(variables={"*": ["A"]}))
    assert made.payload == {
        "mcpServers": {
            "a": {"command": "mcpctl", "args": ["run", "a"]},
            "b": {"command": "mcpctl", "args": ["run", "b"]},
        }
    }
    assert made.warnings == ["Plain does not substitute variables, so A is not passed on: a, b"]


def test_variables_beyond_the_limit_are_left_out() -> None:
    made = generate(
        [server()], family(limitations={"max_env_vars_per_server": 1}), profile(variables={"*": ["A", "B"]})
    )
    assert made.payload["mcpServers"]["one"]["env"] == {"A": "${A}"}  # type: ignore[index, call-overload]
    assert made.warnings == ["Plain supports at most 1 variables, so B is omitted: one"]


def test_servers_beyond_the_limit_are_left_out_by_id() -> None:
    servers = [server(f"s{number:02}") for number in range(16)]
    made = generate(reversed(servers), family(limitations={"max_servers": 2}), profile())
    assert list(made.payload["mcpServers"]) == ["s00", "s01"]  # type: ignore[arg-type]
    assert made.warnings == [
        "Plain supports at most 2 servers; omitted: s02, s03, s04, s05, s06, s07, s08, s09, s10, s11 and 4 more"
    ]
    exactly = generate(servers[:2], family(limitations={"max_servers": 2}), profile())
    assert exactly.warnings == []


def test_no_client_is_given_a_url_or_a_port_unless_it_is_asked_for() -> None:
    profiles = Profiles([packaged("client-profiles")])
    for client in Families([packaged("clients")]).all():
        available = profiles.available(client)
        assert available[0] == "default"
        for profile_id in available:
            made = entries([server("one")], client, profiles.get(client, profile_id))
            if profile_id != "http":
                assert made == {"one": {"command": "mcpctl", "args": ["run", "one"]}}
            elif "url" in made["one"]:
                # The port 0, which nobody can have, until it is known whose bridge it is.
                assert made["one"]["url"] == f"{BRIDGE}/mcp/one" == "http://127.0.0.1:0/mcp/one"


def test_URLs_of_the_bridge_are_moved_and_no_others() -> None:
    run = {"command": "mcpctl", "args": ["run", "c"]}
    near = {"type": "http", "url": f"{BRIDGE}1/mcp/a"}
    kept: dict[str, Any] = {"run": run, "near": near, "plain": {"type": "http", "url": "https://x/mcp/a"}}
    assert not uses_bridge(kept)
    found = rebased({**kept, "a": {"type": "http", "url": f"{BRIDGE}/mcp/a"}}, BRIDGE, "https://[::1]:1")
    assert found == {**kept, "a": {"type": "http", "url": "https://[::1]:1/mcp/a"}}


def test_a_profile_over_HTTP_names_the_bridge_and_no_token() -> None:
    wanted = profile(transport="http", url="http://127.0.0.1:7412/", variables={"*": ["A"]})
    made = generate([server("a.b-c")], family(), wanted)
    assert made.payload == {
        "mcpServers": {
            "a.b-c": {
                "type": "http",
                "url": "http://127.0.0.1:7412/mcp/a.b-c",
                "headers": {"Authorization": "Bearer ${MCPD_BRIDGE_TOKEN}"},
            }
        }
    }
    assert made.warnings == ["the variable A cannot be passed on to servers at a URL: a.b-c"]


@pytest.mark.parametrize(
    ("client", "why"),
    [
        pytest.param(family(http=None), "Plain does not connect to URLs", id="no-urls"),
        pytest.param(
            family(expansion={"prefix": "$", "fields": ["env"]}),
            "Plain cannot substitute a token where it connects to a URL",
            id="no-placeholder",
        ),
    ],
)
def test_a_client_that_cannot_use_the_bridge_runs_the_server(client: Family, why: str) -> None:
    made = generate([server("a"), server("b")], client, profile(transport="http"))
    assert made.payload["mcpServers"]["a"] == {"command": "mcpctl", "args": ["run", "a"]}  # type: ignore[index, call-overload]
    assert made.warnings == [f"{why}; started with 'mcpctl run' instead: a, b"]


def _shipped() -> list[tuple[Family, Profile]]:
    profiles = Profiles([packaged("client-profiles")])
    return [
        (client, profiles.get(client, profile_id))
        for client in Families([packaged("clients")]).all()
        for profile_id in profiles.available(client)
    ]


@pytest.mark.parametrize(("client", "wanted"), _shipped(), ids=lambda each: each.id)
def test_every_client_and_profile_that_comes_with_mcpd_gets_a_valid_configuration(
    client: Family, wanted: Profile
) -> None:
    servers = [server("a"), server("b.c", layer="system"), server("v", layer="vendor"), server("s", script=True)]
    made = generate(servers, client, wanted)
    found = made.payload["mcpServers"]
    assert isinstance(found, dict)
    assert {"a", "b.c"} <= found.keys()
    assert validate(made.payload, client) == []


pytestmark = pytest.mark.process

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


def turned(value: Any) -> Any:
    """The same, with the members of every object in the other order."""
    if isinstance(value, dict):
        return {key: turned(item) for key, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_the_example_of_the_source_document_has_its_id() -> None:
    assert id_of(EXAMPLE) == EXAMPLE_ID
    assert ARTIFACT_ID.fullmatch(EXAMPLE_ID)


def test_canonical_json_is_sorted_and_escaped_and_has_no_spaces() -> None:
    assert canonical({"b": [1, 2.5, None, True], "a": {"é": "😀\n"}}) == (
        rb'{"a":{"\u00e9":"\ud83d\ude00\n"},"b":[1,2.5,null,true]}'
    )


@given(JSON)
def test_canonical_json_has_the_same_value(value: Any) -> None:
    data = canonical(value)
    assert data.isascii()
    assert json.loads(data) == value
    assert canonical(json.loads(data)) == data
    assert canonical(turned(value)) == data


@given(JSON, JSON)
def test_different_values_have_different_ids(one: Any, other: Any) -> None:
    assert (id_of(one) == id_of(other)) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="nan"),
        pytest.param({"a": [float("inf")]}, id="infinity"),
        pytest.param(["\ud800"], id="half-surrogate"),
        pytest.param({"\udfff": 1}, id="half-surrogate-key"),
        pytest.param({"a": "x\0y"}, id="nul"),
        pytest.param({"a\0": 1}, id="nul-key"),
        pytest.param({1: "a"}, id="number-key"),
        pytest.param({"a": {None: "a"}}, id="null-key"),
        pytest.param({"a": {True: "a"}}, id="boolean-key"),
        pytest.param({"a": {1, 2}}, id="set"),
        pytest.param({"a": (1, 2)}, id="tuple"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param(10**5000, id="thousands-of-digits"),
        pytest.param(nested(MAX_DEPTH + 1), id="deep"),
        pytest.param(nested(200_000), id="very-deep"),
    ],
)
def test_what_has_no_such_bytes_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="cannot be signed"):
        canonical(value)


def test_what_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append({"again": value})
    with pytest.raises(InvalidArgument, match="nested"):
        canonical(value)


def test_the_deepest_that_is_allowed() -> None:
    assert canonical(nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"]" * MAX_DEPTH


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_writes_the_same() -> None:
    value: dict[str, Any] = {
        "mcpServers": {"é": {"command": "a b", "args": ["\t", "\x7f", "\"'\\", "€", "😀", "/"], "env": {}}},
        "￿": 1,
        "😀": [True, None, -3, 0.5],
    }
    loose = json.dumps(value, indent=3, ensure_ascii=False)
    jq = subprocess.run(["jq", "-cSa", "."], input=loose.encode(), capture_output=True, check=True, timeout=120).stdout
    assert jq.rstrip(b"\n") == canonical(value)
    assert hashlib.sha256(jq.rstrip(b"\n")).hexdigest() == id_of(value)


@pytest.mark.parametrize(
    "name", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", "٠" * 64, "../" + "a" * 61]
)
def test_what_is_no_artifact_id(name: str) -> None:
    assert not ARTIFACT_ID.fullmatch(name)


def test_times_are_utc_with_z() -> None:
    assert timestamp(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05.000000Z"
    assert (
        timestamp(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))))
        == "2026-01-02T01:04:05.000006Z"
    )
