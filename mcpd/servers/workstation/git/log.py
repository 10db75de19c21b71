# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git_log`` and ``git_show``: the history, and a single commit, tag, directory or file."""

from __future__ import annotations

import base64
import codecs
import re
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from mcpd.errors import InvalidArgument, McpdError
from mcpd.model import printable
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import (
    MAX_FILES,
    MAX_PATCH_BYTES,
    NO_NUL,
    PATCH_BYTES,
    Changes,
    PathsArguments,
    changes_of,
    files_of,
    one_line,
    os_names,
    shown,
)
from mcpd.servers.workstation.git.revisions import (
    HEAD,
    Commit,
    Object,
    empty_tree,
    head,
    look_up,
    read_commits,
    rfc3339,
    selection,
    unknown,
)
from mcpd.servers.workstation.git.running import MAX_REVISION, find, git
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_WORDS: Final = 1000


class LogArguments(PathsArguments):
    """Arguments of git_log."""

    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="Where to start, or a range: main, v1.0, HEAD~3, v1.0..main, main...topic. Default HEAD",
    )
    all: bool = Field(default=False, description="Start from all branches and tags instead")
    follow: bool = Field(default=False, description="Follow the one file in paths through renames")
    limit: int = Field(default=10, ge=1, le=1000, description="Maximum number of commits")
    skip: int = Field(default=0, ge=0, le=10_000_000, description="Number of commits to skip; next_skip continues")
    author: str | None = Field(
        default=None,
        min_length=1,
        max_length=_WORDS,
        pattern=NO_NUL,
        description="Only authors whose name or address contains this",
    )
    grep: str | None = Field(
        default=None,
        min_length=1,
        max_length=_WORDS,
        pattern=NO_NUL,
        description="Only messages that contain this text",
    )
    ignore_case: bool = Field(default=False, description="author and grep ignore case")
    since: str | None = Field(
        default=None,
        min_length=1,
        max_length=_WORDS,
        pattern=NO_NUL,
        description="Only newer ones: 2026-01-31, 2 weeks ago",
    )
    until: str | None = Field(
        default=None, min_length=1, max_length=_WORDS, pattern=NO_NUL, description="Only older ones, as since"
    )
    merges: bool | None = Field(default=None, description="true: only merges; false: no merges. Default: both")


class LogResult(Result):
    """Result of git_log."""

    repository: str = Field(description="Top of the repository")
    commits: list[Commit] = Field(description="Newest first")
    truncated: bool = Field(description="True if there are more")
    next_skip: int | None = Field(default=None, description="The value of skip that continues")


async def _log(call: Call, arguments: LogArguments) -> Answer:
    if arguments.follow and len(arguments.paths) != 1:
        raise InvalidArgument("follow needs exactly one file in paths")
    if arguments.all and arguments.revision is not None:
        raise InvalidArgument("all and revision exclude each other; leave one of them out")
    repository = await find(call, arguments.path)
    paths = [repository.pathspec(path) for path in arguments.paths]
    if arguments.all:
        # A history without any ref or commit is not an error.
        start = "--all"
    elif arguments.revision is not None:
        start = await selection(call, repository, arguments.revision)
    else:
        start = HEAD
    try:
        commits, cut = await read_commits(call, repository, *_options(arguments), start, "--", *paths)
    except McpdError:
        if start != HEAD or (await head(call, repository)).commit is not None:
            raise
        # Nothing was committed yet, which is not an error either.
        commits, cut = [], False
    listed = commits[: arguments.limit]
    truncated = cut or len(commits) > len(listed)
    following = arguments.skip + len(listed) if truncated else None
    more = f"\n[More commits follow: skip={following}]\n" if truncated else ""
    text = "\n".join(commit.shown() for commit in listed) + more or "No commits.\n"
    return Answer(
        LogResult(
            repository=shown_name(repository.place.path), commits=listed, truncated=truncated, next_skip=following
        ),
        ({"type": "text", "text": text},),
    )


