# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import errno
import json
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import ConfigMissing, InvalidConfig, InvalidManifest, NotFound
from mcpd.files import read_file
from mcpd.model import Manifest
from mcpd.paths import Paths, Scope
from mcpd.store import Store, config
from tests.unit.store.store_trees import document, foreign, install, text_of_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = "com.example.one"


def test_defaults_apply_until_a_value_is_set(user: Store) -> None:
    install(user)
    assert user.config(ONE).values == {"timeout": "30"}
    user.set_config(ONE, {"timeout": "60", "endpoint": "x"})
    assert user.config(ONE).values == {"timeout": 60, "endpoint": "x"}
    user.set_config(ONE, {"timeout": None})
    assert user.config(ONE).values == {"timeout": "30", "endpoint": "x"}


def test_a_required_value_that_is_missing_stops_the_launch(user: Store) -> None:
    install(user)
    assert [p.key for p in user.config(ONE).missing] == ["api_key"]
    assert not user.get(ONE).configured
    with pytest.raises(ConfigMissing, match=r"api_key \(API Key\).*mcpctl secret set"):
        user.launch_manifest(ONE)
    user.set_secret(ONE, "api_key", "hush")
    assert user.config(ONE).missing == []
    assert user.get(ONE).configured
    user.set_secret(ONE, "api_key", None)
    assert not user.get(ONE).configured


def test_secrets_are_in_no_file_others_may_read(paths: Paths, user: Store, tmp_path: Path) -> None:
    install(user, config={"api_key": "hush-hush"})
    user.set_config(ONE, {"endpoint": "x"})
    install(user, version="2")
    user.set_secret(ONE, "api_key", "hush-hush-2")
    user.rollback(ONE)
    assert "hush" not in text_of_tree(tmp_path)
    assert "hush" not in repr((user.list(), user.config(ONE), user.launch_manifest(ONE)))
    secret = paths.user.secrets / f"{ONE}.json"
    assert json.loads(secret.read_text()) == {"api_key": "hush-hush-2"}
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700


def test_the_server_sees_all_values_in_its_manifest(paths: Paths, user: Store) -> None:
    install(user, config={"api_key": "hush"})
    user.set_config(ONE, {"endpoint": "x"})
    launch = user.launch_manifest(ONE)
    public = json.loads((paths.user.installed / ONE / "manifest.json").read_text())
    values = {"timeout": "30", "endpoint": "x", "api_key": "hush"}
    assert json.loads(launch.data) == {**public, "config": values}
    assert launch.values == values
    assert launch.manifest.config == {"endpoint": "x"}


def test_values_for_env_and_arg_are_not_in_the_manifest(user: Store) -> None:
    properties = [
        {"key": "TOKEN", "target": "env", "sensitive": True},
        {"key": "verbose", "target": "arg", "default": True},
        {"key": "Authorization", "target": "header"},
        {"key": "plain", "default": 1},
    ]
    install(user, configurableProperties=properties, config={"TOKEN": "hush", "Authorization": "x"})
    launch = user.launch_manifest(ONE)
    assert json.loads(launch.data)["config"] == {"plain": 1, "Authorization": "x"}
    assert launch.values == {"TOKEN": "hush", "verbose": True, "plain": 1, "Authorization": "x"}


def test_a_secret_another_tool_left_in_a_manifest_is_hidden_and_moves_at_the_next_write(
    paths: Paths, user: Store, tmp_path: Path
) -> None:
    directory = foreign(paths.user.installed, config={"api_key": "hush", "endpoint": "x"})
    assert user.config(ONE).values == {"timeout": "30", "endpoint": "x"}
    assert user.config(ONE).secrets_set == ["api_key"]
    assert user.get(ONE).configured
    assert "hush" not in repr(user.get(ONE))
    assert json.loads(user.launch_manifest(ONE).data)["config"]["api_key"] == "hush"
    user.set_config(ONE, {"endpoint": "y"})
    assert "hush" not in text_of_tree(tmp_path)
    assert user.launch_manifest(ONE).values["api_key"] == "hush"
    # The other tool sets it again: that is the newer value.
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["config"]["api_key"] = "newer"
    (directory / "manifest.json").write_text(json.dumps(manifest))
    assert user.launch_manifest(ONE).values["api_key"] == "newer"
    user.set_secret(ONE, "api_key", "newest")
    assert user.launch_manifest(ONE).values["api_key"] == "newest"
    assert "newer" not in text_of_tree(tmp_path)


def test_a_secret_another_tool_left_can_be_unset(paths: Paths, user: Store) -> None:
    foreign(paths.user.installed, config={"api_key": "hush"})
    user.set_secret(ONE, "api_key", None)
    assert user.config(ONE).secrets_set == []
    assert not (paths.user.secrets / f"{ONE}.json").exists()


