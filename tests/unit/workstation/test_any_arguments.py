# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever a tool is given, it answers as it promises or says what is wrong, and touches nothing outside."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidArgument, McpdError, TimedOut
from mcpd.servers.workstation.tools import TOOLS
from mcpd.servers.workstation.workstation import Workstation
from tests.unit.workstation.arguments_of import Arguments
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.jail import Jail
    from mcpd.servers.workstation.tool import Tool

pytestmark = pytest.mark.process

HARD: Final = "hard"
SECRET: Final = "what lies outside is for nobody"
SECONDS: Final = 2
"""What a call may take that can say so."""
HANGS: Final = 90.0
"""Seconds after which a call is taken for one that does not end: its own time and all that ends it is long over."""
MADE: Final = 1_700_000_000
PIXEL: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FILES: Final[dict[str, bytes]] = {
    "Makefile": b"build:\n\t@echo built\ntest:\n\t@echo 'src/a.py:1: error: x'; exit 1\nlint:\n\t@true\n"
    b"say:\n\t@echo said\nclean:\n\t@rm -rf new\nfail:\n\t@exit 3\n",
    "package.json": b'{"name": "x", "version": "1.0.0", "scripts": {"build": "echo built", "test": "exit 1"}}\n',
    "pyproject.toml": b'[project]\nname = "x"\nversion = "1"\n',
    ".gitignore": b"*.log\n/ignored/\n",
    ".gitattributes": b"*.png binary\n",
    ".hidden": b"hidden\n",
    "src/a.py": b"x = 1\n\n\ndef f():\n    return x\n",
    "src/b.py": "s = 'é'\r\n".encode(),
    "docs/deep/er/text.md": b"# Text\n",
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "picture.png": PIXEL,
    "sixteen": "text of sixteen\n".encode("utf-16"),
    "latin": b"caf\xe9\n",
    "long": b"a" * 5000 + b"!\n" + b"line\n" * 500,
    "build": b"a file called as a target\n",
    "a file": b"with a space\n",
    "ünï\u0308": b"not ascii\n",
    "*.py": b"a glob\n",
    "-c": b"an option\n",
    "--output=new": b"an option\n",
    ":(top)": b"a pathspec\n",
    "new\nline": b"two lines\n",
    "caf\udce9": b"no UTF-8\n",
    "log.log": b"ignored\n",
}


@dataclass(frozen=True)
class Kept:
    """One thing of the root as it was made."""

    name: str
    mode: int
    content: bytes


