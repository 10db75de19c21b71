# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commits that git_blame passes over, as a file in the roots lists them (``blame.ignoreRevsFile``).

Git would read whatever file the configuration names, through symlinks as well, and quote a line of it that is no id.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, LimitExceeded, NotAuthorized, NotFound
from mcpd.servers.workstation.git.revisions import look_up
from mcpd.servers.workstation.git.running import git

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_MOST: Final = 512 * 1024
_ID: Final = re.compile(rb"^\s*([0-9a-f]{40}|[0-9a-f]{64})\s*(?:#.*)?$", re.MULTILINE | re.IGNORECASE)
_LEADS_TO_COMMITS: Final = frozenset({"commit", "tag"})


async def ignored_revisions(call: Call, repository: Repository) -> bytes:
    """The ids, each in a line, of all commits that are listed and are there.

    A file that is not there, or not in the roots, lists none. Raises :class:`~mcpd.errors.LimitExceeded` for one that
    is too long.
    """
    listing = await git(call, repository, "config", "-z", "--get-all", "blame.ignoreRevsFile", accept=(0, 1))
    paths: list[str] = []
    for value in os.fsdecode(listing.stdout).split("\0")[:-1]:
        # An empty one takes back all before it (git-config(1)).
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
