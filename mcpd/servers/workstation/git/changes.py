# SPDX-License-Identifier: LGPL-2.1-or-later
"""The difference between two states of a repository, and the arguments of the tools that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.running import git
from mcpd.servers.workstation.tool import Arguments, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

NO_NUL: Final = r"^[^\x00]*$"
"""Pattern of text that is passed to git: neither program arguments nor commits can contain NUL."""


class RepositoryArguments(Arguments):
    """Arguments that name a repository."""

    path: str = Field(
        default=".", description="The repository, or any path in it; absolute, or relative to the first root"
    )


class PathsArguments(RepositoryArguments):
    """Arguments that name a repository and paths in it."""

    paths: list[str] = Field(
        default=[],
        max_length=200,
        description="Only these files or directories: from the top of the repository, or absolute",
    )


MAX_FILES: Final = 1000
"""Maximum number of files in a result."""
PATCH_BYTES: Final = 256 * 1024
"""Default maximum size of a patch in bytes."""
MAX_PATCH_BYTES: Final = 4 * 1024 * 1024

Status = Literal["added", "copied", "deleted", "modified", "renamed", "type_changed", "unmerged"]

STATUSES: Final[dict[str, Status]] = {
    "A": "added",
    "C": "copied",
    "D": "deleted",
    "M": "modified",
    "R": "renamed",
    "T": "type_changed",
    "U": "unmerged",
}
_DIFF: Final = ("diff",)
_NOTHING: Final = "000000"
_SUBMODULE: Final = "160000"

# Overrides the repository's configuration: which programs run, and the format of the output.
_OPTIONS: Final = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-relative",
    "--find-renames",
    "--submodule=short",
    "--ignore-submodules=dirty",
    "-O/dev/null",
)
_PATCH_OPTIONS: Final = ("--patch", "--src-prefix=a/", "--dst-prefix=b/", "--inter-hunk-context=0")


class Change(Result):
    """One file that differs."""

    path: str = Field(description="From the top of the repository")
    old_path: str | None = Field(default=None, description="Its previous name, if it was renamed or copied")
    status: Status
    added: int | None = Field(
        default=None, description="Lines added; absent for binary files, and if too many files differ"
    )
    removed: int | None = Field(default=None, description="Lines removed; absent likewise")
    binary: bool | None = None
    submodule: bool | None = None
    old_mode: str | None = Field(default=None, description="Its previous mode, if it changed: 100644")
    mode: str | None = Field(default=None, description="Its new mode, if it changed: 100755")

    def shown(self) -> str:
        """Return a line similar to the output of ``git diff --numstat`` and ``--name-status``."""
        numbers = "binary" if self.binary else f"+{self.added} -{self.removed}"
        known = f" ({numbers})" if self.binary or self.added is not None else ""
        name = one_line(self.path) if self.old_path is None else f"{one_line(self.old_path)} -> {one_line(self.path)}"
        return f"{self.status}: {name}{known}"


class Changes(Result):
    """The differences between two states."""

    files: list[Change] | None = Field(default=None, description="The files that differ, at most 1000")
    files_truncated: bool | None = Field(default=None, description="True if more files differ than are listed")
    added: int | None = Field(default=None, description="Lines added in all files; absent if there are too many")
    removed: int | None = Field(default=None, description="Lines removed in all files, likewise")
    patch: str | None = Field(default=None, description="The unified diff; invalid UTF-8 is replaced")
    truncated: bool | None = Field(default=None, description="True if the patch was cut off at max_bytes")


def one_line(name: str) -> str:
    """Return *name* in one line, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown_name(name))


def shown(changes: Changes) -> str:
    """Return *changes* as text: the patch, or the list of files if there is no patch."""
    if changes.patch:
        cut = "\n[The patch goes on; max_bytes or paths say how much of it is shown.]\n" if changes.truncated else ""
        return changes.patch + cut
    files = changes.files or []
    if not files:
        return "No differences.\n"
    lines = [each.shown() for each in files]
    if changes.files_truncated:
        lines.append("[More files differ.]")
    if changes.added is not None:
        lines.append(f"+{changes.added} -{changes.removed} in all")
    return "".join(f"{line}\n" for line in lines)


