# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results and errors of the handshake era, as a client of revision 2026-07-28 has to see them.

They are edited on the level of members, so that a large result is copied but never built as objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.modern import envelope

if TYPE_CHECKING:
    from mcpd.bridge.jsonrpc import Message

CACHEABLE: Final = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
)
"""Methods whose results say how long they may be kept."""
MRTR: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Methods whose result may be that the client has to answer something first."""
REMOVED: Final = frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that this revision does not have any more."""
_STATUS: Final = {-32700: 400, -32600: 400, -32602: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}
_NOT_FOUND: Final = -32002
"""How revisions up to 2025-11-25 say that there is no such resource."""
URL_REQUIRED: Final = -32042
"""How 2025-11-25 says that the client has to open a URL first."""
MOST_URLS: Final = 16
"""URLs that one error may ask for."""
_INTERNAL: Final = -32603
_INVALID_PARAMS: Final = -32602
_COMPLETE: Final = Raw(b'"complete"')
_FRESHNESS: Final[Message] = {"ttlMs": Raw(b"0"), "cacheScope": Raw(b'"private"')}


def status_of(code: int) -> int:
    """The HTTP status with which an error of that *code* travels."""
    return _STATUS.get(code, 200)


def code_of(error: Raw) -> int:
    """The code of an error; that of an internal one if it has none."""
    try:
        return int(msgspec.json.decode(jsonrpc.members(error).get("code", b"0"), type=int)) or _INTERNAL
    except msgspec.DecodeError:
        return _INTERNAL


def stamp(server_info: bytes) -> bytes:
    """With what a result of a server with that JSON ``serverInfo``, empty if it has none, begins in this revision."""
    meta = b',"_meta":{"%b":%b}' % (envelope.SERVER_INFO.encode(), server_info) if server_info else b""
    return b'{"resultType":"complete"' + meta


def complete(result: Raw, begin: bytes) -> Raw:
    """The *result* of a handshake server as one of this revision, that begins with the :func:`stamp` *begin*."""
    members = jsonrpc.members(result)
    if members and "_meta" not in members and "resultType" not in members:
        # Nothing is said twice, so that what came can stay as it is; joined, as that copies it once.
        return Raw(b"".join((begin, b",", memoryview(result)[1:])))
    own = jsonrpc.members(Raw(begin + b"}"))
    meta = {**jsonrpc.members(own.get("_meta")), **jsonrpc.members(members.get("_meta"))}
    if meta:
        members["_meta"] = Raw(jsonrpc.encode(meta))
    return Raw(jsonrpc.encode({**members, "resultType": _COMPLETE}))


def complete_cacheable(result: Raw, begin: bytes) -> Raw:
    """The same for a result that says for how long it may be kept."""
    return Raw(jsonrpc.encode({**jsonrpc.members(complete(result, begin)), **_FRESHNESS}))


def translate_error(error: Raw, method: str, params: Message) -> tuple[Raw, int]:
    """The *error* of a handshake server as this revision has it, and its code.

    Only codes that this revision forbids change, and what is no code at all.
    """
    members = jsonrpc.members(error)
    code = code_of(error)
    if code == _NOT_FOUND:
        code = _INVALID_PARAMS
        if "data" not in members and method == "resources/read" and "uri" in params:
            members["data"] = Raw(jsonrpc.encode({"uri": params["uri"]}))
    elif code == URL_REQUIRED:
        code = _INTERNAL
    elif "code" in members and "message" in members:
        return error, code
    members["code"] = Raw(b"%d" % code)
    members.setdefault("message", Raw(b'"the server gave no message"'))
    return Raw(jsonrpc.encode(members)), code


def discovered(initialized: bytes, *, speaks_handshake: bool = True) -> bytes:
    """Return a handshake server's answer to ``initialize`` as the result of ``server/discover``."""
    members = jsonrpc.members(Raw(initialized))
    capabilities = jsonrpc.members(members.get("capabilities"))
    capabilities.pop("tasks", None)
    result: Message = {
        "supportedVersions": versions(speaks_handshake=speaks_handshake),
        "capabilities": Raw(jsonrpc.encode(capabilities)),
    }
    if "instructions" in members:
        result["instructions"] = members["instructions"]
    return bytes(complete_cacheable(Raw(jsonrpc.encode(result)), stamp(server_info_of(initialized))))


def versions(*, speaks_handshake: bool) -> Raw:
    """The revisions in which a server can be used through the bridge."""
    return Raw(jsonrpc.encode(eras.SUPPORTED if speaks_handshake else (eras.MODERN,)))


def server_info_of(initialized: bytes) -> bytes:
    """The ``serverInfo`` of an InitializeResult, empty if it has none."""
    return bytes(jsonrpc.members(Raw(initialized)).get("serverInfo", b""))


def input_required(asks: dict[str, Message], state: str, server_info: bytes) -> bytes:
    """The result that has the client answer *asks*, by key, and come back with *state*, if that is not empty."""
    result: dict[str, Any] = {"resultType": "input_required", "inputRequests": asks}
    if state:
        result["requestState"] = state
    if server_info:
        result["_meta"] = {envelope.SERVER_INFO: Raw(server_info)}
    return jsonrpc.encode(result)


def input_request(method: str, params: Raw | None) -> Message:
    """A request that a handshake server made, as the client gets it within a result."""
    request: Message = {"method": Raw(jsonrpc.encode(method))}
    members = jsonrpc.members(params)
    for name in ("_meta", "task", "elicitationId"):
        members.pop(name, None)
    if members:
        request["params"] = Raw(jsonrpc.encode(members))
    return request


def urls_to_open(error: Raw) -> dict[str, Message]:
    """The requests to open URLs that an *error* of revision 2025-11-25 stands for; empty for another error."""
    if code_of(error) != URL_REQUIRED:
        return {}
    data = jsonrpc.members(jsonrpc.members(error).get("data"))
    asks: dict[str, Message] = {}
    for number, raw in enumerate(jsonrpc.elements(data.get("elicitations"))[:MOST_URLS], 1):
        asked = jsonrpc.members(raw)
        if "url" in asked and "message" in asked:
            asks[f"url-{number}"] = input_request("elicitation/create", Raw(jsonrpc.encode({**asked, "mode": "url"})))
    return asks


def needed(method: str, params: Raw | None) -> tuple[str, ...]:
    """What a client has to have declared for the request *method* of a server; empty for one that no client knows."""
    members = jsonrpc.members(params)
    if method == "roots/list":
        return ("roots",)
    if method == "elicitation/create":
        return ("elicitation/url" if bytes(members.get("mode", b"")) == b'"url"' else "elicitation/form",)
    if method == "sampling/createMessage":
        return ("sampling", "sampling/tools") if "tools" in members or "toolChoice" in members else ("sampling",)
    return ()


def as_capabilities(names: tuple[str, ...]) -> dict[str, object]:
    """The capabilities *names*, as they are declared."""
    found: dict[str, object] = {}
    for name in names:
        outer, _, inner = name.partition("/")
        place = found.setdefault(outer, {})
        if inner and isinstance(place, dict):
            place[inner] = {}
    return found