@pytest.mark.parametrize("layer", ["system", "vendor"])
def test_users_configure_servers_of_the_system_for_themselves(
    paths: Paths, user: Store, system: Store, layer: str
) -> None:
    if layer == "system":
        install(system)
    else:
        foreign(paths.vendor)
    system.set_config(ONE, {"timeout": 60, "endpoint": "all"})
    system.set_secret(ONE, "api_key", "the machine's")
    before = text_of_tree(paths.system.installed.parent)
    assert user.config(ONE).values == {"timeout": 60, "endpoint": "all"}
    assert user.config(ONE).secrets_set == []
    user.set_config(ONE, {"endpoint": "mine"})
    user.set_secret(ONE, "api_key", "mine")
    assert user.config(ONE).values == {"timeout": 60, "endpoint": "mine"}
    assert user.launch_manifest(ONE).values == {"timeout": 60, "endpoint": "mine", "api_key": "mine"}
    assert system.launch_manifest(ONE).values == {"timeout": 60, "endpoint": "all", "api_key": "the machine's"}
    assert text_of_tree(paths.system.installed.parent) == before
    assert json.loads((paths.user.overlay / f"{ONE}.json").read_text()) == {"endpoint": "mine"}
    user.set_config(ONE, {"endpoint": None})
    assert user.config(ONE).values == {"timeout": 60, "endpoint": "all"}
    assert not (paths.user.overlay / f"{ONE}.json").exists()


def test_vendor_files_stay_as_their_package_made_them(paths: Paths, system: Store) -> None:
    directory = foreign(paths.vendor)
    before = (directory / "manifest.json").read_bytes()
    system.set_config(ONE, {"endpoint": "x"})
    system.set_secret(ONE, "api_key", "hush")
    assert (directory / "manifest.json").read_bytes() == before
    assert json.loads((paths.system.overlay / f"{ONE}.json").read_text()) == {"endpoint": "x"}
    assert system.get(ONE).directory == directory


def test_unknown_keys_are_refused_with_the_known_ones(user: Store) -> None:
    install(user)
    with pytest.raises(InvalidConfig, match=r"'timeuot'.*api_key, endpoint, timeout; did you mean 'timeout'\?"):
        user.set_config(ONE, {"timeuot": 1})
    with pytest.raises(InvalidConfig, match="it has api_key"):
        user.set_secret(ONE, "apikey", "x")


def test_sensitive_and_plain_keys_have_a_call_each(user: Store) -> None:
    install(user)
    with pytest.raises(InvalidConfig, match="secret"):
        user.set_config(ONE, {"api_key": "x"})
    with pytest.raises(InvalidConfig, match="not sensitive"):
        user.set_secret(ONE, "endpoint", "x")
    assert user.config(ONE).secrets_set == []


@pytest.mark.parametrize("kind", ["string", None])
def test_a_value_that_is_none_of_the_choices_is_refused_with_them(user: Store, kind: str | None) -> None:
    install(user, configurableProperties=[{"key": "style", "type": kind, "choices": ["slash", "dot"]}])
    with pytest.raises(InvalidConfig, match=r"'style' must be one of slash, dot$"):
        user.set_config(ONE, {"style": "foo"})
    user.set_config(ONE, {"style": "dot"})
    assert user.config(ONE).values["style"] == "dot"


def test_each_item_of_a_list_is_one_of_the_choices(user: Store) -> None:
    install(user, configurableProperties=[{"key": "sizes", "type": "list", "choices": [1, "2"]}])
    user.set_config(ONE, {"sizes": ["1", 2]})
    with pytest.raises(InvalidConfig, match=r"'sizes' must be one of 1, 2$"):
        user.set_config(ONE, {"sizes": ["1", "3"]})


def test_a_refused_change_changes_nothing(user: Store) -> None:
    install(user)
    with pytest.raises(InvalidConfig):
        user.set_config(ONE, {"endpoint": "x", "timeout": "soon"})
    assert user.config(ONE).values == {"timeout": "30"}


