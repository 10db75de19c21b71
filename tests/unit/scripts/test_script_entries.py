# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of the mcps map that define or restrict script servers (docs/scripts.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import NotFound
from mcpd.paths import Scope
from mcpd.scripts import contents
from mcpd.scripts.mcps import MOST_SERVERS
from mcpd.store import Store
from tests.unit.scripts.script_parts import HELLO, age, listed, put, said, write

if TYPE_CHECKING:
    from mcpd.paths import Paths


# ---------------------------------------------------------------------------------------- entries of the map


def test_an_entry_configures_a_script(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "x.py")
    entry = {
        "summary": "Mine",
        "permissions": ["network"],
        "env": {"MODE": "fast"},
        "runtime": {"callTimeout": 60, "workers": 2, "sharing": "session"},
        "configurableProperties": [{"key": "TOKEN", "sensitive": True, "required": True, "target": "env"}],
        "tools": {"hello": {"description": "Says hello", "name": "greet"}},
    }
    write(paths.user.mcps, {"x": entry})
    server = user.get("x")
    manifest = server.manifest
    assert manifest is not None
    assert (manifest.summary, manifest.permissions, manifest.env) == ("Mine", ["network"], {"MODE": "fast"})
    assert (manifest.runtime.call_timeout, manifest.runtime.sharing) == (65, "session")
    assert (said(server)["entry"], said(server)["narrowed"]) == (entry, True)
    assert not server.configured
    user.set_secret("x", "TOKEN", "hush")
    assert user.get("x").configured
    assert user.launch_manifest("x").values["TOKEN"] == "hush"
    assert "hush" not in repr(user.get("x"))
    # How a tool looks is what the script server makes of it; what clients call it is the bridge's.
    assert json.loads(server.entry.policy) == [{"tools": {"hello": {"name": "greet"}}}]


def test_a_users_entry_restricts_a_script_of_the_system_and_defines_nothing(paths: Paths, user: Store) -> None:
    put(paths.system.scripts, "x.py")
    write(paths.system.mcps, {"x": {"permissions": ["network"]}})
    write(paths.user.mcps, {"x": {"permissions": ["filesystem:rw:~"], "tools": {"hello": {"description": "Mine"}}}})
    server = user.get("x")
    assert server.manifest is not None
    assert server.manifest.permissions == ["network"]
    assert said(server)["entry"] == {"permissions": ["network"]}
    assert json.loads(server.entry.policy) == [{"tools": {"hello": {"description": "Mine"}}}]
    write(paths.system.mcps, {"x": {"enabled": False}})
    assert str(paths.system.mcps) in user.get("x").entry.disabled


def test_an_entry_alone_is_a_server_if_it_offers_something(paths: Paths, user: Store) -> None:
    write(
        paths.user.mcps,
        {
            "v": {"description": "Values", "variables": {"a": 1}, "resources": {"a": {"uri": "variable://a"}}},
            "p": {"prompts": {"ask": {"template": "Ask."}}},
            "com.example.gone": {"tools": {"read": {"name": "read_file"}}, "resources": False},
        },
    )
    found = listed(user)
    assert set(found) == {"v", "p"}
    assert said(found["v"])["path"] == ""
    assert found["v"].manifest is not None
    assert found["v"].manifest.description == "Values"
    write(paths.user.mcps, {})
    assert listed(user) == {}


def test_T1_3_a_map_and_a_script_are_found_by_their_content(paths: Paths, user: Store) -> None:
    script = contents.write(paths.user.contents, HELLO.encode())
    stored = contents.write(paths.user.contents, json.dumps({"x": {"definition_cid": f"cid://{script}"}}).encode())
    write(paths.user.mcps, json.dumps(f"cid://{stored}"))
    server = user.get("x")
    assert server.manifest is not None
    assert server.manifest.summary == "Greets."
    assert said(server)["path"] == str(paths.user.contents / script)
    (paths.user.contents / script).write_text("tampered")
    assert "does not match" in Store(paths, Scope.USER).get("x").problem


def test_T1_3_what_a_map_refers_to_is_looked_at_again(
    paths: Paths, user: Store, caplog: pytest.LogCaptureFixture
) -> None:
    put(paths.user.scripts, "x.py")
    stored = contents.write(paths.user.contents, b'{"x": {"enabled": false}}')
    write(paths.user.mcps, json.dumps(stored))
    assert user.get("x").entry.disabled
    assert user.get("x") is user.get("x")
    age(paths.user.mcps, paths.user.contents / stored)
    user.get("x")
    (paths.user.contents / stored).write_text("{}")
    assert user.get("x").entry.disabled == ""
    assert "as empty" in caplog.text
    assert str(paths.user.mcps) in caplog.text


def test_T1_3_a_map_that_its_file_refers_to_may_come_later(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "x.py")
    data = b'{"x": {"enabled": false}}'
    write(paths.user.mcps, json.dumps(contents.content_id(data)))
    age(paths.user.mcps)
    assert user.get("x").entry.disabled == ""
    contents.write(paths.user.contents, data)
    assert user.get("x").entry.disabled


