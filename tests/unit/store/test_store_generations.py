# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Busy, InvalidManifest, NotFound, ReadOnly
from mcpd.files import WriteLock
from mcpd.model import Manifest
from mcpd.paths import Paths, Scope
from mcpd.store import Store
from tests.unit.store.store_trees import document, foreign, install, names_in, text_of_tree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

ONE = "com.example.one"


def test_a_generation_is_built_in_place_and_then_activated(paths: Paths, user: Store) -> None:
    generation = user.new_generation(ONE)
    assert generation.path == paths.user.generations / ONE / "1"
    assert list(generation.path.iterdir()) == []
    assert user.list() == []
    assert user.generations(ONE) == []
    user.activate(generation, Manifest.parse(document(), "test"))
    assert user.active_generation(ONE) == 1
    assert user.generations(ONE) == [1]


def test_two_generations_can_be_built_at_once(user: Store) -> None:
    first, second = user.new_generation(ONE), user.new_generation(ONE)
    assert (first.number, second.number) == (1, 2)
    user.activate(second, Manifest.parse(document(), "test"))
    user.discard(first)
    assert user.generations(ONE) == [2]


def test_discard_leaves_nothing_and_spares_the_active_one(paths: Paths, user: Store) -> None:
    user.discard(user.new_generation(ONE))
    assert not (paths.user.generations / ONE).exists()
    generation = user.new_generation(ONE)
    user.activate(generation, Manifest.parse(document(), "test"))
    user.discard(generation)
    assert user.get(ONE).manifest is not None


def test_old_generations_are_pruned(paths: Paths) -> None:
    store = Store(paths, Scope.USER, keep_generations=2)
    for version in ("1", "2", "3", "4"):
        install(store, version=version)
        store.set_tools(ONE, [{"name": version}])
    assert store.generations(ONE) == [3, 4]
    assert names_in(paths.user.generations / ONE) == ["3", "3.tools.json", "4", "4.tools.json"]


@pytest.mark.parametrize(("keep", "back_to"), [(1, 1), (3, 1)])
def test_the_previous_generation_stays_until_the_new_one_has_passed_its_trial(
    paths: Paths, keep: int, back_to: int
) -> None:
    store = Store(paths, Scope.USER, keep_generations=keep)
    for version in map(str, range(1, keep + 1)):
        install(store, version=version)
    if keep > 1:
        store.rollback(ONE, back_to)
    install(store, version="new")
    assert store.rollback(ONE, back_to).manifest.version == str(back_to)  # type: ignore[union-attr]
    store.rollback(ONE, keep + 1)
    store.prune(ONE)
    assert store.generations(ONE) == list(range(2, keep + 2))


def test_a_generation_on_trial_displaces_no_other_until_it_passes(paths: Paths) -> None:
    store = Store(paths, Scope.USER, keep_generations=2)
    for version in ("1", "2"):
        install(store, version=version)
    for _ in range(2):
        generation = store.new_generation(ONE)
        store.activate(generation, Manifest.parse(document(version="3"), "test"), on_trial=True)
        store.rollback(ONE, 2)
        store.discard(generation)
        assert store.generations(ONE) == [1, 2]
    held = store.new_generation(ONE)
    store.hold(held, Manifest.parse(document(version="5"), "test"))
    store.approve(ONE, held.number)
    assert store.generations(ONE) == [1, 2]
    store.prune(ONE)
    assert store.generations(ONE) == [2, held.number]


def test_rollback_and_forward_again(user: Store) -> None:
    for version in ("1", "2", "3"):
        install(user, version=version)
    assert user.rollback(ONE).generation.name == "2"
    assert user.rollback(ONE).generation.name == "1"
    with pytest.raises(NotFound, match="earlier"):
        user.rollback(ONE)
    assert user.rollback(ONE, 3).generation.name == "3"
    with pytest.raises(NotFound, match="kept generations: 1, 2"):
        user.rollback(ONE, 9)
    assert install(user, version="4").generation.name == "4"


