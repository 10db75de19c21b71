# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of the README on a booted Debian, as they are printed, one block after the other."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests.install.install_parts import tarball
from tests.install.npm_registry import SERVER_JS
from tests.system.image import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.system.machine import Machine

pytestmark = pytest.mark.skipif(os.environ.get("MCPD_SYSTEM_FROM") == "tree", reason="there are no packages")

README: Final = (PROJECT / "README.md").read_text()
HOME: Final = "/home/alice"
CHECKOUT: Final = "works on a checkout, not on what is installed"
LEFT_OUT: Final = {
    "make deb": CHECKOUT,
    "apt install ./build/deb/mcpd*.deb": "test_package.py runs it, where the packages are not installed",
}  # fmt: skip
"""Commands that are not run, and why."""
ANSWERS: Final = {
    "mcpctl client deploy cursor": [("Write this to ~/.cursor/mcp.json? [y/N] ", "y")],
    "mcpctl --system install pypi:mcp-server-time --run-as system --reinstall": [("Do you agree? [y/N] ", "y")],
    "mcpctl install npm:some-server --permission network --secret API_KEY": [("API_KEY: ", "sk-1234")],
}
"""Commands that ask something, with the questions and answers."""
PRINTED: Final = {
    "mcpctl call hello greet name=World": "Hello World!",
    "mcpctl call workstation ci_test path=.": "all is well",
    "mcpctl search browser": "playwright-mcp",
    "mcpctl show playwright-mcp": "may use the network",
    'mcpctl ensemble run text-statistics "Some text."': "words",
    "mcpctl call mcp-server-time get_current_time timezone=Europe/Vienna": "Europe/Vienna",
    "curl -s http://127.0.0.1:2$UID/mcp/date": '"tools":[',
    "manager org.mcpd.Mcp1.Manager.ListServers '{}'": "workstation",
}
"""Part of what a command prints, by its first line."""
TIME: Final = """
cp -r /srv/src/echo /srv/time && cd /srv/time
sed -i 's/mcp-echo/mcp-server-time/' pyproject.toml
sed -i 's/"echo"/"get_current_time"/; s/"text"/"timezone"/' mcp_echo.py
python3 -m pip wheel -q --no-index --no-deps -w /srv/wheels .
"""
"""A stand-in for the package that the README installs from PyPI."""
REGISTRY: Final = "http://127.0.0.1:4873"
CLEAN_UP: Final = f"""
systemctl --user disable --now mcpd-bridge-tcp.socket
mcpctl script remove hello
mcpctl remove some-server
mcpctl client undo cursor
mcpctl config unset workstation roots
mcpctl config unset llm-orc projects
rm -r {HOME}/.cursor {HOME}/src {HOME}/hello.py {HOME}/.npmrc
"""


def blocks() -> list[list[str]]:
    """The blocks of the README that are for a shell, as the commands in each with their prompt."""
    texts = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [re.split(r"\n(?=[$#] )", text.rstrip("\n")) for text in texts]


def words(command: str) -> str:
    """*command* without its prompt, continuation lines and comment."""
    return re.split(r" \\\n| +# ", command[2:])[0].strip()


def file(name: str) -> str:
    """The file *name* that the README prints in its first block of Python code."""
    assert f"`{name}`" in README
    found = re.search(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def fill_registry(directory: Path) -> None:
    """Write the answers of an npm registry that has the package some-server to *directory*."""
    about = {"name": "some-server", "version": "1.0.0", "bin": "index.js"}
    packed = tarball({"package/package.json": json.dumps(about), "package/index.js": SERVER_JS})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    version = about | {"dist": {"tarball": f"{REGISTRY}/some-server.tgz", "integrity": integrity}}
    directory.mkdir()
    (directory / "some-server.tgz").write_bytes(packed)
    listed = {"name": "some-server", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (directory / "some-server").write_text(json.dumps(listed))


@pytest.fixture
def prepared(machine: Machine) -> Iterator[Machine]:
    """A machine on which alice has a project and the file that the README prints."""
    machine.write(f"{HOME}/hello.py", file("hello.py"), owner="alice")
    machine.write(f"{HOME}/src/project/package.json", '{"scripts": {"test": "echo all is well"}}', owner="alice")
    machine.run("chown", "-R", "alice:", f"{HOME}/src")
    machine.run("mkdir", "-p", f"{HOME}/src/project/.llm-orc", f"{HOME}/.cursor", user="alice")
    machine.run("/bin/sh", "-ec", TIME)
    fill_registry(machine.root / "srv/npm")
    machine.write(f"{HOME}/.npmrc", f"registry={REGISTRY}/\n", owner="alice")
    serve = ("/usr/bin/python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", "/srv/npm", "4873")
    registry = machine.popen(*serve, user="bob", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert registry.stdout
    assert registry.stdout.readline().startswith(b"Serving")
    # Clients may have started the bridge before the port is enabled.
    connect = 'curl -s --unix-socket "$XDG_RUNTIME_DIR/mcp/bridge.sock" http://bridge/'
    machine.run("/bin/sh", "-c", connect, user="alice")
    assert machine.property("mcpd-bridge.service", "ActiveState", "--user", user="alice") == "active"
    yield machine
    machine.run("/bin/sh", "-c", CLEAN_UP, user="alice")
    machine.run("/bin/sh", "-c", "rm -r /srv/time /srv/npm /srv/wheels/mcp_server_time-*")
    registry.kill()
    registry.wait()


def test_what_is_left_out_is_in_the_readme() -> None:
    printed = {words(command) for block in blocks() for command in block}
    assert LEFT_OUT.keys() | ANSWERS.keys() | PRINTED.keys() <= printed


def test_the_commands_of_the_readme_work_as_printed(prepared: Machine) -> None:
    for block in blocks():
        commands = [command for command in block if words(command) not in LEFT_OUT]
        # The system's servers are administered as root, who means them without an option.
        user = "root" if "--system" in "".join(block) else "alice"
        aliases = ""
        for command in commands:
            assert command.startswith("$ ")
            if command.startswith("$ alias"):
                aliases += command[2:] + "\n"
                continue
            script = f"cd {HOME}; shopt -s expand_aliases\n{aliases}{command[2:]}\n"
            if questions := ANSWERS.get(words(command)):
                with prepared.terminal("/bin/bash", "-c", script, user=user) as terminal:
                    for question, answer in questions:
                        terminal.expect(question, timeout=120)
                        terminal.type(answer)
                    assert terminal.end() == 0, terminal.shown
                continue
            done = prepared.run("/bin/bash", "-c", script, user=user, check=False)
            print(command, done.stdout, done.stderr, sep="\n")
            assert done.returncode == 0, command
            assert PRINTED.get(words(command), "") in done.stdout, command
