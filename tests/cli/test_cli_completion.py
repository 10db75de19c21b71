# SPDX-License-Identifier: LGPL-2.1-or-later
"""What bash, zsh and fish offer for mcpctl, asked of the real shells."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest

from mcpd.bus import codec
from mcpd.cli.parser import build_parser
from mcpd.errors import ServiceUnavailable

if TYPE_CHECKING:
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

REPOSITORY = Path(__file__).parents[2]
BASH = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_TYPE=9
_python_argcomplete mcpctl
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -U compinit && compinit -u -D
source $1
_describe() { print -rl -- "${completions[@]}" }
BUFFER=$2 CURSOR=${#2} words=(${(z)2})
_python_argcomplete
"""
FISH = """
source $argv[1]
complete -C $argv[2]
"""
SHELLS = {
    "bash": (["bash", "--norc", "-c", BASH, "bash"], "mcpctl"),
    "zsh": (["zsh", "-f", "-c", ZSH, "zsh"], "_mcpctl"),
    "fish": (["fish", "--no-config", "-c", FISH], "mcpctl.fish"),
}
needs = {name: pytest.mark.skipif(which(name) is None, reason=f"{name} is not installed") for name in SHELLS}
every_shell = pytest.mark.parametrize("shell", [pytest.param(name, marks=needs[name]) for name in SHELLS])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that are installed for the shells."""
    directory = tmp_path_factory.mktemp("completions")
    subprocess.run([sys.executable, REPOSITORY / "packaging/gen-completions.py", directory], check=True)
    return directory


class Shells:
    """Asks a shell what may follow a line."""

    def __init__(self, files: Path, environ: dict[str, str]) -> None:
        self.files = files
        self.environ = environ

    async def __call__(self, shell: str, line: str) -> dict[str, str]:
        """What *shell* offers, with its descriptions (bash shows none)."""
        argv, name = SHELLS[shell]
        done = await asyncio.to_thread(
            subprocess.run,
            [*argv, str(self.files / name), line],
            env=self.environ,
            cwd=self.environ["HOME"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        separator = re.compile(r"\t" if shell == "fish" else r"(?<!\\):" if shell == "zsh" else r"$^")
        rows = [separator.split(row, maxsplit=1) for row in done.stdout.splitlines() if row]
        return {row[0].replace("\\:", ":").strip(): row[1] if len(row) > 1 else "" for row in rows}


@pytest.fixture
def shells(files: Path, mcpctl: Mcpctl, tmp_path: Path) -> Shells:
    """Shells in which ``mcpctl`` is a command, on the bus of the test."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "home").mkdir()
    program = programs / "mcpctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mcpd.cli.main "$@"\n')
    program.chmod(0o755)
    return Shells(files, mcpctl.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)})


PROPERTIES: list[dict[str, object]] = [
    {"key": "unit", "label": "Unit of temperature", "sensitive": False, "required": False},
    {"key": "API_KEY", "label": "API key", "sensitive": True, "required": False},
]


@every_shell
async def test_every_command_is_offered(shells: Shells, shell: str) -> None:
    action = next(action for action in build_parser()._actions if action.dest == "command")
    assert set(action.choices or ()) <= set(await shells(shell, "mcpctl "))


@every_shell
async def test_commands_and_options_are_completed(shells: Shells, shell: str) -> None:
    assert set(await shells(shell, "mcpctl config un")) == {"unset"}
    assert set(await shells(shell, "mcpctl remove --keep")) == {"--keep-config"}


@every_shell
async def test_installed_servers_are_offered_with_what_they_do(shells: Shells, mcpd: FakeMcpd, shell: str) -> None:
    mcpd.servers["b.other"] = mcpd.servers["calculator"] | {"id": "b.other", "summary": "Has: a\ncolon\x1b[31m"}
    for line in ("mcpctl --user config get ", "mcpctl --user run ", "mcpctl --user remove calculator "):
        offered = await shells(shell, line)
        assert {"calculator", "b.other"} <= set(offered)
        assert shell != "fish" or offered["calculator"] == "Adds numbers"
    assert set(await shells(shell, "mcpctl --user logs calc")) == {"calculator"}


