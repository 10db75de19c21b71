# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running git in a repository, so that nothing the repository itself says is executed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, InvalidArgument, LimitExceeded, McpdError, NoSpace, NotAuthorized, NotFound, ReadOnly
from mcpd.model import printable
from mcpd.servers.workstation.git import user
from mcpd.servers.workstation.git.repository import Repository, check_worktree, discover
from mcpd.servers.workstation.git.safety import (
    OWN,
    disarmed,
    environment,
    fixed,
    parsed,
    without_filters,
)
from mcpd.servers.workstation.processes import MAX_OUTPUT, Command, Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mcpd.servers.workstation.call import Call

_MOST_MESSAGE: Final = 1000
"""Characters of what git says that go into an error."""
_MOST_CONFIG: Final = 1024 * 1024
_PIECE: Final = 100
_CLASSES: Final[tuple[tuple[str, type[McpdError]], ...]] = (
    ("No space left on device", NoSpace),
    ("Disk quota exceeded", NoSpace),
    ("Read-only file system", ReadOnly),
    ("unable to access", NotAuthorized),
    ("Permission denied", ReadOnly),
    (".lock': File exists", Busy),
    ("dubious ownership", NotAuthorized),
    ("did not match any file", NotFound),
    ("invalid reference: ", NotFound),
    ("is not a commit and a branch ", NotFound),
    ("Not a valid object name", NotFound),
    ("is not a valid branch name", InvalidArgument),
    ("a branch named ", InvalidArgument),
    (" exists; cannot create ", InvalidArgument),
    ("File name too long", InvalidArgument),
    ("Cannot switch branch to a non-commit", InvalidArgument),
    ("reference is not a tree", InvalidArgument),
    ("not a tree object", InvalidArgument),
    (" type, but the object dereferences to ", InvalidArgument),
    ("remote tracking branches", InvalidArgument),
    ("is already checked out at", InvalidArgument),
    ("is already used by worktree at", InvalidArgument),
    ("is beyond a symbolic link", InvalidArgument),
    ("is in submodule", InvalidArgument),
    ("are ignored by one of your", InvalidArgument),
)
"""What git says where another class than McpdError tells more."""


async def find(call: Call, path: str) -> Repository:
    """The repository that *path*, a directory or a file in it, belongs to.

    Looks no further up than the root that holds *path*. Raises :class:`~mcpd.errors.NotFound` if there is none, and
    :class:`~mcpd.errors.NotAuthorized` if anything of it is outside of the roots.
    """
    repository, files = await call.in_thread(lambda: (discover(call, path), user.files(call.settings)))
    first = replace(repository, hook_safe=tuple(fixed(call.settings).items()), readable=files)
    listing = await git(call, first, "config", "--list", "--show-scope", "-z", most=_MOST_CONFIG)
    if listing.truncated:
        raise LimitExceeded(f"{repository.place.shown}: its configuration has more than {_MOST_CONFIG} bytes")
    entries = parsed(listing.stdout)
    own = {entry.key: entry.value for entry in entries if entry.scope in OWN}
    if not own:
        # Either it has none, or git does not take this for a repository, as of somebody else's: it says so here.
        await git(call, first, "rev-parse", "--git-dir")
    if "core.worktree" in own:
        await call.in_thread(lambda: check_worktree(call.jail, repository, own["core.worktree"]))
    off, filters = ({}, frozenset[str]()) if call.settings.allow_hooks else disarmed(entries)
    return replace(
        first,
        hook_safe=tuple({**off, **dict(first.hook_safe)}.items()),
        filters=filters,
        readable=(*files, *user.named(entries, call.settings)),
    )


async def git(
    call: Call,
    repository: Repository,
    *arguments: str,
    writes: bool = False,
    stdin: bytes = b"",
    most: int = MAX_OUTPUT,
    accept: Collection[int] = (0,),
    on_line: Callable[[bytes], None] | None = None,
) -> Completed:
    """Run git with *arguments* in the top level of *repository*.

    Paths in *arguments* are relative to it (:meth:`.Repository.pathspec`) and taken literally; revisions have been
    through :func:`.safety.revision`. Of stdout *most* bytes are kept; a command that says more is ended, which is no
    error: see ``truncated``. With *on_line*, which is given each line, it goes on, and the last bytes are kept.
    Raises McpdError with git's own message for an exit status that is not in *accept*.
    """
    config = {**dict(repository.hook_safe), **without_filters(repository.filters, writes=writes)}
    done = await call.run(
        Command(
            argv=("git", *arguments),
            place=repository.place,
            env=environment(call.settings, repository.place.path, config, writes=writes),
            writes=writes,
            git_directories=repository.directories if writes else (),
            readable=repository.readable,
            stdin=stdin,
            most=most,
            keep="head" if on_line is None else "tail",
            on_line=on_line,
        )
    )
    ended = done.truncated and on_line is None
    if done.code not in accept and not ended:
        raise failed(repository, arguments, done)
    return done


def failed(repository: Repository, arguments: Sequence[str], done: Completed) -> McpdError:
    """The error for git with *arguments* that has ended with what *done* says."""
    said = message(done.stderr) or message(done.stdout) or f"it ended with status {done.code} and said nothing"
    command = next(each for each in arguments if not each.startswith("-"))
    text = f"git {command} in {repository.place.shown}: {said}"
    if repository.filters and " filter '" in said:
        text += (
            "; the repository's own configuration names that filter, which is not run: set allow_hooks if you trust the"
            " repository, or have the filter in your own ~/.gitconfig"
        )
    return next((cls(text) for part, cls in _CLASSES if part in said), McpdError(text))


def message(said: bytes) -> str:
    """What git *said*, in one line without what cannot be shown."""
    text = said.decode("utf-8", "replace")
    lines = (
        line.removeprefix("fatal: ").removeprefix("error: ").removeprefix("hint: ").strip()
        for line in text.splitlines()
    )
    joined = "; ".join(line for line in lines if line and line != "hint:")
    pieces = (joined[start : start + _PIECE] for start in range(0, min(len(joined), _MOST_MESSAGE), _PIECE))
    return "".join(printable(piece) for piece in pieces)[:_MOST_MESSAGE]