def test_keys_of_a_config_without_properties_stay_settable(paths: Paths, user: Store) -> None:
    foreign(paths.user.installed, configurableProperties=[], config={"KEY": "a"})
    user.set_config(ONE, {"KEY": "b"})
    assert user.config(ONE).values == {"KEY": "b"}
    with pytest.raises(InvalidConfig, match="it has KEY"):
        user.set_config(ONE, {"OTHER": "b"})


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("string", "x", "x"),
        ("integer", "60", 60),
        ("integer", 60.0, 60),
        ("number", "1.5", 1.5),
        ("number", 2, 2),
        ("boolean", "Yes", True),
        ("boolean", False, False),
        ("path", "~/projects", "~/projects"),
        ("path", "/srv", "/srv"),
        ("list", ["a", 1], ["a", 1]),
        ("unheard-of", {"a": [1]}, {"a": [1]}),
        (None, {"a": [1]}, {"a": [1]}),
    ],
)
def test_values_of_the_right_type_are_taken(user: Store, kind: str | None, value: Any, stored: Any) -> None:
    install(user, configurableProperties=[{"key": "k", "type": kind}])
    user.set_config(ONE, {"k": value})
    assert user.config(ONE).values == {"k": stored}
    assert type(user.config(ONE).values["k"]) is type(stored)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 1),
        ("integer", "1.5"),
        ("integer", True),
        ("integer", "1e999"),
        ("number", "nan"),
        ("number", []),
        ("boolean", "perhaps"),
        ("boolean", 1),
        ("path", "relative"),
        ("path", "~other/x"),
        ("list", "a,b"),
        ("list", [["a"]]),
        (None, "a\0b"),
        (None, float("inf")),
        (None, "x" * 70_000),
        (None, "\ud800"),
    ],
)
def test_values_of_the_wrong_type_are_refused_without_quoting_them(user: Store, kind: str | None, value: Any) -> None:
    install(user, configurableProperties=[{"key": "k", "type": kind}])
    with pytest.raises(InvalidConfig, match="'k'") as caught:
        user.set_config(ONE, {"k": value})
    assert "perhaps" not in caught.value.message
    assert user.config(ONE).values == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(kind=st.sampled_from([None, "string", "number", "integer", "boolean", "path", "list", "odd"]), value=json_values)
def test_any_value_is_taken_as_json_or_refused(kind: str | None, value: Any) -> None:
    manifest = Manifest.parse(document(configurableProperties=[{"key": "k", "type": kind}]), "test")
    try:
        taken = config.checked(manifest, {"k": value})
    except InvalidConfig:
        return
    assert json.loads(json.dumps(taken, allow_nan=False)) == taken


def test_a_broken_values_file_is_named_and_costs_one_server(paths: Paths, user: Store, system: Store) -> None:
    install(system)
    install(system, "other")
    paths.user.overlay.mkdir(parents=True)
    (paths.user.overlay / f"{ONE}.json").write_text("{")
    assert [bool(s.problem) for s in user.list()] == [True, False]
    with pytest.raises(InvalidConfig, match=r"overlay/com\.example\.one\.json"):
        user.config(ONE)


def test_secrets_that_cannot_be_read_are_not_taken_for_none(paths: Paths, user: Store) -> None:
    install(user, config={"api_key": "mine"})
    file = paths.user.secrets / f"{ONE}.json"
    kept = file.rename(file.with_name("kept"))
    file.symlink_to(file)
    (shown,) = user.list()
    assert "secrets/com.example.one.json" in shown.problem
    with pytest.raises(InvalidConfig, match=r"fix or remove"):
        user.set_secret(ONE, "api_key", "other")
    kept.replace(file)
    assert user.launch_manifest(ONE).values["api_key"] == "mine"


def test_only_the_values_of_another_scope_may_be_out_of_reach(
    paths: Paths, user: Store, system: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*scopes: str) -> Callable[[Path], bytes]:
        def read(path: Path) -> bytes:
            if path.name != "manifest.json" and set(scopes) & set(path.parts):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return read_file(path)

        return read

    install(user)
    install(system, "other")
    monkeypatch.setattr(config, "read_file", denied("user", "system"))
    fresh = Store(paths, Scope.USER)
    assert [bool(fresh.get(server_id).problem) for server_id in ("other", ONE)] == [True, True]
    monkeypatch.setattr(config, "read_file", denied("system"))
    again = Store(paths, Scope.USER)
    assert [again.get(server_id).problem for server_id in ("other", ONE)] == ["", ""]


def test_configuring_needs_a_usable_server(paths: Paths, user: Store) -> None:
    with pytest.raises(NotFound):
        user.set_config("nothing", {"a": 1})
    with pytest.raises(NotFound):
        user.set_secret("../../etc/passwd", "a", "b")
    (foreign(paths.user.installed) / "manifest.json").write_text("{")
    with pytest.raises(InvalidManifest, match=r"manifest\.json"):
        user.set_config(ONE, {"a": 1})


@given(extra=st.dictionaries(st.text(max_size=6).map("x-{}".format), json_values, max_size=4))
def test_unknown_fields_of_a_manifest_survive_a_change(paths: Paths, user: Store, extra: dict[str, Any]) -> None:
    directory = paths.user.installed / ONE
    directory.mkdir(parents=True, exist_ok=True)
    before = {**document(), **extra}
    text = json.dumps(before)
    (directory / "manifest.json").write_text(text)
    if user.get(ONE).problem:
        # NUL, half a surrogate pair or NaN: refused as a whole.
        assert "NaN" in text or "Infinity" in text or "\\u0000" in text or "\\ud" in text
        return
    user.set_config(ONE, {"endpoint": "x"})
    assert json.loads((directory / "manifest.json").read_text()) == {**before, "config": {"endpoint": "x"}}
