# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which clients a user has is seen by their files, directories and programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcpd.clients.detect import detect
from tests.unit.clients.deployment_parts import BY_HAND, ENTRY, User, family, ordinary

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from mcpd.clients.detect import DetectedClient

ALL = ("cursor", "vscode", "codex", "continue", "elsewhere")


def found(user: User, **environ: str) -> dict[str, DetectedClient]:
    return {each.family.id: each for each in detect([family(name) for name in ALL], user.home, environ)}


def test_nobody_has_clients_without_a_sign(user: User) -> None:
    assert found(user) == {}
    assert found(user, PATH="") == {}


def test_a_file_is_a_sign_and_its_servers_are_counted(user: User) -> None:
    path = user.servers(mine=BY_HAND, other=ENTRY)
    each = found(user)["cursor"]
    assert (each.file, each.exists, each.servers, each.problem, each.programs) == (path, True, 2, "", ())
    assert each.to_json() == {
        "client_id": "cursor",
        "display_name": "Cursor",
        "file": str(path),
        "exists": True,
        "servers": 2,
        "problem": "",
        "programs": [],
    }


def test_a_directory_is_a_sign(user: User) -> None:
    (user.home / ".cursor").mkdir()
    each = found(user)["cursor"]
    assert (each.exists, each.servers, each.problem) == (False, 0, "")


def test_a_program_is_a_sign(user: User, tmp_path: Path) -> None:
    program = tmp_path / "bin/codex-app"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    assert found(user, PATH=str(program.parent)) == {}
    program.chmod(0o755)
    assert found(user, PATH=f"/nowhere:{program.parent}")["codex"].programs == (str(program),)


def test_programs_are_looked_up_in_the_given_path_only(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    program = user.home / "cursor-app"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(user.home))
    assert found(user) == {}


def test_variables_of_the_client_count(user: User, tmp_path: Path) -> None:
    (tmp_path / "codex").mkdir()
    (tmp_path / "codex/config.toml").write_bytes(b'[mcp_servers.mine]\ncommand = "npx"\n')
    each = found(user, CODEX_HOME=str(tmp_path / "codex"))["codex"]
    assert (each.file, each.servers) == (tmp_path / "codex/config.toml", 1)


def test_a_broken_file_is_a_problem_of_its_client_alone(user: User) -> None:
    user.write(b"{", "cursor")
    user.write(b'{"servers": {"a": {"command": "x"}}}', "vscode")
    user.file("codex").parent.mkdir()
    os.mkfifo(user.file("codex"))
    user.file("continue").parent.mkdir()
    user.file("continue").symlink_to("nowhere")
    each = found(user)
    assert list(each) == ["cursor", "vscode", "codex", "continue"]
    assert str(user.file("cursor")) in each["cursor"].problem
    assert (each["vscode"].servers, each["vscode"].problem) == (1, "")
    assert "not a regular file" in each["codex"].problem
    assert "a symlink" in each["continue"].problem
    assert [each[name].servers for name in ("cursor", "codex", "continue")] == [None, None, None]
    assert all(each[name].exists for name in each)


def test_what_may_not_be_looked_into_is_no_fault(user: User) -> None:
    user.servers(mine=BY_HAND)
    user.file().parent.chmod(0)
    try:
        with ordinary():
            each = found(user)["cursor"]
    finally:
        user.file().parent.chmod(0o700)
    assert (each.exists, each.servers) == (False, None)
    assert "Permission denied" in each.problem


def test_looking_changes_nothing(user: User) -> None:
    user.servers(mine=BY_HAND)
    before = sorted(user.root.rglob("*"))
    found(user, PATH="/usr/bin")
    assert sorted(user.root.rglob("*")) == before
