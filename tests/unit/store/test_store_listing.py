# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidManifest, NotFound, ReadOnly
from mcpd.paths import Paths, Scope
from mcpd.store import Store
from tests.unit.store.store_trees import document, foreign, install

if TYPE_CHECKING:
    from pathlib import Path


def write_index(root: Path, data: object) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "index.json").write_text(data if isinstance(data, str) else json.dumps(data))


def listed(store: Store) -> list[tuple[str, str, str]]:
    return [(s.id, s.layer, s.manifest.version if s.manifest else s.problem) for s in store.list()]


def test_an_empty_list_creates_nothing(user: Store, tmp_path: Path) -> None:
    assert user.list() == []
    assert list(tmp_path.iterdir()) == []


def test_user_wins_over_system_and_system_over_vendor(paths: Paths, user: Store, system: Store) -> None:
    for server_id in ("a", "b", "c"):
        foreign(paths.vendor, server_id, "vendor")
    for server_id in ("a", "b"):
        install(system, server_id, "system")
    install(user, "a", "user")
    assert listed(user) == [("a", "user", "user"), ("b", "system", "system"), ("c", "vendor", "vendor")]
    assert listed(system) == [("a", "system", "system"), ("b", "system", "system"), ("c", "vendor", "vendor")]
    assert [s.writable for s in user.list()] == [True, False, False]
    assert [s.writable for s in system.list()] == [True, True, False]


def test_index_and_manifest_are_in_the_format_that_other_tools_read(paths: Paths, user: Store) -> None:
    server = install(user)
    place = paths.user.installed / "com.example.one"
    index = json.loads((paths.user.installed / "index.json").read_text())
    assert index == {"servers": {"com.example.one": {"location": str(place / "manifest.json")}}}
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest == {**document(), "scope": "user", "installDir": str(place), "config": {}}
    assert server.directory == place
    assert server.generation == paths.user.generations / "com.example.one" / "1"
    assert str(place.readlink()) == "../generations/com.example.one/1"
    assert user.manifest_path("com.example.one") == place / "manifest.json"


def test_the_system_tree_may_be_a_symlink(paths: Paths, system: Store, tmp_path: Path) -> None:
    paths.system.installed.parent.mkdir(parents=True)
    paths.system.installed.symlink_to(tmp_path / "var/lib/mcp/installed")
    server = Store(paths, Scope.SYSTEM)
    installed = install(server)
    assert installed.directory == paths.system.installed / "com.example.one"
    assert installed.generation == tmp_path / "var/lib/mcp/generations/com.example.one/1"
    index = json.loads((tmp_path / "var/lib/mcp/installed/index.json").read_text())
    assert index["servers"]["com.example.one"]["location"] == str(installed.directory / "manifest.json")


def test_an_unknown_server_is_not_found(user: Store) -> None:
    for name in ("nothing", "", "../../etc", "a\0b", "x" * 1000):
        with pytest.raises(NotFound):
            user.get(name)


def test_without_an_index_the_directory_is_scanned(paths: Paths, user: Store) -> None:
    foreign(paths.user.installed, "com.example.one")
    (paths.user.installed / "no-server").mkdir()
    (paths.user.installed / ".staging").mkdir()
    assert listed(user) == [("com.example.one", "user", "1")]
    assert not (paths.user.installed / "index.json").exists()
    install(user, "other")
    index = json.loads((paths.user.installed / "index.json").read_text())
    assert sorted(index["servers"]) == ["com.example.one", "other"]


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"servers": 3}', '{"servers": NaN}', "[" * 100_000, "\ufeffx"])
def test_a_broken_index_hides_no_server(paths: Paths, user: Store, broken: str) -> None:
    foreign(paths.user.installed)
    write_index(paths.user.installed, broken)
    assert listed(user) == [("com.example.one", "user", "1")]
    assert "index.json" in user.problems()[0]
    install(user, "other")
    assert listed(user) == [("com.example.one", "user", "1"), ("other", "user", "1")]
    assert user.problems() == ()
    assert (paths.user.installed / "index.json.broken").read_text() == broken


def test_legacy_index_is_read(paths: Paths, user: Store) -> None:
    write_index(paths.user.installed, {"version": "0.1", "servers": [document("a"), document("b", "2")]})
    foreign(paths.user.installed, "b", "3")
    assert listed(user) == [("a", "user", "1"), ("b", "user", "3")]
    assert user.config("a").values == {"timeout": "30"}


