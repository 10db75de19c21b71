# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shipped scripts, map and profiles as a package puts them on a machine (T10.3, T10.4)."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.servers import ECHO, put_server
from tests.e2e.script_parts import HELLO, ScriptRig
from tests.rig import BIN

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[2] / "data"
SHIPPED = {"date", "echo", "jq", "markdown"}
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")


@contextmanager
def packaged(profile: str = "") -> Iterator[ScriptRig]:
    """A machine with all that the package has for scripts, and *profile* as its settings; nothing runs yet."""
    with ScriptRig() as rig:
        for script in (DATA / "share/scripts").glob("*.py"):
            shutil.copy(script, rig.vendor_scripts)
        target, contents = rig.vendor / "mcps.json", rig.vendor / "cas"
        rig.done("mcps", "build", str(DATA / "mcps.source.json"), "-o", str(target), "--contents", str(contents))
        if profile:
            settings = rig.home / "system/etc/mcp/mcpd.toml"
            shutil.copy(DATA / "profiles" / f"{profile}.toml", settings)
        put_server(rig.installed, "mine", {"server.py": ECHO}, configurableProperties=[
            {"key": "tone", "label": "Tone", "default": "kind"},
            {"key": "key", "label": "Key", "sensitive": True},
        ])  # fmt: skip
        yield rig


@pytest.fixture(scope="module", params=["default", "read-only"])
def machine(request: pytest.FixtureRequest) -> Iterator[tuple[ScriptRig, str]]:
    """One that runs with a shipped profile, and which one that is."""
    with packaged(request.param) as rig:
        rig.boot()
        yield rig, request.param


@pytest.fixture
def rig(machine: tuple[ScriptRig, str]) -> ScriptRig:
    """The machine alone."""
    return machine[0]


def tree(rig: ScriptRig) -> dict[str, bytes]:
    """All that changes could have touched."""
    roots = (rig.home / ".local/share/mcp", rig.home / ".config/mcp", rig.home / "system")
    return {str(path): path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file()}


def test_T10_3_T10_4_the_shipped_servers_are_there(rig: ScriptRig) -> None:
    found = rig.listed()
    assert set(found) >= SHIPPED
    assert {found[name]["state"] for name in SHIPPED} == {"installed"}
    assert {found[name]["scope"] for name in SHIPPED} == {"system"}
    assert all(found[name]["summary"] for name in SHIPPED)
    assert not [found[name]["problem"] for name in SHIPPED if "problem" in found[name]]


def test_T10_3_T10_4_they_are_called(rig: ScriptRig) -> None:
    assert rig.value("echo", "echo", message="grüß Gott") == "grüß Gott"
    assert rig.value("markdown", "convert", markdown="# Hi <script>").startswith("<h1>Hi")
    assert datetime.fromisoformat(rig.value("date", "now", timezone="UTC")).tzinfo is not None
    (content,) = rig.client("date").result("resources/read", uri="server://date/now?timezone=UTC")["contents"]
    assert datetime.fromisoformat(content["text"]).tzinfo is not None


@needs_jq
def test_T8_4_T10_5_jq_has_the_tools_of_its_transform(rig: ScriptRig) -> None:
    assert {"query", "keys", "flatten"} <= set(rig.tools("jq"))
    assert json.loads(rig.value("jq", "keys", json={"b": 1, "a": 2})) == ["b", "a"]
    assert rig.value("jq", "query", filter=".", json=[1], raw_input=True) == '"[1]"'
    assert rig.value("jq", "query", filter=".", text="a", raw_input=True) == '"a"'
    (said,) = rig.client("jq").result("prompts/get", name="write-filter", arguments={"task": "count"})["messages"]
    assert "count" in said["content"]["text"]


CHANGES = [
    (("install", "anything"), ""),
    (("config", "set", "mine", "tone=terse"), ""),
    (("secret", "set", "mine", "key"), "x"),
    (("source", "add", "https://registry.example/registry.json"), ""),
    (("update", "mine"), ""),
    (("rollback", "mine"), ""),
    (("remove", "mine"), ""),
]

FAIL_ANYHOW = {"install", "update", "rollback"}
"""There is nothing to install, to update from, or to go back to."""


@pytest.mark.parametrize(("words", "stdin"), CHANGES, ids=[" ".join(words) for words, _ in CHANGES])
def test_T10_4_nothing_is_changed_with_the_read_only_profile(
    machine: tuple[ScriptRig, str], words: tuple[str, ...], stdin: str
) -> None:
    rig, profile = machine
    before = tree(rig)
    done = rig.mcpctl(*words, stdin=stdin)
    if profile == "read-only":
        assert done.returncode == 1
        assert "read-only and changes nothing" in done.stderr
        assert tree(rig) == before
    else:
        assert "read-only" not in done.stderr
        assert done.returncode == 0 or words[0] in FAIL_ANYHOW


def test_T10_4_the_same_by_the_option() -> None:
    with packaged() as rig:
        rig.start(
            str(BIN / "mcpd"), "--user", "--read-only", ready=lambda: rig.mcpctl("list").returncode == 0
        )  # fmt: skip
        rig.start_bridge()
        before = tree(rig)
        for words, stdin in CHANGES:
            done = rig.mcpctl(*words, stdin=stdin)
            assert (done.returncode, "read-only" in done.stderr) == (1, True), (words, done.stderr)
        assert tree(rig) == before
        assert rig.value("mine", "echo", text="called") == "called"
        assert rig.value("echo", "echo", message="called") == "called"
        # A file that its owner puts there is no change that mcpd makes.
        rig.put("later.py", HELLO)
        assert rig.value("later", "greet", name="you") == "Hello you!"
