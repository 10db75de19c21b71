# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands of the tools: started without a shell, held to the roots by the kernel, and ended with all they started."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from mcpd.errors import NotFound
from mcpd.model import printable
from mcpd.servers.commands.repositories import Protected, Repositories
from mcpd.servers.commands.running import Runner, Start, Streams
from mcpd.servers.commands.system import descriptors
from mcpd.servers.workstation.jail import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.environment import Environment
    from mcpd.servers.workstation.jail import Place

MAX_OUTPUT: Final = 4 * 1024 * 1024
_TAIL: Final = 16 * 1024

log = logging.getLogger("mcp-workstation")


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    argv: tuple[str, ...]
    """The program, looked up as :meth:`Processes.which` does, and its arguments."""
    place: Place
    """The directory it is started in."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those of :mod:`.environment`."""
    writes: bool = False
    """Whether it may write in the roots; reading them it may in any case. In HOME and TMPDIR it always may write."""
    git_directories: tuple[str, ...] = ()
    """Real paths of the git directories that it may write to as well; only a command of git has some."""
    readable: tuple[str, ...] = ()
    """Absolute paths besides the system's and the toolchains' that it may read, if they exist."""
    stdin: bytes = b""
    most: int = MAX_OUTPUT
    """Bytes of stdout, and of stderr, that are kept."""
    keep: Literal["head", "tail"] = "head"
    """Which part is kept if there is more. With "head" a command that has filled its stdout is ended at once."""
    merge: bool = False
    """Whether stderr goes where stdout goes, in its order."""
    on_line: Callable[[bytes], None] | None = None
    """Is given each line of stdout without its newline, in the loop's thread, while the command runs."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended."""

    code: int
    """Its exit status; 128 + n if signal n ended it."""
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    truncated: bool
    """Whether there was more on stdout than is kept."""


class Processes:
    """Runs commands, many at once, each with a keeper."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._runner = Runner(log)
        self._repositories = Repositories()

    def close(self) -> None:
        """Let go of the keepers; there are no calls any more."""
        self._runner.close()

    def which(self, program: str) -> str | None:
        """The absolute path of *program* as commands find it: in the toolchains, then the system's directories.

        An absolute path is its own, if it can be executed.
        """
        return self._environment.which(program)

    async def run(self, command: Command, call: Call) -> Completed:
        """What :meth:`.call.Call.run` says."""
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
            # The sandbox around this process shows nothing but the roots.
            unheld=environment.confined and call.jail.whole,
        )
