# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which file a client reads, and the directories that it lies in."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, InvalidConfig, NotSupported, from_oserror
from mcpd.store.files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcpd.servers.orchestration.family import Family

_PRIVATE: Final = 0o700


def client_file(family: Family, home: Path, environ: Mapping[str, str], given: Path | None = None) -> Path:
    """The file of *family* for the user whose directory is *home*: *given*, else the first that exists, else the usual.

    *environ* are the variables that move it. Raises :class:`~mcpd.errors.NotSupported` for a client that has none on
    Linux.
    """
    if given is not None:
        return given
    places = family.linux_locations(home, environ)
    if not places:
        raise NotSupported(f"{family.name} has no file on Linux; --file FILE names one")
    return next((place for place in places if is_there(place)), places[0])


def is_there(path: Path) -> bool:
    """Whether there is something at *path*, if only a symlink that leads nowhere."""
    return os.path.lexists(path)


def real_place(path: Path) -> Path:
    """*path* by one name: its directory without symlinks, so that a file has one history.

    The last part stays as it is, for a symlink there is to be seen. Raises :class:`~mcpd.errors.InvalidArgument` for
    what cannot be the name of a file.
    """
    text = str(path)
    if not path.name or path.name == ".." or "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidArgument(f"{text!a} is not the name of a file, in UTF-8")
    return Path(os.path.realpath(path.parent)) / path.name


def missing_directories(path: Path, home: Path) -> list[Path]:
    """The directories that have to be made for the file *path*, the outermost first.

    Raises :class:`~mcpd.errors.InvalidConfig` if they are not below *home*, for a file elsewhere that lies in no
    directory is a misspelt one, and if root would leave its own file in a user's directory.
    """
    missing = [parent for parent in path.parents if not is_there(parent)]
    above = missing[-1].parent if missing else path.parent
    with suppress(OSError):  # Whoever goes on will be told.
        owner = above.stat().st_uid
        if os.geteuid() == 0 and owner != 0:
            raise InvalidConfig(f"{path}: lies in a directory of another user (uid {owner}); run this as that user")
    if missing and real_place(home / "x").parent not in missing[-1].parents:
        raise InvalidConfig(f"{path}: there is no directory {path.parent}; make it first, or name another file")
    return missing[::-1]


def make_directories(directories: Iterable[Path]) -> None:
    """Make each of them, for its owner alone. Raises :class:`~mcpd.errors.McpdError`."""
    for directory in directories:
        try:
            with suppress(FileExistsError):
                directory.mkdir(mode=_PRIVATE)
                sync_directory(directory.parent)
        except OSError as error:
            raise from_oserror(error, f"making {directory}") from error


def remove_directories(directories: Sequence[Path]) -> None:
    """Remove what :func:`make_directories` made, as far as nothing has been put there since."""
    for directory in reversed(directories):
        with suppress(OSError):  # Somebody uses it, or removed it: both is as well.
            directory.rmdir()
