# SPDX-License-Identifier: LGPL-2.1-or-later
"""The users of this machine, as an administrator's polkit rules know them."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress
from typing import NamedTuple

from mcpd.errors import NotAuthorized


class User(NamedTuple):
    """Somebody the system knows."""

    name: str
    groups: tuple[str, ...]
    """Names of all groups, sorted; one with white space is left out, as it could not be told from two others."""


def look_up(uid: int) -> User:
    """The user *uid*. It may take as long as the network behind the user database does.

    Raises :class:`~mcpd.errors.NotAuthorized` if there is none.
    """
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise NotAuthorized(f"uid {uid} is no user of this system, so no server is started for it") from None
    groups = set()
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        with suppress(KeyError):
            name = grp.getgrgid(gid).gr_name
            if name and not any(char.isspace() for char in name):
                groups.add(name)
    return User(entry.pw_name, tuple(sorted(groups)))