def _options(arguments: LogArguments) -> list[str]:
    options = [
        f"--max-count={arguments.limit + 1}",
        f"--skip={arguments.skip}",
        "--fixed-strings",
        "--follow" if arguments.follow else "--no-follow",
    ]
    options += [
        f"--{name}={value}"
        for name, value in (
            ("author", arguments.author),
            ("grep", arguments.grep),
            ("since", arguments.since),
            ("until", arguments.until),
        )
        if value is not None
    ]
    if arguments.ignore_case:
        options.append("--regexp-ignore-case")
    if arguments.merges is not None:
        options.append("--merges" if arguments.merges else "--no-merges")
    return options


LOG: Final = Tool(
    name="git_log",
    title="Show the history",
    description="List commits, newest first: ids, authors, dates and messages. Filters by range, path, author, date"
    " and text. Changes nothing.",
    arguments=LogArguments,
    result=LogResult,
    run=_log,
    read_only=True,
    idempotent=True,
)


_TAGGER: Final = re.compile(r"(.*?) ?<([^<>]*)> (-?[0-9]+) ([+-][0-9]{4})")
_SIGNATURE: Final = "-----BEGIN "
_TAG_BYTES: Final = 64 * 1024

EntryType = Literal["file", "directory", "symlink", "submodule"]
_TYPES: Final[dict[str, EntryType]] = {"040000": "directory", "120000": "symlink", "160000": "submodule"}


class ShowArguments(PathsArguments):
    """Arguments of git_show."""

    revision: str = Field(
        default=HEAD,
        min_length=1,
        max_length=MAX_REVISION,
        description="A commit or tag (HEAD~2, v1.0), or REVISION:PATH for a file or directory as it was in a commit",
    )
    context: int = Field(default=3, ge=0, le=1000, description="Unchanged lines around each change")
    stat: bool = Field(default=False, description="Only the changed files with their numbers of lines, no patch")
    max_bytes: int = Field(
        default=PATCH_BYTES, ge=1, le=MAX_PATCH_BYTES, description="Maximum size of the patch or the file, in bytes"
    )


class TagInfo(Result):
    """An annotated tag."""

    name: str
    tagger: str | None = None
    tagger_email: str | None = None
    date: str | None = Field(default=None, description="When it was made, RFC 3339")
    message: str = Field(description="Its message, without a signature")

    def shown(self) -> str:
        """Return the tag in the format of ``git show``."""
        lines = [f"tag {self.name}"]
        if self.tagger is not None:
            lines += [f"Tagger: {self.tagger} <{self.tagger_email}>", f"Date:   {self.date}"]
        return "\n".join([*lines, "", self.message]) + "\n\n"


class TreeEntry(Result):
    """One entry of a directory in a commit."""

    name: str
    type: EntryType
    mode: str = Field(description="Its mode: 100644, 100755 for a program")
    size: int | None = Field(default=None, description="Bytes")


class ShowResult(Changes):
    """Result of git_show."""

    repository: str = Field(description="Top of the repository")
    kind: Literal["commit", "directory", "file"] = Field(description="Type of the object; for a tag, of its target")
    object: str = Field(description="Full id of that")
    tag: TagInfo | None = Field(default=None, description="The annotated tag that points to it")
    commit: Commit | None = Field(default=None, description="The commit; a merge is compared with its first parent")
    entries: list[TreeEntry] | None = Field(default=None, description="What is in the directory")
    size: int | None = Field(default=None, description="Bytes")
    text: str | None = Field(default=None, description="The file, if it is UTF-8 text")
    base64: str | None = Field(default=None, description="The file, if it is anything else")


_Shown = tuple[dict[str, Any], list[dict[str, Any]]]
"""Fields of the result, and content blocks."""


async def _show(call: Call, arguments: ShowArguments) -> Answer:
    repository = await find(call, arguments.path)
    (named,) = await look_up(call, repository, arguments.revision)
    if named is None:
        raise unknown(repository, arguments.revision, "nothing")
    tag, found = None, named
    if named.kind == "tag":
        tag = await _tag(call, repository, named)
        # Tags of tags eventually lead to another object.
        (target,) = await look_up(call, repository, f"{named.id}^{{}}")
        if target is None:
            raise unknown(repository, arguments.revision, "nothing")
        found = target
    if arguments.paths and found.kind != "commit":
        raise InvalidArgument(f"paths are for commits; '{printable(arguments.revision)}' names something else")
    if found.kind == "commit":
        fields, content = await _commit(call, repository, found, arguments)
    elif found.kind == "tree":
        fields, content = await _directory(call, repository, found)
    else:
        fields, content = await _file(call, repository, found, arguments.max_bytes)
    result = ShowResult(repository=shown_name(repository.place.path), object=found.id, tag=tag, **fields)
    if tag is not None:
        content.insert(0, {"type": "text", "text": tag.shown()})
    return Answer(result, tuple(content))


