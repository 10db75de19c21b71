# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl mcps build: a map is made of a source, whole or not at all."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from mcpd.scripts.contents import content_id, read
from tests.cli.map_files import HELLO

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Mcpctl


async def test_T10_1_a_map_is_built_with_its_contents(mcpctl: Mcpctl, home: Path, project: Path) -> None:
    out, cas = project / "mcps.json", home / ".local/share/mcp/cas"
    ended = await mcpctl("mcps", "build", str(project / "mcps.source.json"), "-o", str(out))
    assert (ended.code, ended.err) == (0, "")
    name = content_id(HELLO.encode())
    assert f"hello.definition_cid: {project}/hello.py is cid://{name}" in ended.out
    assert out.read_text().endswith("}\n")
    assert json.loads(out.read_text())["hello"]["definition_cid"] == f"cid://{name}"
    assert read(name, [cas]) == HELLO.encode()
    other = project / "elsewhere"
    printed = await mcpctl("mcps", "build", str(project / "mcps.source.json"), "-o", "-", "--contents", str(other))
    assert (printed.out, printed.err) == (out.read_text(), "")
    assert read(name, [other]) == HELLO.encode()


async def test_T10_1_what_cannot_be_built_leaves_everything_as_it_was(
    mcpctl: Mcpctl, home: Path, project: Path
) -> None:
    source, out = project / "mcps.source.json", project / "mcps.json"
    out.write_text("old")
    (project / "tools.py").write_text("def generate_tools(:\n")
    ended = await mcpctl("mcps", "build", str(source), "-o", str(out))
    assert (ended.code, ended.out, out.read_text()) == (1, "", "old")
    assert ended.err == f"mcpctl: {source}:2: entry 'hello': tools_transform_cid: tools.py:1: invalid syntax\n"
    assert not (home / ".local/share/mcp/cas").exists()
    assert (await mcpctl("mcps", "build", str(project / "absent"), "-o", str(out))).code == 1
    ended = await mcpctl("mcps", "build", str(source), "-o", str(project))
    assert ended.code == 2
    assert "is not a regular file" in ended.err
    assert (await mcpctl("mcps", "build", str(source), "-o", str(project / "new/mcps.json"))).code == 1
    assert not (project / "new").exists()


async def test_T10_1_the_directory_of_the_map_is_made(mcpctl: Mcpctl, home: Path, project: Path) -> None:
    out = home / ".config/mcp/mcps.d/mine.json"
    ended = await mcpctl("mcps", "build", str(project / "mcps.source.json"), "-o", str(out))
    assert ended.code == 0, ended.err
    assert "cid://" in out.read_text()


async def test_a_map_keeps_its_mode_and_the_link_to_it(mcpctl: Mcpctl, home: Path, project: Path) -> None:
    source, dotfiles, link = project / "mcps.source.json", project / "dotfiles", home / ".config/mcp/mcps.json"
    dotfiles.mkdir()
    target = dotfiles / "mcps.json"
    target.write_text("{}")
    target.chmod(0o600)
    link.symlink_to(target)
    ended = await mcpctl("mcps", "build", str(source), "-o", str(link))
    assert ended.code == 0, ended.err
    assert f"Wrote {target}, " in ended.out
    assert link.readlink() == target
    assert "cid://" in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o600
    target.unlink()
    assert (await mcpctl("mcps", "build", str(source), "-o", str(link))).code == 0
    assert (link.readlink(), target.stat().st_mode & 0o777) == (target, 0o644)
    link.unlink()
    link.symlink_to(link)
    ended = await mcpctl("mcps", "build", str(source), "-o", str(link))
    assert (ended.code, "is not a regular file" in ended.err, link.is_symlink()) == (2, True, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_nobody_elses_link_is_followed(mcpctl: Mcpctl, project: Path) -> None:
    target, link = project / "target.json", project / "mcps.json"
    target.write_text("old")
    link.symlink_to(target)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    ended = await mcpctl("mcps", "build", str(project / "mcps.source.json"), "-o", str(link))
    assert (ended.code, target.read_text()) == (2, "old")
    assert "is a symlink owned by another user; specify its target instead" in ended.err
