# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mcps map on disk (docs/mcps.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidManifest
from mcpd.model.mcps import McpsEntry, parse_entry
from mcpd.paths import Scope
from mcpd.store import Store
from tests.unit.scripts.script_parts import write
from tests.unit.store.store_trees import foreign

if TYPE_CHECKING:
    from mcpd.paths import Paths
    from mcpd.scripts.mcps import ServerEntry

ENTRY = {
    "description": "Echo server - returns input as output",
    "tools": {
        "echo": {
            "description": "Echo the provided input",
            "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
        }
    },
    "resources": {
        "last-echo": {"uri": "echo://last", "name": "Last Echo", "description": "-", "mimeType": "text/plain"}
    },
    "prompts": {},
    "auto_discover": True,
    "tools_transform_cid": "reference_templates/mcps/transforms/jq_tools.py",
    "resources_transform_cid": "reference_templates/mcps/transforms/jq_resources.py",
    "prompts_transform_cid": "cid://x",
    "enabled": True,
    "mcp_enabled": True,
    "somebody_elses": [1],
}


@pytest.fixture(autouse=True)
def server(paths: Paths) -> None:
    foreign(paths.vendor, "s")


def entry(store: Store) -> ServerEntry:
    return store.get("s").entry


def policy(store: Store) -> Any:
    return json.loads(entry(store).policy or "[]")


def test_a_directory_that_cannot_be_read_is_logged_once(paths: Paths, caplog: pytest.LogCaptureFixture) -> None:
    paths.system.mcps_dir.parent.mkdir(parents=True, exist_ok=True)
    paths.system.mcps_dir.symlink_to(paths.system.mcps_dir)
    store = Store(paths, Scope.SYSTEM)
    for _ in range(3):
        store.get("s")
    assert caplog.text.count("as empty") == 1
    paths.system.mcps_dir.unlink()
    write(paths.system.mcps_dir / "a.json", {"s": {"enabled": False}})
    assert entry(store).disabled


def test_known_fields_of_an_entry_are_read_and_unknown_ones_survive() -> None:
    found = parse_entry("echo", ENTRY, "map")
    assert found.to_json() == ENTRY
    assert (found.auto_discover, found.prompts_transform_cid) == (True, "cid://x")
    assert found.tools["echo"].input_schema == ENTRY["tools"]["echo"]["inputSchema"]  # type: ignore[index]
    assert isinstance(found.resources, dict)
    assert found.resources["last-echo"].mime_type == "text/plain"
    assert McpsEntry().usable


def test_a_server_without_an_entry_is_as_it_is(user: Store) -> None:
    found = entry(user)
    assert (found.disabled, found.problem, found.summary, found.policy) == ("", "", "", "")


def test_later_files_of_a_layer_win_field_by_field(paths: Paths, user: Store) -> None:
    write(paths.vendor_mcps, {"s": {"summary": "vendor", "enabled": False, "tools": {"a": {"title": "v"}}}})
    write(paths.system.mcps, {"s": {"enabled": True, "tools": {"a": {"name": "x"}, "b": {"enabled": False}}}})
    write(paths.system.mcps_dir / "10-x.json", {"s": {"disallowed_tools": ["c*"]}})
    write(paths.system.mcps_dir / "20-x.json", {"s": {"disallowed_tools": ["d*"], "tools": {"b": {"title": "B"}}}})
    write(paths.system.mcps_dir / "30-x.txt", {"s": {"enabled": False}})
    write(paths.system.mcps_dir / ".40-x.json", {"s": {"enabled": False}})
    found = entry(user)
    assert (found.disabled, found.summary) == ("", "vendor")
    assert policy(user) == [{"tools": {"a": {"name": "x"}, "b": {"title": "B"}}, "disallowed_tools": ["d*"]}]


def test_a_user_narrows_further_and_loosens_nothing(paths: Paths, user: Store, system: Store) -> None:
    write(paths.system.mcps, {"s": {"allowed_tools": ["a", "b"], "resources": False, "summary": "theirs"}})
    write(paths.user.mcps, {"s": {"allowed_tools": ["a", "c"], "resources": True, "summary": "mine"}})
    assert policy(user) == [{"allowed_tools": ["a", "b"], "resources": False}, {"allowed_tools": ["a", "c"]}]
    assert policy(system) == [{"allowed_tools": ["a", "b"], "resources": False}]
    assert (entry(user).summary, entry(system).summary) == ("mine", "theirs")


