# SPDX-License-Identifier: LGPL-2.1-or-later
"""Submodules, which git must not look into: it would start another git there, which obeys their configuration."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, LimitExceeded, NotAuthorized, NotFound
from mcpd.servers.workstation.git.changes import unquoted
from mcpd.servers.workstation.git.repository import content_of
from mcpd.servers.workstation.git.running import git

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_MODULES: Final = ".gitmodules"
_MOST: Final = 1024 * 1024
_MOST_NAMES: Final = 500
"""How many submodules a repository may name: all are handed over with each run of git."""
_MOST_LINKS: Final = 10_000
FROM_STDIN: Final = ("--pathspec-from-file=-", "--pathspec-file-nul")
"""Options for a command whose paths are its input."""
# More than the sections: what only looks like one does no harm.
_SECTION: Final = re.compile(rb'\[\s*submodule(?:\s+"((?:\\.|[^"\\\n])*)"|\.([^\]\n]*))', re.IGNORECASE)
_ESCAPED: Final = re.compile(rb"\\(.)")
_LINK: Final = re.compile(rb"160000 [0-9a-f]+ \d\t(.*)", re.DOTALL)


async def closed(call: Call, repository: Repository, *revisions: str) -> Repository:
    """*repository* with all submodules closed that are named now, in HEAD or in *revisions*.

    What ``.gitmodules`` says of each has a higher precedence than what is set for all. Raises
    :class:`~mcpd.errors.NotAuthorized` for too many.
    """
    if call.settings.allow_hooks:
        return repository
    asked = "".join(f"{revision}:{_MODULES}\0" for revision in ("", "HEAD", *revisions))
    blobs = await git(call, repository, "cat-file", "-z", "--batch", stdin=asked.encode(), most=_MOST)
    texts = [blobs.stdout]
    if not repository.bare:
        texts.append(await call.in_thread(lambda: _read(call, repository)))
    if blobs.truncated:
        raise LimitExceeded(f"{repository.place.shown}: its {_MODULES} has more than {_MOST} bytes")
    names = {name for text in texts for name in named(text)}
    if len(names) > _MOST_NAMES:
        raise NotAuthorized(
            f"{repository.place.shown}: its {_MODULES} names more than {_MOST_NAMES} submodules, which cannot all be"
            " closed; set allow_hooks if you trust the repository"
        )
    return replace(
        repository,
        hook_safe=tuple(
            {**dict(repository.hook_safe), **{f"submodule.{name}.ignore": "dirty" for name in names}}.items()
        ),
    )


def named(text: bytes) -> set[str]:
    """The names of all submodules in *text*, which is that of ``.gitmodules`` among other things."""
    found = set()
    for quoted, dotted in _SECTION.findall(text):
        name = _ESCAPED.sub(rb"\1", quoted) if quoted else dotted.lower()
        if name and b"\0" not in name:
            found.add(os.fsdecode(name))
    return found


async def links(call: Call, repository: Repository) -> list[str]:
    """The paths of all submodules that are in the index, as ``os`` takes them.

    Raises :class:`~mcpd.errors.LimitExceeded` for too many.
    """
    found: list[str] = []

    def take(line: bytes) -> None:
        match = _LINK.fullmatch(line)
        if match is not None and len(found) <= _MOST_LINKS:
            found.append(os.fsdecode(unquoted(match[1])))

    await git(call, repository, "ls-files", "--stage", most=1, on_line=take)
    if len(found) > _MOST_LINKS:
        raise LimitExceeded(f"{repository.place.shown} has more than {_MOST_LINKS} submodules")
    return found


def _read(call: Call, repository: Repository) -> bytes:
    try:
        return content_of(call.jail, repository.place.child(_MODULES), _MOST)
    except (NotFound, InvalidArgument):
        # There is none, or what git does not read either.
        return b""


def all_but(excluded: Iterable[str], paths: Iterable[str] = (".",)) -> bytes:
    """The input for :data:`FROM_STDIN`: *paths*, all literal, without those *excluded*; all from the top level."""
    return os.fsencode("\0".join(pathspecs_but(excluded, paths)))


def pathspecs_but(excluded: Iterable[str], paths: Iterable[str] = (".",)) -> list[str]:
    """The same as arguments, for a git that is run with ``--no-literal-pathspecs``."""
    found = [f":(top,literal){path}" if path != "." else ":(top)" for path in paths]
    return [*found, *(f":(top,exclude,literal){path}" for path in excluded)]


def below(paths: Iterable[str], path: str) -> bool:
    """Whether *path* is one of *paths* or in one of them, all from the top level."""
    return any(each in {".", path} or path.startswith(each + "/") for each in paths)