@every_shell
async def test_only_scripts_of_ones_own_are_offered_to_remove(shells: Shells, mcpd: FakeMcpd, shell: str) -> None:
    own = Path(shells.environ["HOME"], ".local/share/mcp/scripts")
    system = Path(shells.environ["MCP_ROOT"], "etc/mcp/scripts")
    for directory, name in ((own, "mine.py"), (own, "other.sh"), (own, "_helper.py"), (system, "theirs.py")):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    offered = set(await shells(shell, "mcpctl --user script remove "))
    assert {"mine", "other"} <= offered
    assert not offered & {"calculator", "_helper", "theirs"}
    assert set(await shells(shell, "mcpctl --system script remove t")) == {"theirs"}


@every_shell
async def test_the_properties_of_the_server_are_offered(shells: Shells, mcpd: FakeMcpd, shell: str) -> None:
    mcpd.servers["calculator"]["configurable-properties"] = PROPERTIES
    assert "unit=" in await shells(shell, "mcpctl --user config set calculator u")
    assert set(await shells(shell, "mcpctl --user secret set calculator A")) == {"API_KEY"}
    assert "API_KEY" not in await shells(shell, "mcpctl --user config unset calculator ")


@every_shell
async def test_the_catalog_and_files_are_offered_to_install(shells: Shells, mcpd: FakeMcpd, shell: str) -> None:
    mcpd.pages = [[{"id": "com.example.weather", "summary": "Tells the weather"}]]
    home = Path(shells.environ["HOME"])
    (home / "weather.json").write_text("{}")
    assert set(await shells(shell, "mcpctl --user install com.ex")) == {"com.example.weather"}
    assert set(await shells(shell, "mcpctl --user install ./wea")) == {"./weather.json"}
    mcpd.pages[0][0]["version"] = "1.2.0"
    assert set(await shells(shell, "mcpctl --user install com.example.weather --version 1")) == {"1.2.0"}


@every_shell
async def test_what_a_command_has_no_effect_on_is_not_offered(shells: Shells, mcpd: FakeMcpd, shell: str) -> None:
    own = mcpd.servers["calculator"]
    mcpd.servers |= {
        "newer": own | {"id": "newer", "state": "updatable", "available-version": "2.0", "pinned": True},
        "waiting": own | {"id": "waiting", "pending-version": "3.0"},
    }
    mcpd.generations = [
        {"generation": codec.Variant("u", at), "version": f"{at}.0", "state": state}
        for at, state in ((3, "active"), (2, "previous"))
    ]
    mcpd.sources = [
        {"url": "https://r.example/r.json", "read-only": True},
        {"url": "file:///r.json", "read-only": False, "file": "/c/mcp/sources.list.d/own.toml"},
    ]
    expected = {
        "update ": {"newer"}, "approve ": {"waiting"}, "approve --drop ": {"waiting"},
        "pin ": {"calculator", "waiting"}, "pin --remove ": {"newer"},
        "rollback newer --to ": {"2"}, "search --source h": {"https://r.example/r.json"},
        "source remove f": {"file:///r.json"}, "source remove o": {"own"},
    }  # fmt: skip
    for line, values in expected.items():
        offered = set(await shells(shell, f"mcpctl --user {line}"))
        known = {*mcpd.servers, "2", "3", "own", *(source["url"] for source in mcpd.sources)}
        assert offered & known == values, line


@every_shell
async def test_without_mcpd_there_is_nothing_and_no_noise(shells: Shells, mcpd: FakeMcpd, shell: str) -> None:
    mcpd.errors["ListServers"] = ServiceUnavailable("gone")
    assert not {"calculator"} & set(await shells(shell, "mcpctl --user run calc"))


@needs["zsh"]
def test_zsh_completes_what_is_typed(shells: Shells, tmp_path: Path) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], shells.environ | {"TERM": "dumb"})
    try:
        setup = f"fpath=({shells.files} $fpath); autoload -U compinit; compinit -u -D; echo rea''dy"
        os.write(fd, f"{setup}\n".encode())
        read_until(fd, b"ready\r\n")
        os.write(fd, b"mcpctl rollb\t")
        read_until(fd, b"rollback")
    finally:
        os.close(fd)
        os.waitpid(pid, 0)


def read_until(fd: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        piece = os.read(fd, 4096)
        assert piece, seen
        seen += piece
