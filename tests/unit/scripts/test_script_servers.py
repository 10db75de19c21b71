# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script servers in the listing of the store (docs/scripts.md)."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import NotSupported, ReadOnly
from mcpd.paths import Scope
from mcpd.scripts import contents
from mcpd.scripts.inspection import inspect, interpreter, kind_of
from mcpd.store import Store
from tests.unit.scripts.script_parts import HELLO, age, listed, put, said, write
from tests.unit.store.store_trees import foreign

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Paths

pytestmark = pytest.mark.process


def test_a_script_is_a_server(paths: Paths, user: Store) -> None:
    path = put(paths.user.scripts, "hello.py")
    server = user.get("hello")
    manifest = server.manifest
    assert manifest is not None
    assert (manifest.summary, manifest.version, server.problem) == ("Greets.", "1.2", "")
    assert (server.scope, server.layer, server.writable) == (Scope.USER, "user", False)
    assert (manifest.runtime.sharing, manifest.runtime.call_timeout) == ("caller", 35)
    assert said(server) == {
        "path": str(path),
        "kind": "python",
        "sha256": contents.content_id(HELLO.encode()),
        "editable": True,
        "narrowed": False,
        "entry": {},
        "contents": [str(each) for each in paths.contents(Scope.USER)],
    }
    assert json.loads(user.launch_manifest("hello").data)["script"] == said(server)
    with pytest.raises(NotSupported, match=r"hello\.py"):
        user.manifest_path("hello")
    with pytest.raises(ReadOnly, match=r"hello\.py"):
        user.remove("hello")
    assert path.exists()


def test_the_system_does_not_look_into_homes(paths: Paths, system: Store) -> None:
    put(paths.user.scripts, "mine.py")
    put(paths.system.scripts, "ours.py")
    assert set(listed(system)) == {"ours"}


def test_a_users_script_comes_first_then_the_administrators_then_a_packages(paths: Paths, user: Store) -> None:
    for directory, text in (
        (paths.vendor_scripts, "vendor"),
        (paths.system.scripts, "system"),
        (paths.user.scripts, "user"),
    ):
        put(directory, "x.py", f'"""Of {text}."""\n')
        server = user.get("x")
        assert server.manifest is not None
        assert (server.manifest.summary, server.layer) == (f"Of {text}.", text)


def test_a_script_with_the_id_of_an_installed_server_is_reported_and_not_used(paths: Paths, user: Store) -> None:
    foreign(paths.vendor, "x")
    path = put(paths.user.scripts, "x.py")
    server = user.get("x")
    assert (server.layer, server.script, server.problem) == ("vendor", None, "")
    assert str(path) in server.clash
    path.unlink()
    assert user.get("x").clash == ""


def test_of_two_scripts_with_one_name_the_second_is_reported_and_not_used(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "x.py")
    other = put(paths.user.scripts, "x.sh", "#!/bin/sh\n")
    server = user.get("x")
    assert said(server)["kind"] == "python"
    assert str(other) in server.clash
    edits = user.edits()
    other.unlink()
    assert user.edits() != edits


def test_a_listing_without_edits_shows_the_last_scan(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "a.py")
    assert [server.id for server in user.list(edits=False)] == ["a"]
    put(paths.user.scripts, "b.py")
    assert [server.id for server in user.list(edits=False)] == ["a"]
    user.edits()
    assert [server.id for server in user.list(edits=False)] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("x.py", "def f(:\n    pass\n", ":1: "),
        ("x.py", "a = 1\n\nif a\n    pass\n", ":3: "),
        ("x.py", "\0", ":1: "),
        ("x.py", "(" * 5000, ":1: "),
        ("x.sh", "#!/bin/sh\nif true; then\n  echo x\n", ":4: "),
        ("x.sh", "#!/usr/bin/env bash\necho 'x\n", ":2: "),
        ("x.sh", "#!/bin/sh\n\0", ":1: "),
    ],
)
def test_a_script_with_a_syntax_error_is_listed_with_its_line(
    paths: Paths, user: Store, name: str, text: str, where: str
) -> None:
    path = put(paths.user.scripts, name, text)
    server = listed(user)["x"]
    assert server.manifest is None
    assert server.problem.startswith(f"{path}{where}")
    put(paths.user.scripts, name, "")
    assert user.get("x").problem == ""


