# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from payload_parts import family, profile, server

from mcpd.clients.dialects import to_client
from mcpd.clients.families import Families, packaged
from mcpd.clients.payload import BRIDGE, generate, id_of, rebased, uses_bridge
from mcpd.clients.profiles import Profiles
from mcpd.clients.validation import validate

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
    assert made.warnings == ["Plain substitutes no variables, so A is not passed on: a, b"]


def test_variables_beyond_the_limit_are_left_out() -> None:
    made = generate(
        [server()], family(limitations={"max_env_vars_per_server": 1}), profile(variables={"*": ["A", "B"]})
    )
    assert made.payload["mcpServers"]["one"]["env"] == {"A": "${A}"}  # type: ignore[index, call-overload]
    assert made.warnings == ["Plain supports at most 1 variables, so B is left out: one"]


def test_servers_beyond_the_limit_are_left_out_by_id() -> None:
    servers = [server(f"s{number:02}") for number in range(16)]
    made = generate(reversed(servers), family(limitations={"max_servers": 2}), profile())
    assert list(made.payload["mcpServers"]) == ["s00", "s01"]  # type: ignore[arg-type]
    assert made.warnings == [
        "Plain supports at most 2 servers; left out: s02, s03, s04, s05, s06, s07, s08, s09, s10, s11 and 4 more"
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
    kept = {"run": run, "near": near, "plain": {"type": "http", "url": "https://x/mcp/a"}}
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
    assert to_client(client, found).keys() == found.keys()
