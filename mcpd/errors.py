# SPDX-License-Identifier: LGPL-2.1-or-later
"""The errors of mcpd, and their names and codes on every interface.

Every failure that may reach a caller is a subclass of :class:`McpdError`. Each class has a D-Bus error name, a JSON-RPC
code, an HTTP status and an exit code of ``mcpctl``. ``docs/errors.md`` lists the same table; a test compares the two.

A message names the input, the fault and how to fix it, and is safe to show: it never contains a secret or a traceback.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ERROR_PREFIX: Final = "org.mcpd.Mcp1.Error."
FREEDESKTOP_PREFIX: Final = "org.freedesktop.DBus.Error."

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_AUTHORIZED: Final = 3
EXIT_NOT_FOUND: Final = 4


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the element of *known* most similar to *word*; empty if none is similar."""
    import difflib  # slow to import, and only needed for error messages

    names = list(known)
    ends = [name for name in names if name.endswith((f".{word}", f"/{word}"))]
    close = ends if len(ends) == 1 else difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class McpdError(Exception):
    """Base class of all failures that callers see; raised directly, it is an internal error."""

    dbus_name: ClassVar[str] = FREEDESKTOP_PREFIX + "Failed"
    jsonrpc_code: ClassVar[int] = -32603
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = EXIT_FAILED
    data: dict[str, object] | None = None
    """The ``data`` of a JSON-RPC error, in addition to the message."""

    @property
    def word(self) -> str:
        """The D-Bus error name without its prefix: ``NotFound``."""
        return self.dbus_name.rpartition(".")[2]

    @property
    def message(self) -> str:
        """The text shown to the caller."""
        return str(self.args[0]) if self.args else type(self).__name__


class NotFound(McpdError):
    """No server, entry, registry, job or session has that name."""

    dbus_name = ERROR_PREFIX + "NotFound"
    jsonrpc_code = -32602
    http_status = 404
    exit_code = EXIT_NOT_FOUND


class AlreadyInstalled(McpdError):
    """The server is already installed, or another server has the same id."""

    dbus_name = ERROR_PREFIX + "AlreadyInstalled"
    http_status = 409


class InvalidArgument(McpdError):
    """An argument of a call is not valid."""

    dbus_name = FREEDESKTOP_PREFIX + "InvalidArgs"
    jsonrpc_code = -32602
    http_status = 400
    exit_code = EXIT_USAGE


class InvalidManifest(McpdError):
    """A manifest or registry entry cannot be used."""

    dbus_name = ERROR_PREFIX + "InvalidManifest"
    http_status = 422


class InvalidConfig(McpdError):
    """A configuration value, or a settings file, cannot be used."""

    dbus_name = ERROR_PREFIX + "InvalidConfig"
    jsonrpc_code = -32602
    http_status = 422


class ConfigMissing(McpdError):
    """A required configuration value is not set."""

    dbus_name = ERROR_PREFIX + "ConfigMissing"
    http_status = 409


class IntegrityMismatch(McpdError):
    """Fetched data does not match its pin (revision or hash)."""

    dbus_name = ERROR_PREFIX + "IntegrityMismatch"
    http_status = 502


class SignatureInvalid(IntegrityMismatch):
    """A required signature is missing, or was not made by a trusted key."""

    dbus_name = ERROR_PREFIX + "SignatureInvalid"


class SourceUnavailable(McpdError):
    """A registry or package source could not be read."""

    dbus_name = ERROR_PREFIX + "SourceUnavailable"
    http_status = 502


class BuildFailed(McpdError):
    """The package was fetched but could not be built or installed."""

    dbus_name = ERROR_PREFIX + "BuildFailed"
    http_status = 502


class Unhealthy(McpdError):
    """An installed server did not start, or did not answer ``tools/list``."""

    dbus_name = ERROR_PREFIX + "Unhealthy"
    http_status = 502


class NeedsApproval(McpdError):
    """An update adds or changes tools and is waiting for approval."""

    dbus_name = ERROR_PREFIX + "NeedsApproval"
    http_status = 409


class ReadOnly(McpdError):
    """The object belongs to a layer that this instance must not change."""

    dbus_name = ERROR_PREFIX + "ReadOnly"
    http_status = 403


class Busy(McpdError):
    """Another job is changing the object."""

    dbus_name = ERROR_PREFIX + "Busy"
    http_status = 409


class Cancelled(McpdError):
    """The job was cancelled."""

    dbus_name = ERROR_PREFIX + "Cancelled"
    http_status = 409


class NoSpace(McpdError):
    """The disk or the quota is full."""

    dbus_name = ERROR_PREFIX + "NoSpace"
    http_status = 507


class SpawnFailed(McpdError):
    """A server could not be started."""

    dbus_name = ERROR_PREFIX + "SpawnFailed"
    http_status = 502


class SandboxUnavailable(SpawnFailed):
    """The sandbox could not be built, so nothing was started."""

    dbus_name = ERROR_PREFIX + "SandboxUnavailable"


class HeldBack(SpawnFailed):
    """The server keeps crashing and is not started again yet."""

    dbus_name = ERROR_PREFIX + "HeldBack"
    http_status = 503


class NotStdio(McpdError):
    """The server has no transport that mcpd can start or reach."""

    dbus_name = ERROR_PREFIX + "NotStdio"
    http_status = 422


