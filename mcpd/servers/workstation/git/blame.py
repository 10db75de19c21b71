# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git_blame``: the commit in which each line of a file was last changed.

The commits to ignore are read from the file in ``blame.ignoreRevsFile``, if it is within the roots: git itself would
read any file, even through symlinks, and quote a line that is not an id.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument, LimitExceeded, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import one_line, unquoted
from mcpd.servers.workstation.git.guards import check_files
from mcpd.servers.workstation.git.revisions import HEAD, commit_ids, look_up, rfc3339
from mcpd.servers.workstation.git.running import MAX_REVISION, failed, find, git
from mcpd.servers.workstation.jail import HERE, Place
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository
    from mcpd.servers.workstation.processes import Completed

_MOST: Final = 512 * 1024
_ID: Final = re.compile(rb"^\s*([0-9a-f]{40}|[0-9a-f]{64})\s*(?:#.*)?$", re.MULTILINE | re.IGNORECASE)
_LEADS_TO_COMMITS: Final = frozenset({"commit", "tag"})


async def ignored_revisions(call: Call, repository: Repository) -> bytes:
    """Return the ids, one a line, of the listed commits that exist in the repository.

    A file that is missing or outside the roots lists none. Raises :class:`~mcpd.errors.LimitExceeded` if it is too
    long.
    """
    listing = await git(call, repository, "config", "-z", "--get-all", "blame.ignoreRevsFile", accept=(0, 1))
    paths: list[str] = []
    for value in os.fsdecode(listing.stdout).split("\0")[:-1]:
        # An empty value cancels all before it (git-config(1)).
        paths = [*paths, value] if value else []
    texts = await call.in_thread(lambda: [_read(call, repository, path) for path in paths])
    ids = dict.fromkeys(match.decode() for text in texts for match in _ID.findall(text))
    found = await look_up(call, repository, *ids) if ids else []
    return "".join(f"{each.id}\n" for each in found if each is not None and each.kind in _LEADS_TO_COMMITS).encode()


def _read(call: Call, repository: Repository, path: str) -> bytes:
    try:
        place = call.jail.place(path if path.startswith("/") else f"{repository.place.path}/{path}")
        with call.jail.file(place) as fd, os.fdopen(os.dup(fd), "rb") as file:
            text = file.read(_MOST + 1)
    except (NotFound, InvalidArgument, NotAuthorized):
        # What the configuration names is not what was asked for.
        return b""
    if len(text) > _MOST:
        raise LimitExceeded(f"{place.shown}: a list of commits to pass over has at most {_MOST} bytes")
    return text


_FAILED: Final = 128
_NO_FILE: Final = re.compile(rb"no such path|cannot stat path")
_TOO_SHORT: Final = re.compile(rb"has only ([0-9]+) lines?")
_MAX_LINE: Final = 1000
"""Maximum number of characters shown of a line."""


class BlameArguments(Arguments):
    """Arguments of git_blame."""

    path: str = Field(description="The file, even a deleted one; absolute, or relative to the first root")
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="The commit whose version of the file to show, instead of the one in the work tree",
    )
    start_line: int = Field(default=1, ge=1, le=2**31 - 2, description="First line, from 1")
    end_line: int | None = Field(default=None, ge=1, le=2**31 - 2, description="Last line, inclusive")
    limit: int = Field(default=1000, ge=1, le=10000, description="Maximum number of lines; next_line continues")
    ignore_whitespace: bool = Field(default=False, description="Skip commits that changed only whitespace")
    moves: bool = Field(default=False, description="Skip commits that only moved or copied lines; slower")


class BlamedLine(Result):
    """One line."""

    line: int = Field(description="Its number, from 1")
    commit: str = Field(description="Full id of the commit it is from, listed in commits; zeros: not committed")
    text: str = Field(description="The line, at most 1000 characters of it; invalid UTF-8 is replaced")


class BlamedCommit(Result):
    """One commit that lines are from."""

    commit: str
    author: str
    author_email: str
    date: str = Field(description="When it was written, RFC 3339")
    subject: str = Field(description="First line of the message")
    path: str = Field(description="The name of the file in it")


class BlameResult(Result):
    """Result of git_blame."""

    path: str
    lines: list[BlamedLine]
    commits: list[BlamedCommit] = Field(description="The commits of the lines, each once")
    truncated: bool = Field(description="True if there are more lines up to end_line, or to the end of the file")
    next_line: int | None = Field(default=None, description="The value of start_line that continues")