def test_a_listing_runs_no_script(paths: Paths, user: Store, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    put(paths.user.scripts, "a.py", f"open({str(mark)!r}, 'w')\n")
    put(paths.user.scripts, "b.sh", f"#!/bin/sh\ntouch {mark}\n")
    put(paths.user.scripts, "c.sh", f"#!/bin/bash\n$(touch {mark})\n: $(( a[$(touch {mark})] ))\n")
    assert set(listed(user)) == {"a", "b", "c"}
    assert not mark.exists()


def test_other_files_are_not_listed(paths: Paths, user: Store) -> None:
    for name in ("_helper.py", ".hidden.py", "readme.txt", "noext", ".py"):
        put(paths.user.scripts, name)
    (paths.user.scripts / "directory.py").mkdir()
    os.mkfifo(paths.user.scripts / "pipe.py")
    (paths.user.scripts / "nowhere.py").symlink_to("/nonexistent")
    assert listed(user) == {}


def test_a_name_that_is_not_an_id_is_listed_with_its_problem(paths: Paths, user: Store) -> None:
    put(paths.user.scripts, "two words.py")
    put(paths.user.scripts, "meta.py")
    found = listed(user)
    assert "is not a server id" in found["two words"].problem
    assert "reserved" in found["meta"].problem


def test_an_edit_replaces_the_record_of_its_script_only(paths: Paths, user: Store) -> None:
    path = put(paths.user.scripts, "a.py")
    put(paths.user.scripts, "b.py")
    before, edits = listed(user), user.edits()
    assert user.edits() == edits
    assert all(listed(user)[key] is before[key] for key in before)
    path.write_text(HELLO.replace("Greets", "Meets"))
    assert user.edits() != edits
    after = listed(user)
    assert after["a"].manifest is not None
    assert after["a"].manifest.summary == "Meets."
    assert after["b"] is before["b"]
    path.unlink()
    assert set(listed(user)) == {"b"}


def test_a_restart_inspects_no_script_again(paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(paths.user.scripts, "a.py")
    put(paths.user.scripts, "b.py", "def f(:\n")
    before = listed(user)

    def never(*_: object) -> None:
        raise AssertionError("a script was read again")

    monkeypatch.setattr("mcpd.scripts.servers.inspect", never)
    again = listed(Store(paths, Scope.USER))
    assert [each.problem for each in again.values()] == [each.problem for each in before.values()]
    assert again["a"].manifest is not None
    assert again["a"].manifest.summary == "Greets."


@pytest.mark.parametrize("kept", ["", "[]", "{", '{"by": 1}', '{"by": "", "scripts": {"python:x": [1]}}'])
def test_a_broken_cache_is_ignored(paths: Paths, kept: str) -> None:
    put(paths.user.scripts, "a.py")
    write(paths.user.cache / "scripts.json", kept)
    server = Store(paths, Scope.USER).get("a")
    assert server.manifest is not None
    assert server.manifest.summary == "Greets."


# ---------------------------------------------------------------------------------------- inspection


@given(st.binary(max_size=300))
def test_any_python_script_can_be_inspected(data: bytes) -> None:
    found = inspect(data, "python")
    assert found.problem == "" or found.problem.split(":")[0].isdigit()
    assert kind_of(data) in {"python", "shell"}
    assert isinstance(interpreter(data), list)


def test_the_first_line_of_a_comment_is_the_summary() -> None:
    text = b"#!/bin/sh\n# SPDX-License-Identifier: MIT\n#\n# Says \x1b[31mhello.\n# More\necho\n"
    assert inspect(text, "shell").summary == "Says  [31mhello."
    assert inspect(b"echo\n# late\n", "shell").summary == ""


def test_a_file_that_changes_twice_at_once_is_not_taken_for_the_first(paths: Paths, user: Store) -> None:
    for round_ in range(20):
        put(paths.user.scripts, "x.py", f'"""Number {round_:02}."""\n')
        server = user.get("x")
        assert server.manifest is not None
        assert server.manifest.summary == f"Number {round_:02}."
    age(paths.user.scripts / "x.py")
    assert user.get("x") is user.get("x")


# ---------------------------------------------------------------------------------------- faults


def test_an_unreadable_script_hides_no_other_script(
    paths: Paths, user: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abcdef":
        put(paths.user.scripts, f"{name}.py")
    (paths.user.scripts / "loop.py").symlink_to("loop.py")
    for _ in range(3):
        found = listed(user)
        assert set(found) == {*"abcdef", "loop"}
        assert "loop.py: Too many levels" in found["loop"].problem
    assert user.edits() == user.edits()
    assert caplog.text.count("Too many levels") <= 1


def test_a_directory_that_cannot_be_read_is_logged_once(paths: Paths, caplog: pytest.LogCaptureFixture) -> None:
    paths.user.scripts.parent.mkdir(parents=True)
    paths.user.scripts.symlink_to(paths.user.scripts)
    store = Store(paths, Scope.USER)
    for _ in range(3):
        assert store.list() == []
    assert caplog.text.count("ignoring its scripts") == 1


def test_unusable_entries_do_not_count_as_changes(paths: Paths, user: Store) -> None:
    missing = {"definition_cid": "cid://" + "0" * 64}
    stored = {"definition_cid": contents.write(paths.user.contents, HELLO.encode())}
    write(paths.user.mcps, {"a": missing, "b": missing, "c": stored, "d": stored})
    before = listed(user)
    edits = user.edits()
    assert [user.edits() for _ in range(3)] == [edits] * 3
    assert all(each is before[key] for key, each in listed(user).items())
    assert {key: said(before[key])["path"] != "" for key in "cd"} == {"c": True, "d": True}


def test_only_verified_content_is_used(paths: Paths, user: Store) -> None:
    good = contents.write(paths.system.contents, HELLO.encode())
    paths.user.contents.mkdir(parents=True)
    (paths.user.contents / good).write_text('"""Forged."""\n')
    write(paths.system.mcps, {"ours": {"definition_cid": good}})
    write(paths.user.mcps, {"mine": {"definition_cid": good}})
    for server_id in ("ours", "mine"):
        server = user.get(server_id)
        assert said(server)["path"] == str(paths.system.contents / good)
        assert server.manifest is not None
        assert server.manifest.summary == "Greets."
    # Where a user can put something, an administrator's ids are not looked for at all.
    assert said(user.get("ours"))["contents"] == [str(each) for each in paths.contents(Scope.SYSTEM)]


def test_a_content_that_is_a_symlink_gives_no_access_to_the_directory_of_its_target(
    paths: Paths, user: Store, tmp_path: Path
) -> None:
    elsewhere = put(tmp_path / "elsewhere", "x.py")
    cid = contents.content_id(HELLO.encode())
    paths.user.contents.mkdir(parents=True)
    (paths.user.contents / cid).symlink_to(elsewhere)
    write(paths.user.mcps, {"x": {"definition_cid": cid}})
    server = user.get("x")
    # Its process looks for what it imports beside this path.
    assert said(server)["path"] == str(paths.user.contents / cid)
    assert not said(server)["editable"]
    assert server.directory == server.generation == paths.user.contents


def test_content_is_read_again_only_when_it_changes(paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cid = contents.write(paths.user.contents, HELLO.encode())
    write(paths.user.mcps, {"x": {"definition_cid": cid}})
    age(paths.user.contents / cid)
    user.get("x")
    read: list[str] = []
    real = contents.find
    monkeypatch.setattr(
        "mcpd.scripts.servers.contents.find", lambda text, *more: (read.append(text), real(text, *more))[1]
    )
    before = user.get("x")
    assert user.get("x") is before
    assert read == []
    (paths.user.contents / cid).write_text("tampered")
    assert "does not match" in user.get("x").problem
    assert read


def test_an_unreadable_content_store_breaks_only_the_servers_that_need_it(
    paths: Paths, user: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(paths.user.scripts, "a.py")
    write(paths.user.mcps, {"x": {"definition_cid": "cid://" + "0" * 64}})
    paths.user.contents.parent.mkdir(parents=True, exist_ok=True)
    paths.user.contents.symlink_to(paths.user.contents)
    found = listed(user)
    assert found["a"].problem == ""
    assert "definition_cid" in found["x"].problem


def test_a_revoked_permission_is_revoked_in_every_thread(paths: Paths, user: Store) -> None:
    """Threads that look at the map while it changes must not bring back what it said before."""
    names = [f"s{number}" for number in range(40)]
    for name in names:
        put(paths.user.scripts, f"{name}.py")
    stop = threading.Event()
    faults: list[BaseException] = []

    def look() -> None:
        while not stop.is_set():
            try:
                user.list()
                user.edits()
                user.get(names[0])
            except BaseException as error:  # noqa: BLE001 -- told below
                faults.append(error)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=look) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for round_ in range(30):
            granted = [] if round_ % 2 else ["network"]
            write(paths.user.mcps, {name: {"permissions": granted} for name in names})
            time.sleep(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert faults == []
    assert [each.manifest.permissions for each in user.list() if each.manifest is not None] == [[]] * len(names)


@given(st.text(max_size=200))
def test_any_shell_script_can_be_inspected(text: str) -> None:
    found = inspect(f"#!/bin/nosuchshell\n{text}".encode("utf-8", "surrogatepass"), "shell")
    assert found.problem == "" or found.problem.split(":")[0].isdigit()
    assert found.summary.isprintable()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#!/usr/bin/env bash", ["bash"]),
        ("#!/usr/bin/env -S bash -eu", ["bash", "-eu"]),
        ("#!/usr/bin/env -i A=b sh", ["sh"]),
        ("#!/usr/bin/env", []),
        ("#! /bin/sh -e", ["/bin/sh", "-e"]),
        ("echo", []),
    ],
)
def test_the_interpreter_is_found(line: str, words: list[str]) -> None:
    assert interpreter(f"{line}\n".encode()) == words