async def _commit(call: Call, repository: Repository, found: Object, arguments: ShowArguments) -> _Shown:
    (commit,), _ = await read_commits(call, repository, "--max-count=1", found.id, "--")
    before = commit.parents[0] if commit.parents else empty_tree(found.id)
    options = [before, found.id, "--", *(repository.pathspec(path) for path in arguments.paths)]
    if arguments.stat:
        changes = await files_of(call, repository, options)
    else:
        changes = await changes_of(call, repository, options, context=arguments.context, most=arguments.max_bytes)
    text = f"{commit.shown()}\n{shown(changes)}"
    return {"kind": "commit", "commit": commit, **dict(changes)}, [{"type": "text", "text": text}]


async def _directory(call: Call, repository: Repository, found: Object) -> _Shown:
    done = await git(call, repository, "ls-tree", "-z", "--long", "--full-tree", found.id)
    entries = []
    for field in os_names(done.stdout.rpartition(b"\0")[0].split(b"\0")):
        about, _, name = field.partition("\t")
        if name:
            mode, _, _, size = about.split()
            entries.append(
                TreeEntry(
                    name=shown_name(name),
                    type=_TYPES.get(mode, "file"),
                    mode=mode,
                    size=int(size) if size.isdigit() else None,
                )
            )
    listed = entries[:MAX_FILES]
    truncated = done.truncated or len(entries) > len(listed)
    lines = [one_line(entry.name) + ("/" if entry.type == "directory" else "") for entry in listed]
    if truncated:
        lines.append("[There are more entries.]")
    return (
        {"kind": "directory", "entries": listed, "truncated": truncated or None},
        [{"type": "text", "text": "".join(f"{line}\n" for line in lines) or "An empty directory.\n"}],
    )


async def _file(call: Call, repository: Repository, found: Object, most: int) -> _Shown:
    done = await git(call, repository, "cat-file", "blob", found.id, most=most)
    fields: dict[str, Any] = {"kind": "file", "size": found.size, "truncated": done.truncated or None}
    text = _as_text(done.stdout, cut=done.truncated)
    if text is not None:
        return {**fields, "text": text}, [{"type": "text", "text": text}]
    encoded = base64.b64encode(done.stdout).decode()
    block = {
        "type": "resource",
        "resource": {"uri": f"git:{found.id}", "mimeType": "application/octet-stream", "blob": encoded},
    }
    return {**fields, "base64": encoded}, [block]


def _as_text(content: bytes, *, cut: bool) -> str | None:
    """Decode *content*, without an incomplete character at its end if it was *cut*; return None if it is not text."""
    if b"\0" in content:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(content, final=not cut)
    except UnicodeDecodeError:
        return None


async def _tag(call: Call, repository: Repository, found: Object) -> TagInfo:
    done = await git(call, repository, "cat-file", "tag", found.id, most=_TAG_BYTES)
    head, _, message = done.stdout.decode(errors="replace").partition("\n\n")
    headers = {name: value for name, _, value in (line.partition(" ") for line in head.split("\n"))}
    tagger = _TAGGER.fullmatch(headers.get("tagger", ""))
    start = 0 if message.startswith(_SIGNATURE) else message.find(f"\n{_SIGNATURE}")
    return TagInfo(
        name=headers.get("tag", ""),
        tagger=tagger[1] if tagger else None,
        tagger_email=tagger[2] if tagger else None,
        date=rfc3339(tagger[3], tagger[4]) if tagger else None,
        message=(message if start < 0 else message[:start]).rstrip("\n"),
    )


SHOW: Final = Tool(
    name="git_show",
    title="Show a commit or an old file",
    description="Show a commit with its message and what it changed, an annotated tag, or, as REVISION:PATH, a file"
    " or directory as it was in a commit. Changes nothing.",
    arguments=ShowArguments,
    result=ShowResult,
    run=_show,
    read_only=True,
    idempotent=True,
)