async def files_of(
    call: Call, repository: Repository, arguments: Sequence[str], *, command: Sequence[str] = _DIFF
) -> Changes:
    """Return the files that differ according to ``git diff``, or *command*, with *arguments*, without a patch.

    Raises McpdError if git fails.
    """
    options = (*_OPTIONS, "--raw", "--numstat", "--abbrev=4", "-z")
    done = await git(call, repository, *command, *options, *arguments, most=MAX_PATCH_BYTES)
    found = list(_parsed(done.stdout, cut=done.truncated))
    files = found[:MAX_FILES]
    return Changes(
        files=files,
        files_truncated=done.truncated or len(found) > len(files) or None,
        added=None if done.truncated else sum(each.added or 0 for each in found),
        removed=None if done.truncated else sum(each.removed or 0 for each in found),
    )


async def changes_of(
    call: Call,
    repository: Repository,
    arguments: Sequence[str],
    *,
    context: int = 3,
    most: int = PATCH_BYTES,
    command: Sequence[str] = _DIFF,
) -> Changes:
    """Return what :func:`files_of` does, with a patch of at most *most* bytes and *context* lines around each change.

    An incomplete patch ends with a whole line, unless its first line is too long.
    """
    files = await files_of(call, repository, arguments, command=command)
    if not files.files:
        return files
    options = (*_OPTIONS, *_PATCH_OPTIONS, f"--unified={context}")
    done = await git(call, repository, *command, *options, *arguments, most=most)
    kept = done.stdout
    if done.truncated:
        kept = kept[: kept.rfind(b"\n") + 1] or kept
    return files.model_copy(update={"patch": kept.decode(errors="replace"), "truncated": done.truncated})


def _parsed(output: bytes, *, cut: bool) -> Iterator[Change]:
    """Yield the files in *output* of ``--raw --numstat -z``, which may have been *cut* off."""
    # What follows the last NUL is empty or incomplete.
    fields = os_names(output.rpartition(b"\0")[0].split(b"\0"))
    raw: dict[str, tuple[str, str, str | None, str]] = {}
    numbers: dict[str, tuple[str, str]] = {}
    for field in fields:
        if field.startswith(":"):
            old_mode, mode, _, _, status = field[1:].split(" ")
            old = next(fields, None) if status[0] in "RC" else None
            path = next(fields, None)
            # Unmerged files may be listed again with their state in the work tree.
            if path is not None:
                raw.setdefault(path, (old_mode, mode, old, status[0]))
        elif field:
            added, removed, name = field.split("\t", 2)
            path = name or (next(fields, None) and next(fields, None))
            if path:
                numbers[path] = (added, removed)
    for path, (old_mode, mode, old, status) in raw.items():
        added, removed = numbers.get(path, ("", ""))
        if not cut and old_mode == mode and status == "M" and (added, removed) in {("", ""), ("0", "0")}:
            # Only white space differs, which was to be ignored.
            continue
        changed = old_mode != mode and _NOTHING not in {old_mode, mode}
        yield Change(
            path=shown_name(path),
            old_path=None if old is None else shown_name(old),
            status=STATUSES.get(status, "modified"),
            added=int(added) if added.isdigit() else None,
            removed=int(removed) if removed.isdigit() else None,
            binary=added == "-" or None,
            submodule=_SUBMODULE in {old_mode, mode} or None,
            old_mode=old_mode if changed else None,
            mode=mode if changed else None,
        )


def os_names(names: Sequence[bytes]) -> Iterator[str]:
    """Decode *names* as ``os`` does: bytes that are not UTF-8 become surrogates."""
    return (name.decode(errors="surrogateescape") for name in names)


def unquoted(name: bytes) -> bytes:
    r"""Return *name* without the quotes and C escapes that git adds to unusual names: ``"a\303\244\n"``."""
    if len(name) < 2 or not (name.startswith(b'"') and name.endswith(b'"')):
        return name
    return name[1:-1].decode("unicode_escape").encode("latin-1")