@pytest.mark.parametrize("switch", ["enabled", "mcp_enabled"])
def test_a_user_cannot_enable_a_server_that_the_administrator_disabled(
    paths: Paths, user: Store, system: Store, switch: str
) -> None:
    write(paths.user.mcps_dir / "x.json", {"s": {switch: False}})
    assert str(paths.user.mcps_dir / "x.json") in entry(user).disabled
    assert not entry(system).disabled
    write(paths.system.mcps, {"s": {switch: False}})
    write(paths.user.mcps_dir / "x.json", {"s": {switch: True}})
    assert str(paths.system.mcps) in entry(user).disabled
    assert switch in entry(user).disabled


def test_T1_4_a_malformed_map_is_empty_and_a_warning_names_file_and_line(
    paths: Paths, user: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(paths.system.mcps, {"s": {"summary": "kept"}})
    write(paths.user.mcps, '{\n "s": nope\n}')
    assert (entry(user).disabled, entry(user).summary) == ("", "kept")
    assert f"{paths.user.mcps}: not JSON" in caplog.text
    assert "line 2" in caplog.text
    caplog.clear()
    entry(user)
    assert not caplog.text


@pytest.mark.parametrize("broken", ["", "[]", "7", "[" * 100_000, '{"s": NaN}', b"\xff".decode("latin-1")])
def test_a_broken_file_disables_no_server(paths: Paths, user: Store, broken: str) -> None:
    write(paths.user.mcps, broken)
    assert entry(user).disabled == ""


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        {"enabled": "false"},
        {"allowed_tools": "a"},
        {"allowed_tools": [7]},
        {"tools": {"a": {"enabled": 0}}},
        {"tools": {"a": {"name": ""}}},
        {"tools": {"a": {"name": "x"}, "b": {"name": "x"}}},
        {"tools": {"a": {"arguments": {"x": {"hide": "yes"}}}}},
        {"resources": "none"},
    ],
)
def test_an_invalid_entry_disables_its_server_only(paths: Paths, user: Store, wrong: object) -> None:
    foreign(paths.vendor, "t")
    write(paths.user.mcps, {"s": wrong, "t": {"summary": "fine"}})
    found = entry(user)
    assert found.disabled == found.problem
    assert f"{paths.user.mcps}: entry 's'" in found.problem
    assert (user.get("t").entry.summary, user.get("t").entry.disabled) == ("fine", "")


def test_an_entry_is_the_same_object_until_it_changes(paths: Paths, user: Store) -> None:
    before = entry(user)
    assert entry(user) is before
    write(paths.user.mcps, {"s": {"disallowed_tools": ["a"]}})
    changed = entry(user)
    assert changed.policy
    write(paths.user.mcps_dir / "more.json", {"other": {"enabled": False}})
    assert entry(user) is changed
    paths.user.mcps.unlink()
    assert entry(user).policy == ""


def test_descriptions_and_preset_arguments_are_part_of_the_policy(paths: Paths, user: Store) -> None:
    tool = {
        "name": "n",
        "title": None,
        "description": "d",
        "enabled": True,
        "inputSchema": {"type": "object"},
        "arguments": {"a": {"default": None, "hide": True}, "b": {"description": "-"}, "c": {}},
        "unknown": 1,
    }
    write(paths.user.mcps, {"s": {"tools": {"t": tool, "plain": {}}, "prompts": False}})
    assert policy(user) == [
        {
            "tools": {
                "t": {
                    "name": "n",
                    "description": "d",
                    "inputSchema": {"type": "object"},
                    "arguments": {"a": {"default": None, "hide": True}, "b": {"description": "-"}},
                }
            },
            "prompts": False,
        }
    ]


def test_the_fault_of_an_entry_names_the_field() -> None:
    with pytest.raises(InvalidManifest, match=r"map: entry 's': tools\.a\.enabled"):
        parse_entry("s", {"tools": {"a": {"enabled": "no"}}}, "map")
