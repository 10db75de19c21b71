# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a script server is: read from its manifest, or from the script alone."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, InvalidManifest, NotFound
from mcpd.model.mcps import CALL_TIMEOUT
from mcpd.scripts.inspection import MAX_SCRIPT
from mcpd.servers.scripts.definition import MAX_MANIFEST, alone, read
from tests.unit.scripts.facility_parts import define

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_a_manifest_says_what_the_server_is(tmp_path: Path) -> None:
    found = define(tmp_path, "def f(): pass\n", variables={"a": 1}, runtime={"callTimeout": 7, "output": 4096})
    assert (found.id, found.title, found.description, found.version) == ("thing", "Thing", "Does things.", "1.2")
    assert (found.kind, found.source) == ("python", "def f(): pass\n")
    assert (found.limits().seconds, found.limits().output) == (7, 4096)
    assert found.context() == {
        "server_name": "thing",
        "path": str(tmp_path / "thing.py"),
        "config": {"key": "value"},
        "variables": {"a": 1},
        "entry": {"variables": {"a": 1}, "runtime": {"callTimeout": 7, "output": 4096}},
    }


def test_the_limits_have_defaults(tmp_path: Path) -> None:
    limits = define(tmp_path, "def f(): pass\n").limits()
    assert (limits.seconds, limits.memory, limits.processes, limits.output) == (CALL_TIMEOUT, 1 << 30, 256, 10 << 20)


def test_there_may_be_no_script(tmp_path: Path) -> None:
    found = define(tmp_path, variables={"a": 1})
    assert (found.path, found.kind, found.source) == ("", "", "")


@pytest.mark.parametrize(("suffix", "kind"), [(".py", "python"), (".sh", "shell")])
def test_a_script_is_served_alone(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"my tool{suffix}"
    path.write_text("#!/bin/sh\n")
    found = alone(path)
    assert (found.id, found.kind, found.path, dict(found.raw)) == ("my.tool", kind, str(path), {})


def test_an_encoding_that_the_script_names_is_used(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_bytes('# -*- coding: latin-1 -*-\nX = "é"\n'.encode("latin-1"))
    assert '"é"' in alone(path).source


@pytest.mark.parametrize("content", [b"# \xff\n", b"# coding: martian\n"])
def test_a_source_that_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(content)
    with pytest.raises(InvalidManifest, match=r"odd\.py"):
        alone(path)


@pytest.mark.parametrize("name", ["tool.txt", "tool", "....py"])
def test_what_is_no_script_by_its_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(InvalidArgument, match=name):
        alone(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "../thing"}, "server id"),
        ({"script": None}, "script"),
        ({"script": {"kind": "perl"}}, "kind"),
        ({"script": {"entry": {"tools": []}}}, "tools"),
        ({"script": {"entry": {"runtime": {"workers": 65}}}}, "workers"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps({"id": "thing", "script": {}} | change))
    with pytest.raises(InvalidManifest, match=says):
        read(file)


def test_files_that_are_missing_or_too_large_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.py"):
        alone(tmp_path / "none.py")
    with pytest.raises(NotFound, match=r"none\.json"):
        read(tmp_path / "none.json")
    (tmp_path / "large.py").write_bytes(b"#" * (MAX_SCRIPT + 1))
    with pytest.raises(InvalidManifest, match=rf"large\.py.*{MAX_SCRIPT}"):
        alone(tmp_path / "large.py")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MAX_MANIFEST + 1)
    with pytest.raises(InvalidManifest, match=r"large\.json"):
        read(tmp_path / "large.json")


@pytest.mark.parametrize(
    ("name", "editable", "fits"),
    [("content", None, False), ("content", False, False), ("thing.sh", False, False), ("thing.sh", True, True)],
)
def test_a_script_by_its_content_has_to_be_that(tmp_path: Path, name: str, editable: bool | None, fits: bool) -> None:
    """A file in a directory of scripts may have been edited since mcpd has looked at it."""
    path, manifest = tmp_path / name, tmp_path / "manifest.json"
    path.write_text("#!/bin/sh\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    script: dict[str, Any] = {
        "path": str(path),
        "kind": "shell",
        "sha256": digest,
        "entry": {"definition_cid": f"cid://{digest}"},
    }
    if editable is not None:
        script["editable"] = editable
    manifest.write_text(json.dumps({"id": "thing", "script": script}))
    assert (read(manifest).digest, read(manifest).managed) == (digest, True)
    path.write_text("#!/bin/sh\necho other\n")
    if fits:
        assert read(manifest).digest == hashlib.sha256(path.read_bytes()).hexdigest()
    else:
        with pytest.raises(InvalidManifest, match="not what its id"):
            read(manifest)


def test_a_fault_of_the_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(b"a = 1\nb = 2\n# \xff\n")
    with pytest.raises(InvalidManifest, match=r"odd\.py:3: "):
        alone(path)