class SystemInstanceOnly(McpdError):
    """Only the system instance can start the server (``runtime.runAs = "system"``)."""

    dbus_name = ERROR_PREFIX + "SystemInstanceOnly"
    http_status = 403


class NeedsBridge(McpdError):
    """The server must be used through the bridge, which filters or shares it."""

    dbus_name = ERROR_PREFIX + "NeedsBridge"
    http_status = 403


class Disabled(McpdError):
    """The server is disabled."""

    dbus_name = ERROR_PREFIX + "Disabled"
    http_status = 403


class TimedOut(McpdError):
    """An operation did not finish in time."""

    dbus_name = FREEDESKTOP_PREFIX + "Timeout"
    jsonrpc_code = -32000
    http_status = 504


class LimitExceeded(McpdError):
    """A limit on size, number or rate was reached."""

    dbus_name = FREEDESKTOP_PREFIX + "LimitsExceeded"
    jsonrpc_code = -32005
    http_status = 429


class NotAuthorized(McpdError):
    """The caller may not do this."""

    dbus_name = FREEDESKTOP_PREFIX + "AccessDenied"
    http_status = 403
    exit_code = EXIT_NOT_AUTHORIZED


class InteractionRequired(NotAuthorized):
    """The caller may do this after authenticating, but did not allow interaction."""

    dbus_name = FREEDESKTOP_PREFIX + "InteractiveAuthorizationRequired"


class ParseError(McpdError):
    """A message is not JSON."""

    dbus_name = ERROR_PREFIX + "ParseError"
    jsonrpc_code = -32700
    http_status = 400


class InvalidRequest(McpdError):
    """A message is JSON, but not a request that can be served."""

    dbus_name = ERROR_PREFIX + "InvalidRequest"
    jsonrpc_code = -32600
    http_status = 400


class HeaderMismatch(McpdError):
    """A header of a request contradicts its body, or is missing (revision 2026-07-28)."""

    dbus_name = ERROR_PREFIX + "HeaderMismatch"
    jsonrpc_code = -32020
    http_status = 400


class MissingCapability(McpdError):
    """A server needs a capability that its client did not declare."""

    dbus_name = ERROR_PREFIX + "MissingCapability"
    jsonrpc_code = -32021
    http_status = 400

    def __init__(self, message: str, capabilities: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.data = {"requiredCapabilities": capabilities or {}}


class UnsupportedRevision(McpdError):
    """The MCP revision that a request asks for is not supported."""

    dbus_name = ERROR_PREFIX + "UnsupportedRevision"
    jsonrpc_code = -32022
    http_status = 400

    def __init__(self, message: str, supported: Sequence[str] = (), requested: str = "") -> None:
        super().__init__(message)
        self.data = {"supported": list(supported), "requested": requested}


class TooLarge(LimitExceeded):
    """A message is larger than the limit."""

    dbus_name = ERROR_PREFIX + "TooLarge"
    http_status = 413


class Unauthenticated(NotAuthorized):
    """The caller's credentials are missing or wrong."""

    dbus_name = FREEDESKTOP_PREFIX + "AuthFailed"
    http_status = 401


class NotSupported(McpdError):
    """This instance does not support the operation."""

    dbus_name = FREEDESKTOP_PREFIX + "NotSupported"
    http_status = 501


class ServiceUnavailable(McpdError):
    """mcpd, or the bus it listens on, cannot be reached."""

    dbus_name = FREEDESKTOP_PREFIX + "ServiceUnknown"
    http_status = 503


class UnknownObject(McpdError):
    """No object exists at that D-Bus path."""

    dbus_name = FREEDESKTOP_PREFIX + "UnknownObject"
    http_status = 404
    exit_code = EXIT_NOT_FOUND


class UnknownInterface(McpdError):
    """The object has no such D-Bus interface."""

    dbus_name = FREEDESKTOP_PREFIX + "UnknownInterface"
    http_status = 404


class UnknownMethod(McpdError):
    """The D-Bus interface, or the MCP server, has no such method."""

    dbus_name = FREEDESKTOP_PREFIX + "UnknownMethod"
    jsonrpc_code = -32601
    http_status = 404


class UnknownProperty(McpdError):
    """The D-Bus interface has no such property."""

    dbus_name = FREEDESKTOP_PREFIX + "UnknownProperty"
    http_status = 404


class PropertyReadOnly(McpdError):
    """The property is read-only."""

    dbus_name = FREEDESKTOP_PREFIX + "PropertyReadOnly"
    http_status = 403


def _walk(cls: type[McpdError]) -> list[type[McpdError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _walk(child))]


TABLE: Final[tuple[type[McpdError], ...]] = tuple(_walk(McpdError))
"""All error classes, the base class first."""

_BY_DBUS_NAME: Final = {cls.dbus_name: cls for cls in TABLE}


def from_dbus(name: str, message: str) -> McpdError:
    """Return the error for a D-Bus reply named *name*; unknown names become :class:`McpdError`."""
    if name == FREEDESKTOP_PREFIX + "NoReply":
        return ServiceUnavailable(message)
    return _BY_DBUS_NAME.get(name, McpdError)(message)


def from_oserror(error: OSError, doing: str) -> McpdError:
    """Convert *error*, raised while *doing* (e.g. ``"writing /x"``), to an mcpd error whose message names both."""
    text = f"{doing}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{text}. Free some space and try again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(text)
    return McpdError(text)