def test_legacy_index_is_rewritten_at_the_next_change(paths: Paths, user: Store) -> None:
    entries = [document("a", config={"api_key": "hush", "endpoint": "x"}), document("b", extra=[1])]
    write_index(paths.user.installed, {"version": "0.1", "servers": [*entries, {"name": "no id"}]})
    user.set_config("b", {"endpoint": "y"})
    index = json.loads((paths.user.installed / "index.json").read_text())
    assert index["version"] == "0.1"
    assert index["servers"].pop("#2") == {"name": "no id"}
    assert index["servers"] == {
        server_id: {"location": str(paths.user.installed / server_id / "manifest.json")} for server_id in ("a", "b")
    }
    written = json.loads((paths.user.installed / "b/manifest.json").read_text())
    assert written == {**document("b", extra=[1]), "config": {"endpoint": "y"}}
    assert user.config("a").secrets_set == ["api_key"]
    assert "hush" not in (paths.user.installed / "a/manifest.json").read_text()
    assert [s.id for s in user.list() if not s.problem] == ["a", "b"]


def test_a_pointer_to_nothing_is_listed_with_its_problem(paths: Paths, user: Store) -> None:
    write_index(paths.user.installed, {"servers": {"gone": {"location": "/nowhere/gone/manifest.json"}}})
    (server,) = user.list()
    assert server.manifest is None
    assert "/nowhere/gone" in server.problem
    with pytest.raises(InvalidManifest, match="nowhere"):
        user.launch_manifest("gone")
    user.remove("gone")
    assert user.list() == []


def test_a_pointer_to_nothing_hides_no_server_of_a_lower_layer(paths: Paths, user: Store, system: Store) -> None:
    install(system, "one")
    write_index(paths.user.installed, {"servers": {"one": {"location": "/nowhere/manifest.json"}}})
    assert listed(user) == [("one", "system", "1")]
    assert user.get("one").layer == "system"


def test_a_pointer_out_of_the_tree_is_used_and_never_written(paths: Paths, user: Store, tmp_path: Path) -> None:
    outside = foreign(tmp_path / "checkout")
    before = (outside / "manifest.json").read_bytes()
    write_index(
        paths.user.installed,
        {"updated": "x", "servers": {"com.example.one": {"manifest": str(outside / "manifest.json"), "keywords": [1]}}},
    )
    server = user.get("com.example.one")
    assert (server.directory, server.problem) == (outside, "")
    user.set_config("com.example.one", {"timeout": 5})
    user.set_secret("com.example.one", "api_key", "hush")
    assert json.loads(user.launch_manifest("com.example.one").data)["config"] == {"timeout": 5, "api_key": "hush"}
    install(user, "other")
    index = json.loads((paths.user.installed / "index.json").read_text())
    assert index["updated"] == "x"
    assert index["servers"]["com.example.one"] == {"location": str(outside / "manifest.json"), "keywords": [1]}
    user.remove("com.example.one")
    assert (outside / "manifest.json").read_bytes() == before
    assert listed(user) == [("other", "user", "1")]


def test_a_stale_pointer_of_a_moved_home_is_ignored(paths: Paths, user: Store) -> None:
    foreign(paths.user.installed)
    write_index(paths.user.installed, {"servers": {"com.example.one": {"location": "/old/home/manifest.json"}}})
    assert listed(user) == [("com.example.one", "user", "1")]


@pytest.mark.parametrize(
    ("key", "raw"),
    [("../../etc", {"location": "/x"}), ("a b", {}), ("sse", {"location": "/x"}), ("x\0", 3), ("ok", []), ("ok", {})],
)
def test_unusable_index_entries_are_listed_kept_and_removable(paths: Paths, user: Store, key: str, raw: object) -> None:
    write_index(paths.user.installed, {"servers": {key: raw}})
    (server,) = user.list()
    assert server.problem
    assert server.id.isprintable()
    assert user.get(server.id) == server
    install(user, "other")
    assert json.loads((paths.user.installed / "index.json").read_text())["servers"][key] == raw
    user.remove(server.id)
    assert [s.id for s in user.list()] == ["other"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "3", '{"id": "other", "name": "x"}', '{"transports": 3}', "[" * 50_000, '{"a": NaN}']
)
def test_broken_manifests_are_listed_with_their_problem(paths: Paths, user: Store, content: str) -> None:
    directory = foreign(paths.user.installed)
    (directory / "manifest.json").write_text(content)
    (server,) = user.list()
    usable = content == "{}"
    assert bool(server.problem) is not usable
    assert (server.manifest is None) is not usable
    user.remove("com.example.one")
    assert user.list() == []


def test_a_manifest_that_is_not_a_regular_file_does_not_hang(paths: Paths, user: Store) -> None:
    directory = foreign(paths.user.installed)
    (directory / "manifest.json").unlink()
    os.mkfifo(directory / "manifest.json")
    assert "regular file" in user.list()[0].problem


def test_dangling_and_looping_links_are_listed(paths: Paths, user: Store) -> None:
    paths.user.installed.mkdir(parents=True)
    (paths.user.installed / "dangling").symlink_to("/nowhere")
    (paths.user.installed / "loop").symlink_to("loop")
    assert all(server.problem for server in user.list())
    assert [server.id for server in user.list()] == ["dangling", "loop"]
    for server_id in ("dangling", "loop"):
        user.remove(server_id)
    assert user.list() == []