def test_configuration_survives_update_and_rollback(user: Store) -> None:
    install(user, version="1", config={"api_key": "a", "endpoint": "x"})
    install(user, version="2")
    assert user.launch_manifest(ONE).values == {"timeout": "30", "endpoint": "x", "api_key": "a"}
    user.set_config(ONE, {"timeout": 5})
    user.set_secret(ONE, "api_key", "b")
    user.rollback(ONE)
    assert user.launch_manifest(ONE).values == {"timeout": 5, "endpoint": "x", "api_key": "b"}
    install(user, version="3", config={"endpoint": "y"})
    assert user.launch_manifest(ONE).values == {"timeout": 5, "endpoint": "y", "api_key": "b"}


def test_a_value_that_becomes_sensitive_moves_to_the_secrets(user: Store, tmp_path: Path) -> None:
    install(user, configurableProperties=[{"key": "token"}], config={"token": "hush"})
    install(user, version="2", configurableProperties=[{"key": "token", "sensitive": True}])
    assert user.config(ONE).secrets_set == ["token"]
    assert user.launch_manifest(ONE).values == {"token": "hush"}
    public = json.loads(user.manifest_path(ONE).read_text())
    assert "hush" not in json.dumps(public)


def test_another_tools_directory_becomes_a_generation(paths: Paths, user: Store, tmp_path: Path) -> None:
    foreign(paths.user.installed, config={"api_key": "hush", "endpoint": "x"})
    server = install(user, version="2")
    assert server.generation == paths.user.generations / ONE / "2"
    assert user.launch_manifest(ONE).values == {"timeout": "30", "endpoint": "x", "api_key": "hush"}
    assert "hush" not in text_of_tree(tmp_path)
    back = user.rollback(ONE)
    assert (back.generation / "server.py").read_text() == "# foreign\n"
    assert back.manifest is not None
    assert back.manifest.version == "1"
    assert user.launch_manifest(ONE).values["api_key"] == "hush"


