# SPDX-License-Identifier: LGPL-2.1-or-later
"""Admission to a bridge: callers and their identities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mcpd.errors import NotAuthorized, NotFound, Unauthenticated

if TYPE_CHECKING:
    from mcpd.bridge.http.tokens import TokenFile, Tokens

_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")
_DEFAULT_OVERFLOW: Final = 65534


class Caller(NamedTuple):
    """Whom sessions, servers and limits belong to."""

    uid: int
    server: str = ""
    """The id of the server that calls for this uid, if it is one that may use others."""
    allowed: tuple[str, ...] = ()
    """Which ones that server may use; empty for all."""


class Admission(Protocol):
    """Turns what a connection shows into its caller."""

    @property
    def parts(self) -> int:
        """Into how many parts the connections of the unix socket are divided, of which a uid may take one."""

    def by_uid(self, uid: int) -> Caller:
        """The caller behind a unix socket. Raises :class:`~mcpd.errors.NotAuthorized`."""

    def by_token(self, token: bytes) -> Caller:
        """The caller who shows *token*, empty if none. Raises :class:`~mcpd.errors.Unauthenticated`."""

    def own_token(self, uid: int, *, renew: bool) -> str:
        """The token of *uid*, another one with *renew*. Raises :class:`~mcpd.errors.NotFound` if none is handed out."""


class OneUser:
    """The only caller is *uid*; on TCP everybody who knows the token, or without one (``--auth none``) everybody."""

    parts: Final = 1

    def __init__(self, uid: int, token: TokenFile | None) -> None:
        self._caller = Caller(uid)
        self._token = token

    def by_uid(self, uid: int) -> Caller:
        """See :class:`Admission`."""
        if uid != self._caller.uid:
            raise NotAuthorized(f"this bridge serves uid {self._caller.uid} only, and you are uid {uid}")
        return self._caller

    def by_token(self, token: bytes) -> Caller:
        """See :class:`Admission`."""
        if self._token is not None and not self._token.matches(token):
            raise Unauthenticated("send the bridge's token in the header 'Authorization: Bearer TOKEN'")
        return self._caller

    def own_token(self, uid: int, *, renew: bool) -> str:
        """Its user can read and replace the file itself."""
        raise NotFound("this bridge hands out no tokens: its user has the file, see mcpctl token --user")


class Everybody:
    """Each uid is a caller of its own. The mode of the system's socket decides who comes this far."""

    parts: Final = 8

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._unknown = _overflow_uid()

    def by_uid(self, uid: int) -> Caller:
        """See :class:`Admission`."""
        if uid in {-1, self._unknown}:
            # This is also how the kernel shows users of containers that do not exist here.
            raise NotAuthorized(f"uid {uid} stands for unknown users")
        return Caller(uid)

    def by_token(self, token: bytes) -> Caller:
        """See :class:`Admission`."""
        uid = self._tokens.owner(token)
        if uid is None:
            raise Unauthenticated(
                "send your token in the header 'Authorization: Bearer TOKEN'; 'mcpctl token --system' prints it"
            )
        return Caller(uid)

    def own_token(self, uid: int, *, renew: bool) -> str:
        """See :class:`Admission`."""
        return self._tokens.token(uid, renew=renew)


def _overflow_uid() -> int:
    try:
        return int(_OVERFLOW.read_text("ascii"))
    except OSError:
        # A confined bridge sees processes only in /proc.
        return _DEFAULT_OVERFLOW