def test_a_directory_of_another_tool_is_usable_and_removable(paths: Paths, user: Store) -> None:
    directory = foreign(paths.user.installed, config={"endpoint": "x"})
    assert user.get("com.example.one").directory == directory
    user.set_config("com.example.one", {"timeout": "7"})
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest == document(config={"endpoint": "x", "timeout": 7})
    user.remove("com.example.one")
    assert not directory.exists()


def test_installDir_of_another_tool_is_used(paths: Paths, user: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    foreign(paths.user.installed, "a", installDir=str(tmp_path / "elsewhere"))
    foreign(paths.user.installed, "b", installDir="/nowhere/at/all")
    assert user.get("a").directory == tmp_path / "elsewhere"
    assert user.get("b").directory == paths.user.installed / "b"


def test_removal_never_follows_a_link_out_of_the_tree(paths: Paths, user: Store, tmp_path: Path) -> None:
    outside = foreign(tmp_path / "checkout")
    paths.user.installed.mkdir(parents=True)
    (paths.user.installed / "com.example.one").symlink_to(outside)
    before = (outside / "manifest.json").read_bytes()
    user.set_config("com.example.one", {"timeout": 5})
    assert user.config("com.example.one").values == {"timeout": 5}
    user.remove("com.example.one")
    assert (outside / "manifest.json").read_bytes() == before
    assert user.list() == []


def test_removal_of_a_directory_with_links_and_locked_parts(paths: Paths, user: Store, tmp_path: Path) -> None:
    directory = foreign(paths.user.installed)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("keep")
    (directory / "link").symlink_to(tmp_path / "precious")
    (directory / "locked/inner").mkdir(parents=True)
    (directory / "locked/inner").chmod(0o555)
    (directory / "locked").chmod(0o555)
    user.remove("com.example.one")
    assert (tmp_path / "precious/file").read_text() == "keep"
    assert not directory.exists()


def test_a_manifest_that_is_a_link_is_replaced_not_followed(paths: Paths, user: Store, tmp_path: Path) -> None:
    directory = foreign(paths.user.installed)
    shutil.move(directory / "manifest.json", tmp_path / "outside.json")
    (directory / "manifest.json").symlink_to(tmp_path / "outside.json")
    user.set_config("com.example.one", {"endpoint": "x"})
    assert "config" not in json.loads((tmp_path / "outside.json").read_text())
    assert user.config("com.example.one").values["endpoint"] == "x"


def test_servers_of_other_layers_are_read_only(paths: Paths, user: Store, system: Store) -> None:
    install(system, "shared")
    foreign(paths.vendor, "bundled")
    with pytest.raises(ReadOnly, match="--system remove shared"):
        user.remove("shared")
    for store in (user, system):
        with pytest.raises(ReadOnly, match="package"):
            store.remove("bundled")


def test_the_system_scope_never_looks_into_a_home(paths: Paths, system: Store, user: Store) -> None:
    install(user, "private")
    assert system.list() == []
    with pytest.raises(NotFound):
        system.get("private")


def test_a_change_by_another_tool_is_seen(paths: Paths, user: Store) -> None:
    directory = foreign(paths.user.installed)
    assert listed(user) == [("com.example.one", "user", "1")]
    (directory / "manifest.json").write_text(json.dumps(document(version="2")))
    assert listed(user) == [("com.example.one", "user", "2")]
    foreign(paths.user.installed, "second")
    assert [s.id for s in user.list()] == ["com.example.one", "second"]
    shutil.rmtree(directory)
    assert [s.id for s in user.list()] == ["second"]


def test_an_unchanged_manifest_is_parsed_once(paths: Paths, user: Store) -> None:
    for number in range(50):
        directory = foreign(paths.user.installed, f"server{number}")
        os.utime(directory / "manifest.json", (1, 1))
    first = user.list()
    assert len(first) == 50
    assert all(a is b for a, b in zip(first, user.list(), strict=True))
    user.set_config("server7", {"timeout": 3})
    again = user.list()
    assert [b.id for a, b in zip(first, again, strict=True) if a is not b] == ["server7"]


@pytest.mark.parametrize("name", ["two words", "line\nbreak", "\udcff"])
def test_a_directory_whose_name_is_not_an_id_is_listed_and_removable(paths: Paths, user: Store, name: str) -> None:
    directory = foreign(paths.user.installed, name) if name != "\udcff" else foreign(paths.user.installed, "x")
    if name == "\udcff":
        directory = directory.rename(directory.with_name(name))
    (server,) = user.list()
    assert "not a server id" in server.problem
    assert server.id.isprintable()
    user.remove(server.id)
    assert not os.path.lexists(directory)
    assert user.list() == []