class World:
    """A root like those that people have, and what lies beside it."""

    def __init__(self, directory: Path, bench: Workbench, runner: asyncio.Runner) -> None:
        self.bench = bench
        self._directory, self._runner = directory, runner
        self._fill()
        self._kept = self._keep()
        self._seen = self._look()
        self.workstation = Workstation(bench.settings, TOOLS)
        self.arguments = Arguments(root=bench.root, outside=bench.outside, home=bench.home)
        self.outside = bench.fingerprint()
        self._beside = sorted(directory.iterdir())

    def close(self) -> None:
        self._runner.run(self.workstation.close())

    def call(self, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the workstation answers. A relative path that it does not resolve itself is one outside."""

        async def jail() -> Jail:
            return self.workstation.roots.jail

        async def work() -> dict[str, Any]:
            async with asyncio.timeout(HANGS):
                return await self.workstation.call(tool.name, arguments, jail)

        with contextlib.chdir(self.bench.outside):
            return self._runner.run(work())

    def changed(self) -> bool:
        """Whether anything in the root has changed."""
        return self._look() != self._seen

    def restore(self) -> None:
        """Make the root what it was."""
        root = self.bench.root
        for entry in os.scandir(root):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else Path(entry.path).unlink()
        for each in self._kept:
            path = root / each.name
            if stat.S_ISDIR(each.mode):
                path.mkdir()
            elif stat.S_ISLNK(each.mode):
                path.symlink_to(os.fsdecode(each.content))
            elif stat.S_ISFIFO(each.mode):
                os.mkfifo(path)
            elif each.name == HARD:
                path.hardlink_to(self.bench.outside / "linked")
            else:
                path.write_bytes(each.content)
                os.utime(path, (MADE, MADE))
                path.chmod(stat.S_IMODE(each.mode))
        self._seen = self._look()

    def assert_the_outside_is_as_it_was(self) -> None:
        """Whatever has happened in the root, which may have been a name of a file outside, too."""
        outside = self.bench.outside
        assert (outside / "secret").lstat().st_nlink == 1
        assert (outside / "linked").lstat().st_nlink <= 2
        if self.changed():
            self.restore()
        assert self.bench.fingerprint() == self.outside
        assert sorted(self._directory.iterdir()) == self._beside

    def _fill(self) -> None:
        root, outside, home = self.bench.root, self.bench.outside, self.bench.home
        (outside / "secret").write_text(SECRET)
        (outside / "linked").write_text(SECRET)
        (outside / "below").mkdir()
        (outside / "below" / "secret").write_text(SECRET)
        (home / "private").write_text(SECRET)
        made = MadeRepository.make(root)
        links = {
            "out": "../outside", "out-file": str(outside / "secret"), "out-home": str(home), "in": "src",
            "dangling": "../outside/new", "loop": "loop", "src/up": "../../outside/secret",
        }  # fmt: skip
        for name, target in links.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).symlink_to(target)
        made.commit("First\n\nIt has a body.", files=FILES)
        made.git("tag", "-a", "v1.0", "-m", "A release")
        made.git("switch", "--quiet", "--create", "topic")
        made.commit("On the topic", files={"src/topic.py": "y = 2\n"})
        made.git("switch", "--quiet", "main")
        made.commit("Second", files={"src/a.py": b"x = 1\n\n\ndef f():\n    return x + 1\n", "src/c.py": b"z = 3\n"})
        made.write("src/c.py", "z = 4\n")
        made.git("stash", "push", "--quiet")
        made.write("src/b.py", "s = 'staged'\n")
        made.git("add", "src/b.py")
        made.write("src/a.py", FILES["src/a.py"] + b"# changed\n")
        made.write("untracked/file", "new\n")
        os.link(outside / "linked", root / HARD)
        os.mkfifo(root / "fifo")

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """All in the root, what is above before what is below: from the root, and what it is."""
        todo = [""]
        while todo:
            above = todo.pop()
            for entry in sorted(os.scandir(self.bench.root / above), key=lambda entry: entry.name):
                name = f"{above}{entry.name}"
                status = entry.stat(follow_symlinks=False)
                yield name, status
                if stat.S_ISDIR(status.st_mode):
                    todo.append(f"{name}/")

    def _keep(self) -> tuple[Kept, ...]:
        found = []
        for name, status in self._walk():
            path, content = self.bench.root / name, b""
            if stat.S_ISLNK(status.st_mode):
                content = os.fsencode(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            found.append(Kept(name, status.st_mode, content))
        return tuple(found)

    def _look(self) -> list[tuple[object, ...]]:
        """What tells whether anything has changed."""
        return [
            (name, each.st_ino, each.st_mode, each.st_nlink, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
            for name, each in (("", self.bench.root.lstat()), *self._walk())
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("any")
    with asyncio.Runner() as runner:
        made = World(directory, Workbench(directory, rate=1e9, burst=10**9, call_timeout=2.0 * SECONDS), runner)
        yield made
        made.close()


def disguises(secret: bytes) -> set[str]:
    """How *secret* may look in an answer."""
    shifted = (base64.b64encode(b"\0" * shift + secret).decode()[4:-4] for shift in range(3))
    sixteen = (secret[start:].decode(code, "ignore") for start in (0, 1) for code in ("utf-16-le", "utf-16-be"))
    return {
        secret.decode(),
        secret.hex(),
        hashlib.sha256(secret).hexdigest(),
        *shifted,
        *(each[:-1] for each in sixteen),
    }


DISGUISES: Final = disguises(SECRET.encode())


def assert_it_is_as_promised(tool: Tool, result: dict[str, Any]) -> None:
    assert set(result) == {"content", "structuredContent"}
    Draft202012Validator(tool.output_schema).validate(result["structuredContent"])
    assert result["content"]
    for block in result["content"]:
        assert block["type"] in {"text", "image", "audio", "resource"}


def said(value: object) -> str:
    """*value* as it is sent: JSON without NaN, in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


def try_it(world: World, tool: Tool, arguments: dict[str, Any]) -> None:
    """Call *tool* and hold whatever comes of it to what is promised."""
    if "timeout_seconds" in tool.input_schema["properties"]:
        arguments = {"timeout_seconds": SECONDS, **arguments}
    try:
        result = world.call(tool, arguments)
    except McpdError as fault:
        text = said([fault.message, fault.data])
        hangs = isinstance(fault, TimedOut) and "timeout_seconds" not in arguments
    else:
        assert_it_is_as_promised(tool, result)
        text, hangs = said(result), False
    assert not hangs
    assert not [each for each in DISGUISES if each in text]
    assert not (tool.read_only and world.changed())
    world.assert_the_outside_is_as_it_was()


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@given(data=st.data())
def test_arguments_that_fit_the_schema(world: World, tool: Tool, data: st.DataObject) -> None:
    try_it(world, tool, data.draw(world.arguments.valid(tool)))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@given(data=st.data())
def test_arguments_of_any_shape_never_break_a_tool(world: World, tool: Tool, data: st.DataObject) -> None:
    try_it(world, tool, data.draw(world.arguments.garbage(tool)))


def test_a_time_that_no_clock_knows_is_refused(world: World) -> None:
    tool = next(tool for tool in TOOLS if tool.name == "ci_build")
    with pytest.raises(InvalidArgument, match="timeout_seconds"):
        world.call(tool, {"timeout_seconds": 10**400})
