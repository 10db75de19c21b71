# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands of the tools: their environment, limits and output."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from mcpd.errors import NotFound, from_oserror
from mcpd.model import printable
from mcpd.paths import make_private
from mcpd.servers.commands import system
from mcpd.servers.commands.repositories import Protected, Repositories
from mcpd.servers.commands.running import Runner, Start, Streams
from mcpd.servers.commands.system import descriptors
from mcpd.servers.workstation.jail import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place
    from mcpd.servers.workstation.settings import Settings


class Environment:
    """The environment of all commands of one server."""

    def __init__(self, settings: Settings) -> None:
        """Create the home directory of commands below the state directory, and a directory for temporary files.

        Raises McpdError.
        """
        self._home = settings.state / "home"
        try:
            make_private(self._home)
        except OSError as error:
            raise from_oserror(error, f"making {self._home}") from error
        self._temporary = tempfile.mkdtemp(prefix="mcp-workstation-")
        self.missing = tuple(str(each) for each in settings.toolchains if not each.is_dir())
        """The configured toolchains that do not exist."""
        self._search = ":".join((*(str(_programs(each)) for each in settings.toolchains), system.PROGRAMS))
        self.readable = (*system.READABLE, *map(str, settings.toolchains))
        self.writable = (str(self._home), self._temporary, *system.devices(confined=settings.confined))
        self.confined = settings.confined
        self.is_offline = not settings.allow_network and not system.is_isolated()
        """True if commands have to be isolated from the network here, as no outer sandbox does it."""
        self.variables = self._variables(settings)

    def which(self, program: str) -> str | None:
        """Return the absolute path of *program*, a name or an absolute path, or None if it cannot be executed."""
        return shutil.which(program, path=self._search)

    def close(self) -> None:
        """Delete the temporary files."""
        # Builds leave trees deeper than Python's recursion limit, and arbitrary symlinks; rm handles both.
        command = ("/bin/rm", "-rf", "--one-file-system", "--", self._temporary)
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)

    def _variables(self, settings: Settings) -> dict[str, str]:
        given = system.variables(
            home=str(self._home), temporary=self._temporary, search=self._search, network=settings.allow_network
        )
        given["CI"] = "1"
        if (zone := os.environ.get("TZ")) is not None:
            given["TZ"] = zone
        for toolchain in settings.toolchains:
            if (toolchain / "toolchains").is_dir() and (toolchain / "settings.toml").is_file():
                given["RUSTUP_HOME"] = str(toolchain)
        return given


def _programs(toolchain: Path) -> Path:
    below = toolchain / "bin"
    return below if below.is_dir() else toolchain


MAX_OUTPUT: Final = 4 * 1024 * 1024
_TAIL: Final = 16 * 1024

log = logging.getLogger("mcp-workstation")


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run."""

    argv: tuple[str, ...]
    """The program, looked up as :meth:`Processes.which` does, and its arguments."""
    place: Place
    """The directory in which it is started."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of :class:`Environment`."""
    writes: bool = False
    """True if it may write in the roots, which it may always read; HOME and TMPDIR are always writable."""
    git_directories: tuple[str, ...] = ()
    """Real paths of git directories that it may write to as well; only commands of git have some."""
    readable: tuple[str, ...] = ()
    """Absolute paths that it may read, if they exist, in addition to those of the system and the toolchains."""
    stdin: bytes = b""
    most: int = MAX_OUTPUT
    """Maximum size in bytes of the stdout, and of the stderr, that is kept."""
    keep: Literal["head", "tail"] = "head"
    """The part that is kept of longer output. With "head", a command that has filled its stdout is ended at once."""
    merge: bool = False
    """True to send stderr to stdout, in order."""
    on_line: Callable[[bytes], None] | None = None
    """Called with each line of stdout, without newline, in the loop's thread, while the command runs."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command."""

    code: int
    """Its exit status; 128 + n if signal n ended it."""
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    truncated: bool
    """True if stdout was longer than the part that is kept."""


class Processes:
    """Runs commands, each with a supervisor, concurrently."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._runner = Runner(log)
        self._repositories = Repositories()

    def close(self) -> None:
        """Release the supervisors; no calls are running any more."""
        self._runner.close()

    def which(self, program: str) -> str | None:
        """Return the absolute path of *program*, searched for in the toolchains, then the system's directories.

        An absolute path is returned itself if it can be executed, else None.
        """
        return self._environment.which(program)

    async def run(self, command: Command, call: Call) -> Completed:
        """Run *command* as :meth:`.call.Call.run` describes."""
        streams = Streams(
            stdin=command.stdin,
            most=command.most,
            most_errors=command.most,
            keep=command.keep,
            merge=command.merge,
            on_line=command.on_line,
        )
        ended = await self._runner.run(
            command.argv[0], lambda stack: self._start(stack, command, call), streams, call.left
        )
        if ended.code is None:
            fault = call.timed_out()
            fault.data = {"output": (ended.stdout or ended.stderr)[-_TAIL:].decode(errors="replace")}
            raise fault
        return Completed(ended.code, ended.stdout, ended.stderr, ended.truncated)

    def _start(self, stack: ExitStack, command: Command, call: Call) -> Start:
        name, environment = command.argv[0], self._environment
        program = self.which(name)
        if program is None:
            gone = [printable(each) for each in environment.missing]
            missing = f"; of these {', '.join(gone)} is not there" if gone else ""
            raise NotFound(f"{name} is not installed; install it, or add the directory it is in to toolchains{missing}")
        directory = stack.enter_context(call.jail.opened(command.place, os.O_PATH | os.O_DIRECTORY))
        roots = [root.fd for root in call.jail.roots]
        protected = Protected()
        trusted = call.settings.allow_hooks and bool(command.git_directories)
        if command.writes and not (trusted or call.settings.commands_write_git):
            protected = self._repositories.find(
                [path_of(root) for root in roots], path_of(directory), command.git_directories
            )
        return Start(
            argv=command.argv,
            program=program,
            env={**environment.variables, **command.env},
            directory=directory,
            readable=[*descriptors(stack, (*environment.readable, *command.readable)), *roots],
            writable=[*descriptors(stack, environment.writable), *(roots if command.writes else ())],
            protected=protected,
            offline=environment.is_offline,
            # The sandbox around this process contains only the roots.
            unheld=environment.confined and call.jail.whole,
        )