async def _run(call: Call, arguments: BlameArguments) -> Answer:
    first, last = arguments.start_line, arguments.end_line
    if last is not None and last < first:
        raise InvalidArgument(f"end_line {last} is before start_line {first}")
    repository, relative = await _located(call, arguments.path)
    if relative == HERE:
        raise InvalidArgument(f"{repository.place.shown} is a directory; name a file in it")
    revision = arguments.revision or (HEAD if repository.bare else None)
    if revision is None:
        await check_files(call, repository, [relative], "say revision: HEAD")
    commit = [] if revision is None else await commit_ids(call, repository, revision)
    passed_over = await ignored_revisions(call, repository)
    # One more line than is listed shows whether there are more.
    end = first + arguments.limit if last is None else min(last, first + arguments.limit)
    done = await git(
        call,
        repository,
        "blame",
        "--porcelain",
        "--root",
        "--encoding=UTF-8",
        "--no-textconv",
        "--no-ignore-revs-file",
        *(("--ignore-revs-file=/proc/self/fd/0",) if passed_over else ()),
        f"-L{first},{end}",
        *(("-w",) if arguments.ignore_whitespace else ()),
        *(("-M", "-C") if arguments.moves else ()),
        *commit,
        "--",
        relative,
        stdin=passed_over,
        accept=(0, _FAILED),
    )
    path = _below(repository.place, relative)
    if done.code == _FAILED and not done.truncated:
        lines_there = _TOO_SHORT.search(done.stderr)
        if lines_there is None:
            raise _fault(repository, path, done)
        if first > 1 or lines_there[1] != b"0":
            raise InvalidArgument(f"{path.shown} has only {lines_there[1].decode()} lines; start_line is {first}")
    commits: dict[str, BlamedCommit] = {}
    lines = list(_parsed(done.stdout, commits))
    listed = lines[: arguments.limit]
    truncated = done.truncated or len(lines) > len(listed)
    following = first + len(listed) if truncated else None
    used = {line.commit for line in listed}
    result = BlameResult(
        path=shown_name(path.path),
        lines=listed,
        commits=[each for each in commits.values() if each.commit in used],
        truncated=truncated,
        next_line=following,
    )
    return Answer(result, ({"type": "text", "text": _shown(result, commits)},))


async def _located(call: Call, path: str) -> tuple[Repository, str]:
    """Return the repository of *path* and its path within it; the file itself may no longer exist."""
    try:
        repository = await find(call, path)
    except NotFound as error:
        place = call.jail.place(path)
        if place.relative == HERE:
            raise
        above, _, name = place.relative.rpartition("/")
        try:
            repository, relative = await _located(call, Place(place.root, above or HERE).path)
        except NotFound:
            # The error for the path itself is more helpful.
            raise error from None
        return repository, name if relative == HERE else f"{relative}/{name}"
    return repository, repository.relative


def _below(place: Place, relative: str) -> Place:
    return Place(place.root, relative if place.relative == HERE else f"{place.relative}/{relative}")


def _fault(repository: Repository, path: Place, done: Completed) -> McpdError:
    error = failed(repository, ("blame",), done)
    if _NO_FILE.search(done.stderr):
        return NotFound(f"{path.shown}: git knows no such file there ({error.message})")
    return error


def _parsed(output: bytes, commits: dict[str, BlamedCommit]) -> Iterator[BlamedLine]:
    """Yield the lines in *output* of ``--porcelain``, which may be cut off, after adding their commits to *commits*."""
    headers: dict[str, str] = {}
    commit, number = "", 0
    whole, _, rest = output.decode(errors="surrogateescape").rpartition("\n")
    # What follows the last newline is empty or incomplete; a line that is cut anyway need not be complete.
    long = [rest] if rest.startswith("\t") and len(rest) > _MAX_LINE else []
    for line in (*whole.split("\n"), *long):
        if line.startswith("\t"):
            if commit not in commits:
                commits[commit] = _commit(commit, headers)
            yield BlamedLine(line=number, commit=commit, text=shown_name(line[1 : _MAX_LINE + 1]))
            headers = {}
            commit = ""
        elif not commit and line:
            commit, _, rest = line.partition(" ")
            number = int(rest.split(" ")[1])
        else:
            name, _, value = line.partition(" ")
            headers[name] = value


def _commit(commit: str, headers: dict[str, str]) -> BlamedCommit:
    return BlamedCommit(
        commit=commit,
        author=shown_name(headers.get("author", "")),
        author_email=shown_name(headers.get("author-mail", "").removeprefix("<").removesuffix(">")),
        date=rfc3339(headers.get("author-time", "0"), headers.get("author-tz", "+0000")),
        subject=shown_name(headers.get("summary", "")),
        path=shown_name(os.fsdecode(unquoted(os.fsencode(headers.get("filename", ""))))),
    )


def _shown(result: BlameResult, commits: dict[str, BlamedCommit]) -> str:
    """Return *result* in the format of ``git blame``."""
    if not result.lines:
        return "The file is empty.\n"
    width = len(str(result.lines[-1].line))
    authors = {each.commit: one_line(each.author)[:20] for each in commits.values()}
    dates = {each.commit: each.date[:10] for each in commits.values()}
    column = max(len(authors[line.commit]) for line in result.lines)
    more = f"[More lines follow: start_line={result.next_line}]\n" if result.truncated else ""
    return (
        "".join(
            f"{line.commit[:8]} ({authors[line.commit]:<{column}} {dates[line.commit]} {line.line:>{width}})"
            f" {line.text}\n"
            for line in result.lines
        )
        + more
    )


BLAME: Final = Tool(
    name="git_blame",
    title="Show who wrote each line",
    description="Show the commit, author and date of each line of a file. Commits listed in a blame.ignoreRevsFile"
    " in the roots are skipped, as git does. Changes nothing.",
    arguments=BlameArguments,
    result=BlameResult,
    run=_run,
    read_only=True,
    idempotent=True,
)
