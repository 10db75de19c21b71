# SPDX-License-Identifier: LGPL-2.1-or-later
"""A store killed at any step of a change has, after recover(), the old or the new state and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from mcpd.errors import ConfigMissing, NotFound
from mcpd.paths import Scope
from mcpd.store import Store
from tests.unit.killed import kill_at_each_step
from tests.unit.store import killed_writer
from tests.unit.store.killed_writer import ONE, SCENARIOS, paths_below
from tests.unit.store.store_trees import names_in, text_of_tree

pytestmark = pytest.mark.process

State: TypeAlias = tuple[str, Mapping[str, object], str, object] | None


def state(store: Store) -> State:
    """Version, all values, what waits for approval and the origin of the server; None if it is not installed."""
    try:
        server = store.get(ONE)
        manifest = server.manifest
        assert server.problem == ""
        assert manifest is not None
        assert (store.held(ONE) or 0) == server.pending_generation
        told = server.pending, (manifest.model_extra or {}).get("origin")
        return manifest.version, store.launch_manifest(ONE).values, *told
    except NotFound:
        return None
    except ConfigMissing:
        assert manifest is not None
        return manifest.version, store.config(ONE).values, *told


def check_order(root: Path) -> None:
    """No half entry, no staging, no secret where it does not belong."""
    paths = paths_below(root)
    store = Store(paths, Scope.USER)
    names = [str(path.relative_to(root)) for path in root.rglob("*")]
    assert [name for name in names if "~" in name] == []
    servers = store.list()
    assert [server.problem for server in servers] == [""] * len(servers)
    pointers = json.loads((paths.user.installed / "index.json").read_text())["servers"]
    if isinstance(pointers, dict):
        assert sorted(pointers) == [server.id for server in servers]
        assert all(Path(pointer["location"]).is_file() for pointer in pointers.values())
    for server_id in names_in(paths.user.generations):
        if server_id != ".lock":
            assert server_id in {server.id for server in servers}
            used = {*store.generations(server_id), store.held(server_id)} - {None}
            assert {int(name) for name in names_in(paths.user.generations / server_id) if name.isdecimal()} == used
            for number in used:
                assert (paths.user.generations / server_id / str(number) / "server.py").is_file()
    secrets = set(names_in(paths.user.secrets))
    kept = set(names_in(paths.user.overlay))
    assert secrets <= {f"{server.id}.json" for server in servers} | kept


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(scenario: str, work: Path) -> None:
    runs = kill_at_each_step(killed_writer, scenario, work)
    assert runs > 10

    old_root = work / "old"
    SCENARIOS[scenario][0](old_root)
    old = state(Store(paths_below(old_root), Scope.USER))
    new = state(Store(paths_below(work / str(runs)), Scope.USER))
    seen = set()
    for number in range(1, runs + 1):
        root = work / str(number)
        store = Store(paths_below(root), Scope.USER)
        store.recover()
        found = state(store)
        assert found in (old, new), f"killed before step {number}"
        seen.add(repr(found))
        check_order(root)
        if found == new or ("foreign" not in scenario and "legacy" not in scenario):
            assert "-secret" not in text_of_tree(root)
        if found == old and scenario != "recover":
            SCENARIOS[scenario][1](store)
            assert state(store) == new
            check_order(root)
    assert seen == {repr(old), repr(new)}


def test_recovery_spares_a_generation_that_a_living_process_builds(tmp_path: Path) -> None:
    store = Store(paths_below(tmp_path), Scope.USER)
    generation = store.new_generation(ONE)
    (generation.path / "file").write_text("x")
    for other in (Store(paths_below(tmp_path), Scope.USER), store):
        other.recover()
    assert (generation.path / "file").read_text() == "x"


def test_recovery_goes_back_to_a_generation_that_is_left(tmp_path: Path) -> None:
    SCENARIOS["update-prunes"][0](tmp_path)
    paths = paths_below(tmp_path)
    shutil.rmtree(paths.user.generations / ONE / "3")
    store = Store(paths, Scope.USER)
    assert store.get(ONE).problem
    store.recover()
    found = state(store)
    assert found is not None
    assert found[0] == "2"


def test_recovery_of_nothing_creates_nothing(tmp_path: Path) -> None:
    Store(paths_below(tmp_path), Scope.USER).recover()
    assert list(tmp_path.iterdir()) == []
