# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a server is shown of the user's home, and how it knows where that is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidManifest
from mcpd.paths import HOME_VARIABLE, Scope
from tests.sandbox.world import talk

if TYPE_CHECKING:
    from tests.sandbox.world import World

pytestmark = pytest.mark.process

LOOK = """
import json, os, sys
def read(path):
    try: return open(path).read()
    except OSError as error: return error.strerror
def write(path):
    try: open(path, "a").write("!"); return True
    except OSError: return False
def replace(path):
    try: open(path + "~", "w").write("?"); os.rename(path + "~", path); return True
    except OSError: return False
paths = sys.argv[1:]
print(json.dumps({"home": os.environ.get("MCP_USER_HOME"), "read": {p: read(p) for p in paths},
    "changed": [p for p in paths if write(p) or replace(p)]}))
"""
ASKED: dict[str, Any] = {
    "transports": [{"type": "stdio", "command": "/usr/bin/python3", "args": ["-ISc", LOOK, "{config.look}"]}]
}


async def looked(world: World, *permissions: str, scope: Scope = Scope.USER, **values: Any) -> dict[str, Any]:
    world.install("server", permissions=list(permissions), values=values, scope=scope, **ASKED)
    output, ended, _ = await talk(world.sessions(scope=scope), "server", environment={HOME_VARIABLE: "/the/callers"})
    assert ended.code == 0, ended.stderr_tail
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.mark.parametrize(
    ("permissions", "told"),
    [
        (["filesystem:ro:~/.missing"], True),
        (["filesystem:rw:{config.roots}"], True),
        (["filesystem:ro:{config.one}"], True),
        (["filesystem:ro:~/src?yes"], True),
        (["filesystem:ro:~/src?no"], False),
        (["filesystem:ro:/srv", "filesystem:ro:{config.unset}"], False),
        ([], False),
    ],
)
async def test_who_is_granted_something_of_the_users_home_is_told_where_it_is(
    world: World, permissions: list[str], told: bool
) -> None:
    (world.paths.home / "src").mkdir()
    values: dict[str, Any] = {"roots": ["/srv", "~/src"], "one": "~/src", "yes": True, "no": False}
    found = await looked(world, *permissions, **values)
    assert found["home"] == (str(world.paths.home) if told else None)


async def test_a_list_of_paths_is_granted_and_handed_over_with_the_home_still_to_fill_in(world: World) -> None:
    """What the permission expands, the server can expand with what it is told."""
    (world.paths.home / "src").mkdir()
    (world.paths.home / "src/file").write_text("text")
    program = LOOK.replace(
        "sys.argv[1:]", "[os.environ['MCP_USER_HOME'] + each[1:] + '/file' for each in sys.argv[1:]]"
    )
    world.install(
        "server",
        permissions=["filesystem:rw:{config.roots}"],
        transports=[{"type": "stdio", "command": "/usr/bin/python3", "args": ["-ISc", program, "{config.roots}"]}],
        values={"roots": ["~/src"]},
    )
    output, ended, _ = await talk(world.sessions(scope=Scope.USER), "server")
    assert ended.code == 0, ended.stderr_tail
    assert json.loads(output)["read"] == {f"{world.paths.home}/src/file": "text"}


async def test_a_server_of_the_system_has_no_users_home(world: World) -> None:
    found = await looked(world, "filesystem:ro:{config.unset}", scope=Scope.SYSTEM)
    assert found["home"] is None
    with pytest.raises(InvalidManifest, match="no home"):
        await looked(world, "filesystem:ro:{config.roots}", scope=Scope.SYSTEM, roots=["~/src"])


async def test_a_file_that_a_symlink_in_the_home_leads_to_is_read_under_both_names(world: World) -> None:
    """As in ``~/.gitconfig -> dotfiles/git/config``."""
    home = world.paths.home
    (home / "dotfiles/git").mkdir(parents=True)
    real = home / "dotfiles/git/config"
    real.write_text("[user]")
    (home / "dotfiles/git/private").write_text("")
    (home / ".gitconfig").symlink_to("dotfiles/git/config")
    (home / ".config").mkdir()
    (home / ".config/git").symlink_to(home / "dotfiles/git")
    beside, linked = real.with_name("private"), home / ".config/git/config"
    look = [str(path) for path in (home / ".gitconfig", linked, real, beside)]
    found = await looked(world, "filesystem:ro:~/.gitconfig", "filesystem:ro:~/.config/git/config", look=look)
    assert found["read"] == {
        str(home / ".gitconfig"): "[user]",
        str(linked): "[user]",
        str(real): "[user]",
        str(beside): "No such file or directory",
    }
    # Around what is shown lies an empty place of the sandbox's own, in which a name can be replaced.
    assert str(real) not in found["changed"]
    assert real.read_text() == "[user]"
    assert (home / ".gitconfig").is_symlink()


@pytest.mark.parametrize("root", ["~", "~/dotfiles"])
async def test_what_may_only_be_read_stays_so_in_a_directory_that_may_be_written(world: World, root: str) -> None:
    home = world.paths.home
    (home / "dotfiles").mkdir()
    real = home / "dotfiles/gitconfig"
    real.write_text("[user]")
    (home / ".gitconfig").symlink_to("dotfiles/gitconfig")
    other = home / "dotfiles/other"
    other.write_text("")
    look = [str(path) for path in (real, other)]
    found = await looked(world, "filesystem:rw:{config.roots}", "filesystem:ro:~/.gitconfig", look=look, roots=[root])
    assert found["read"] == {str(real): "[user]", str(other): ""}
    assert found["changed"] == [str(other)]
    assert other.read_text() == "!"
    assert real.read_text() == "[user]"