def test_T1_3_a_map_that_its_file_refers_to_is_read_once(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = contents.write(paths.user.contents, b'{"v": {"prompts": {"a": {}}}}')
    write(paths.user.mcps, json.dumps(stored))
    age(paths.user.mcps, paths.user.contents / stored)
    before = user.get("v")

    def never(*_: object) -> None:
        raise AssertionError("the map was read again")

    monkeypatch.setattr("mcpd.scripts.mcps.contents.find", never)
    assert user.get("v") is before


def test_T1_3_a_map_is_no_larger_because_its_file_refers_to_it(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcpd.scripts.mcps.MAX_FILE", 100)
    data = json.dumps({"v": {"prompts": {"a": {}}, "summary": "x" * 100}}).encode()
    write(paths.user.mcps, json.dumps(contents.write(paths.user.contents, data)))
    assert listed(user) == {}
    assert "larger than 100 bytes" in caplog.text


def test_T1_3_what_an_administrators_map_refers_to_is_not_looked_for_where_users_write(
    paths: Paths, user: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(paths.system.mcps, json.dumps(contents.content_id(b"{}")))
    contents.write(paths.user.contents, b"{}")
    user.list()
    assert f"is in none of {paths.system.contents}, " in caplog.text
    assert str(paths.user.contents) not in caplog.text


def test_a_key_of_the_map_that_is_not_an_id_is_listed_in_printable_form(paths: Paths, user: Store) -> None:
    write(paths.user.mcps, {"a\ab": {"prompts": {"ask": {"template": "Ask."}}}})
    (server,) = user.list()
    assert "is not a server id" in server.problem
    assert user.list()[0] is server
    assert user.get(server.id) is server


@pytest.mark.parametrize("cid", ["cid://" + "0" * 64, "../../etc/passwd", "x.py"])
def test_a_script_that_is_missing_from_the_content_store_is_a_problem(paths: Paths, user: Store, cid: str) -> None:
    write(paths.user.mcps, {"x": {"definition_cid": cid}})
    server = user.get("x")
    assert server.manifest is None
    assert "definition_cid" in server.problem


def test_T1_5_an_entry_of_a_server_that_is_not_there_says_nothing(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "x.py")
    assert said(user.get("x"))["entry"] == {}
    with pytest.raises(NotFound):
        user.get("y")


def test_one_file_defines_a_limited_number_of_servers(
    paths: Paths, user: Store, caplog: pytest.LogCaptureFixture
) -> None:
    maker = {"resources": {"a": {"uri": "variable://a"}}, "variables": {"a": 1}}
    ids = [f"s{number:04}" for number in range(MOST_SERVERS + 50)]
    put(paths.user.scripts, f"{ids[-1]}.py")
    put(paths.user.scripts, "narrowed.py")
    write(paths.user.mcps, {**dict.fromkeys(ids, maker), "narrowed": {"summary": "Narrowed"}})
    found = listed(user)
    assert set(found) == {*ids[:MOST_SERVERS], ids[-1], "narrowed"}
    # What an entry takes away it does take away.
    fault = found[ids[-1]].entry.disabled
    assert f"{paths.user.mcps}: {len(ids)} entries" in fault
    assert repr(ids[MOST_SERVERS]) in fault
    assert not any(found[each].entry.disabled for each in (ids[0], "narrowed"))
    assert found["narrowed"].entry.summary == "Narrowed"
    user.edits()
    (said,) = [record.getMessage() for record in caplog.records if "entries define servers" in record.getMessage()]
    assert said.startswith(fault)
    write(paths.user.mcps, dict.fromkeys(ids[:MOST_SERVERS], maker))
    write(paths.user.mcps_dir / "more.json", dict.fromkeys(ids[MOST_SERVERS:], maker))
    assert set(listed(user)) == {*ids, "narrowed"}
    assert user.get(ids[-1]).entry.disabled == ""


# ---------------------------------------------------------------------------------------- the map itself


@pytest.mark.parametrize("text", ["{}", "", None])
def test_T1_1_an_empty_map_says_nothing(paths: Paths, user: Store, text: str | None) -> None:
    put(paths.user.scripts, "x.py")
    if text is not None:
        write(paths.user.mcps, text)
    server = user.get("x")
    assert said(server)["entry"] == {}
    assert (server.entry.policy, server.entry.disabled) == ("", "")


def test_T1_2_a_valid_map_is_taken_as_it_is(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "x.py")
    entry = {
        "description": "Looks things up",
        "auto_discover": True,
        "variables": {"a": [1, None, {"b": "ü"}]},
        "resources": {"a": {"uri": "variable://a", "mimeType": "application/json"}},
        "prompts": {"ask": {"arguments": [{"name": "topic", "required": True}], "template": "About {{ topic }}."}},
        "somebody_elses": 1,
    }
    write(paths.user.mcps, {"x": entry})
    assert said(user.get("x"))["entry"] == entry
