# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_mkdir."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.jail import HERE, Place, translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call


class MkdirArguments(Arguments):
    """What filesystem_mkdir takes."""

    path: str = Field(description="Absolute, or relative to the first root")
    parents: bool = Field(default=True, description="Also create missing directories above it")


class MkdirResult(Result):
    """What filesystem_mkdir says."""

    path: str = Field(description="Absolute")
    created: bool = Field(description="False if it was there already")
    directories: list[str] = Field(description="All that were created, topmost first")


def make_directories(call: Call, place: Place, *, parents: bool) -> list[Place]:
    """Make the directory *place*, and those above it with *parents*; says which were missing, topmost first.

    Raises :class:`~mcpd.errors.NotFound` for a missing one above without *parents* and
    :class:`~mcpd.errors.InvalidArgument` if something else is in the way.
    """
    made = []
    if place.relative != HERE:
        names = place.relative.split("/")
        for depth in range(1 if parents else len(names), len(names) + 1):
            call.check()
            each = Place(place.root, "/".join(names[:depth]))
            with call.jail.parent(each) as (directory, name), translated(each, "creating"):
                try:
                    os.mkdir(name, dir_fd=directory)
                except FileExistsError:
                    continue
                made.append(each)
    with call.jail.opened(place, os.O_PATH | os.O_DIRECTORY):
        return made


def _mkdir(call: Call, arguments: MkdirArguments) -> Answer:
    place = call.jail.place(arguments.path)
    made = make_directories(call, place, parents=arguments.parents)
    return Answer(
        MkdirResult(
            path=shown_name(place.path),
            created=bool(made) and made[-1] == place,
            directories=[shown_name(each.path) for each in made],
        )
    )


MKDIR: Final = Tool(
    name="filesystem_mkdir",
    title="Create a directory",
    description="Create a directory, and missing ones above it. That it is there already is no error.",
    arguments=MkdirArguments,
    result=MkdirResult,
    run=in_thread(_mkdir),
    idempotent=True,
)