def test_another_tools_directory_becomes_a_generation_where_names_cannot_be_exchanged(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(paths.user.installed)
    monkeypatch.setattr("mcpd.files.Staged.exchange", lambda _: None)
    install(user, version="2")
    assert (user.rollback(ONE).generation / "server.py").read_text() == "# foreign\n"


def test_a_link_out_of_the_tree_is_replaced_not_followed(paths: Paths, user: Store, tmp_path: Path) -> None:
    outside = foreign(tmp_path / "checkout")
    paths.user.installed.mkdir(parents=True)
    (paths.user.installed / ONE).symlink_to(outside)
    before = text_of_tree(outside)
    install(user, version="2")
    assert text_of_tree(outside) == before
    assert user.active_generation(ONE) == 1


def test_the_packages_own_manifest_file_is_not_followed(user: Store, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    generation = user.new_generation(ONE)
    (generation.path / "manifest.json").symlink_to(tmp_path / "victim")
    user.activate(generation, Manifest.parse(document(), "test"))
    assert (tmp_path / "victim").read_text() == "precious"
    assert user.get(ONE).problem == ""


def test_a_manifest_of_another_server_is_refused(user: Store) -> None:
    generation = user.new_generation(ONE)
    with pytest.raises(InvalidManifest, match="other"):
        user.activate(generation, Manifest.parse(document("other"), "test"))
    user.discard(generation)


@pytest.mark.parametrize("server_id", ["../x", "", ".hidden", "a/b", "meta", "x" * 129, "a\n"])
def test_ids_that_climb_or_hide_are_refused(user: Store, server_id: str) -> None:
    for call in (user.new_generation, user.generations, user.active_generation, user.rollback):
        with pytest.raises(InvalidManifest):
            call(server_id)


def test_removal_leaves_nothing(paths: Paths, user: Store, tmp_path: Path) -> None:
    install(user, config={"api_key": "hush", "endpoint": "x"})
    install(user, version="2")
    install(user, "other")
    user.remove(ONE)
    assert [s.id for s in user.list()] == ["other"]
    left = [str(p) for p in tmp_path.rglob("*") if ONE in p.name]
    assert left == []
    assert ONE not in (paths.user.installed / "index.json").read_text()
    with pytest.raises(NotFound):
        user.remove(ONE)


def test_removal_may_keep_the_configuration_for_a_later_install(user: Store, tmp_path: Path) -> None:
    install(user, config={"api_key": "hush", "endpoint": "x"})
    user.remove(ONE, keep_config=True)
    assert user.list() == []
    assert "hush" not in text_of_tree(tmp_path)
    install(user)
    assert user.launch_manifest(ONE).values == {"timeout": "30", "endpoint": "x", "api_key": "hush"}


def test_removal_uncovers_the_server_of_the_lower_layer(user: Store, system: Store) -> None:
    install(system, version="1")
    install(user, version="2")
    user.remove(ONE)
    assert user.get(ONE).layer == "system"


def test_a_tool_catalog_belongs_to_a_generation(user: Store) -> None:
    install(user)
    assert user.tools(ONE) is None
    user.set_tools(ONE, [{"name": "add"}])
    assert user.tools(ONE) == [{"name": "add"}]
    user.set_config(ONE, {"endpoint": "x"})
    assert user.tools(ONE) == [{"name": "add"}]
    install(user, version="2")
    assert user.tools(ONE) is None
    user.rollback(ONE)
    assert user.tools(ONE) == [{"name": "add"}]


def test_tools_of_other_layers_are_kept_in_the_cache(paths: Paths, user: Store, system: Store) -> None:
    directory = foreign(paths.vendor)
    install(system, "shared")
    system.set_tools("shared", [{"name": "system"}])
    assert user.tools("shared") == [{"name": "system"}]
    user.set_tools(ONE, [{"name": "add"}])
    assert user.tools(ONE) == [{"name": "add"}]
    assert names_in(directory) == ["manifest.json", "server.py"]
    (directory / "manifest.json").write_text(json.dumps(document(version="2")))
    assert user.tools(ONE) is None


def test_a_server_never_shares_a_file_name_with_its_tool_catalog(user: Store) -> None:
    generation = user.new_generation(ONE)
    (generation.path / "tools.json").write_text("the server's own")
    user.activate(generation, Manifest.parse(document(), "test"))
    user.set_tools(ONE, [])
    assert (generation.path / "tools.json").read_text() == "the server's own"


HOLDER = """
import sys
from pathlib import Path
from mcpd.files import WriteLock
with WriteLock(Path(sys.argv[1])).hold():
    print("holding", flush=True)
    sys.stdin.read()
"""


def test_writers_in_other_processes_are_kept_out(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        lock = WriteLock(tmp_path / ".lock", wait=0.05)
        with pytest.raises(Busy, match="another process"), lock.hold():
            pass
        holder.stdin.close()
        holder.wait(60)
        with lock.hold(), lock.hold():
            pass


def test_changes_by_many_threads_all_happen(paths: Paths) -> None:
    keys = [f"k{n}" for n in range(8)]
    install(Store(paths, Scope.USER), configurableProperties=[{"key": key} for key in keys])
    stores = [Store(paths, Scope.USER), Store(paths, Scope.USER)]

    def change(number: int) -> None:
        for value in range(10):
            stores[number % 2].set_config(ONE, {f"k{number}": value})
            stores[number % 2].list()

    threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].config(ONE).values == dict.fromkeys(keys, 9)


def test_listing_while_other_threads_find_new_servers(paths: Paths, user: Store) -> None:
    """A listing drops what it keeps of servers that are gone, while others add to it."""
    for number in range(100):
        foreign(paths.user.installed, f"stays{number}")
        foreign(paths.user.installed, f".comes{number}")
    faults: list[BaseException] = []
    done = threading.Event()

    def keep_listing() -> None:
        try:
            while not done.is_set():
                user.list()
        except RuntimeError as error:
            faults.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    lister = threading.Thread(target=keep_listing)
    lister.start()
    try:
        for number in range(1000):
            hidden = paths.user.installed / f".comes{number % 100}"
            shown = hidden.rename(hidden.with_name(hidden.name[1:]))
            user.get(shown.name)
            shown.rename(hidden)
    finally:
        done.set()
        lister.join()
        sys.setswitchinterval(interval)
    assert faults == []


def test_a_failed_removal_names_the_server(paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    foreign(paths.user.installed)
    monkeypatch.setattr("mcpd.store.lifecycle.remove_tree", refuse)
    with pytest.raises(ReadOnly, match=r"the remains of com\.example\.one: Permission denied"):
        user.remove(ONE)


def test_a_catalog_of_tools_is_read_again_however_deep_it_nests(user: Store) -> None:
    install(user)
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"a": schema}
    tools = [{"name": f"t{number}", "inputSchema": schema} for number in range(8000)]
    user.set_tools(ONE, tools)
    assert user.tools(ONE) == tools
