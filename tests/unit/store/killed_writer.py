# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes to a store that are killed at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.model import Manifest, dump_json
from mcpd.paths import Paths, Scope
from mcpd.store import Generation, Store
from tests.unit.store.store_trees import document, foreign, hold, install, layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = "com.example.one"


def paths_below(root: Path) -> Paths:
    return Paths(
        user=layout(Scope.USER, root / "user"),
        system=layout(Scope.SYSTEM, root / "system"),
        vendor=root / "vendor",
        home=root / "home",
    )


def _installed(root: Path) -> Store:
    store = Store(paths_below(root), Scope.USER)
    install(store, "other")
    install(store, version="1", config={"api_key": "old-secret", "endpoint": "old"})
    return store


def _foreign(root: Path) -> Store:
    paths = paths_below(root)
    store = Store(paths, Scope.USER)
    install(store, "other")
    foreign(paths.user.installed, config={"api_key": "old-secret", "endpoint": "old"})
    return store


def _three(root: Path) -> Store:
    store = _installed(root)
    for version in ("2", "3"):
        install(store, version=version)
    return store


def _waiting(root: Path) -> Store:
    store = _installed(root)
    hold(store, config={"endpoint": "given"})
    return store


def _empty(root: Path) -> Store:
    store = Store(paths_below(root), Scope.USER)
    install(store, "other")
    return store


def _legacy(root: Path) -> Store:
    paths = paths_below(root)
    paths.user.installed.mkdir(parents=True)
    entries = [document("other"), document(config={"api_key": "old-secret", "endpoint": "old"})]
    paths.user.installed.joinpath("index.json").write_bytes(dump_json({"servers": entries}))
    return Store(paths, Scope.USER)


def _update(store: Store, **config: Any) -> None:
    install(store, version="9", config=config)


def _hold(store: Store) -> None:
    hold(store, "9", [{"name": "add"}])


def _supersede(store: Store) -> None:
    _update(store)
    store.prune(ONE)


def _try_out(store: Store) -> Generation:
    generation = store.new_generation(ONE)
    (generation.path / "server.py").write_text("# new\n")
    store.activate(generation, Manifest.parse(document(version="9"), "test"), on_trial=True)
    return generation


def _prove(store: Store) -> None:
    _try_out(store)
    store.prune(ONE)


def _approve(store: Store) -> None:
    store.approve(ONE, store.held(ONE) or 0)
    store.prune(ONE)


def _hold_after_trial(store: Store) -> None:
    generation = _try_out(store)
    store.rollback(ONE)
    store.hold(generation, Manifest.parse(document(version="9"), "test"))


SCENARIOS: dict[str, tuple[Callable[[Path], Store], Callable[[Store], object]]] = {
    "install": (_empty, lambda store: _update(store, api_key="new-secret", endpoint="new")),
    "update": (_installed, _update),
    "update-prunes": (_three, _update),
    "update-of-foreign": (_foreign, _update),
    "rollback": (_three, lambda store: store.rollback(ONE)),
    "remove": (_three, lambda store: store.remove(ONE)),
    "remove-keeping": (_installed, lambda store: store.remove(ONE, keep_config=True)),
    "remove-foreign": (_foreign, lambda store: store.remove(ONE)),
    "set-config": (_installed, lambda store: store.set_config(ONE, {"endpoint": "new"})),
    "set-secret": (_installed, lambda store: store.set_secret(ONE, "api_key", "new-secret")),
    "set-config-of-foreign": (_foreign, lambda store: store.set_config(ONE, {"endpoint": "new"})),
    "set-config-of-legacy": (_legacy, lambda store: store.set_config(ONE, {"endpoint": "new"})),
    "hold": (_installed, _hold),
    "hold-another": (_waiting, _hold),
    "approve": (_waiting, _approve),
    "drop-held": (_waiting, lambda store: store.drop_held(ONE)),
    "supersede": (_waiting, _supersede),
    "remove-with-held": (_waiting, lambda store: store.remove(ONE)),
    "prove": (_three, _prove),
    "hold-after-trial": (_installed, _hold_after_trial),
    "pin": (_installed, lambda store: store.set_pinned(ONE, True)),
    "recover": (_installed, lambda store: (store.new_generation(ONE), store.recover())),
}
