# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an ``mcps`` entry changes of a server (``docs/mcps.md``): which tools it offers, under which names, with which
arguments, and whether it has resources and prompts.

A policy is a row of stages, the system's first. Each is about the server as those before it leave it: a call comes in
through the last, an answer goes out from the first, so none can undo what one before it did.

It stands at the pipe of a process (:mod:`.child`), where every way in passes once. Servers read JSON in ways of their
own: some take ``Name`` for ``name``, some the first of two equal members. So what a policy lets through is written
anew, and what could be read otherwise is refused.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from mcpd.bridge import jsonrpc
from mcpd.bridge.eras import META_VERSION
from mcpd.bridge.upstream.call import both
from mcpd.bridge.upstream.hops import counted
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, UnknownMethod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.observe.watch import Watch
    from mcpd.bridge.upstream.call import Call, Shape

_MODERN: Final = b'"%b"' % META_VERSION.encode()
_FACILITIES: Final = ("prompts", "resources")
_ENVELOPE: Final = frozenset({"jsonrpc", "id", "method", "params"})
_RESPONSE: Final = ("jsonrpc", "id", "result", "error")
_CALL: Final = frozenset({"name", "arguments", "_meta", "task"})
_COMPLETION: Final = frozenset({"ref", "argument", "context", "_meta"})
_REF: Final = frozenset({"type", "name", "uri", "title"})
_LISTEN: Final = frozenset({"notifications", "_meta"})
_CHANGES: Final = {
    "prompts": frozenset({"promptsListChanged"}),
    "resources": frozenset({"resourcesListChanged", "resourceSubscriptions"}),
}
"""What ``subscriptions/listen`` asks for, by facility."""
_ASKED: Final = frozenset({"toolsListChanged"}).union(*_CHANGES.values())
_NULL: Final = b"null"


class Answered(Exception):
    """The policy answers a request itself; *members* are its ``result`` or its ``error``."""

    def __init__(self, members: Message) -> None:
        super().__init__()
        self.members = members


class Policy(Protocol):
    """The rules of the entries for one server."""

    def apply(self, method: str, message: Message) -> tuple[Message, Shape | None]:
        """The request *message* as the server is to see it, and what is to be done with the response.

        Raises :class:`Answered` for what the server is not to see.
        """

    def allows_notification(self, message: Message) -> bool:
        """Return True if the server may see the notification *message* of a client."""

    def lets_out(self, method: str) -> bool:
        """Return True if clients may hear the notification *method* of the server."""

    def response(self, message: Message) -> Message:
        """The response *message* of a client, as the server may see it."""


class _Argument(Struct, frozen=True):
    default: Raw | UnsetType = UNSET
    hide: bool = False
    description: str | None = None


class _Tool(Struct, frozen=True):
    enabled: bool = True
    name: str | None = None
    title: str | None = None
    description: str | None = None
    inputSchema: Raw | UnsetType = UNSET  # noqa: N815 -- as MCP calls it
    arguments: dict[str, _Argument] = {}

    @property
    def restricts(self) -> bool:
        """True if clients do not have the tool as the server has it."""
        return not self.enabled or bool(self.name or self.arguments)


class _Rules(Struct, frozen=True):
    tools: dict[str, _Tool] = {}
    allowed_tools: list[str] | None = None
    disallowed_tools: list[str] = []
    prompts: bool = True
    resources: bool = True


class _Stage:
    """The rules of one entry."""

    def __init__(self, rules: _Rules) -> None:
        self.tools: Mapping[str, _Tool] = rules.tools
        self._allowed = rules.allowed_tools
        self._disallowed = rules.disallowed_tools
        self._renamed = {tool.name: name for name, tool in rules.tools.items() if tool.name and tool.enabled}
        self._spelled = {_spelling(name) for name, tool in rules.tools.items() if tool.restricts}
        self.changes_tools = bool(rules.tools or rules.disallowed_tools or rules.allowed_tools is not None)

    def outward(self, name: str) -> str:
        """Return the name of the tool *name* for clients; empty if they do not get it.

        A server may know a tool by names that differ in ``/``, ``.`` and ``_``: none of them gets around a rule.
        """
        tool = self.tools.get(name)
        if tool is None and _spelling(name) in self._spelled:
            return ""
        if tool is not None and not tool.enabled:
            return ""
        if self._allowed is not None and not _matches(name, self._allowed):
            return ""
        if _matches(name, self._disallowed) or _matches(_spelling(name), map(_spelling, self._disallowed)):
            return ""
        outward = tool.name if tool is not None and tool.name else name
        return "" if self._renamed.get(outward, name) != name else outward

    def inward(self, name: str) -> str:
        """The opposite."""
        found = self._renamed.get(name, name)
        return found if self.outward(found) == name else ""

    def fill(self, name: str, arguments: Message) -> None:
        """Set what clients of the tool *name* cannot, and what they did not."""
        tool = self.tools.get(name)
        for key, rule in tool.arguments.items() if tool is not None else ():
            if not rule.hide:
                if rule.default is not UNSET:
                    arguments.setdefault(key, rule.default)
                continue
            lower = key.casefold()
            alike = next((given for given in arguments if given != key and given.casefold() == lower), None)
            if alike is not None:
                raise InvalidArgument(f"the argument {alike[:100]!r} is not one of this tool")
            arguments.pop(key, None)
            if rule.default is not UNSET:
                arguments[key] = rule.default

    def shown(self, raw: Raw) -> Raw | None:
        """A tool of a list as clients see it; ``None`` if they do not."""
        members = jsonrpc.members(raw)
        name = jsonrpc.text(members.get("name"))
        outward = self.outward(name) if name else ""
        if not outward:
            return None
        tool = self.tools.get(name)
        if tool is None:
            return raw
        members["name"] = _json(outward)
        for key, value in (("title", tool.title), ("description", tool.description)):
            if value is not None:
                members[key] = _json(value)
        if tool.inputSchema is not UNSET:
            members["inputSchema"] = tool.inputSchema
        if tool.arguments:
            members["inputSchema"] = _narrowed(members.get("inputSchema"), tool.arguments)
        return _json(members)


class Stages:
    """The policy of a server, see :class:`Policy`."""

    def __init__(self, rules: list[_Rules]) -> None:
        stages = [_Stage(each) for each in rules]
        self._stages = [stage for stage in stages if stage.changes_tools]
        self._without = tuple(name for name in _FACILITIES if not all(getattr(each, name) for each in rules))

    def apply(self, method: str, message: Message) -> tuple[Message, Shape | None]:
        """See :class:`Policy`."""
        try:
            if method == "tools/call":
                return self._call(message), None
            if method == "tools/list":
                return message, self._list
            if method in {"initialize", "server/discover"}:
                return message, self._greeting
            message = self._without_facilities(method, message)
        except McpdError as fault:
            raise Answered(_failure(fault)) from None
        return message, None

    def allows_notification(self, message: Message) -> bool:
        """See :class:`Policy`. A request without an id is none, though a server may take it for one."""
        return all(key in _ENVELOPE for key in message) and jsonrpc.method_of(message).startswith("notifications/")

    def lets_out(self, method: str) -> bool:
        """See :class:`Policy`."""
        return not any(method.startswith(f"notifications/{name}/") for name in self._without)

    def response(self, message: Message) -> Message:
        """See :class:`Policy`."""
        return {key: message[key] for key in _RESPONSE if key in message}

    def _call(self, message: Message) -> Message:
        if not self._stages:
            return message
        params = jsonrpc.members(message.get("params"))
        jsonrpc.refuse_alike(params, _CALL)
        called = name = jsonrpc.text(params.get("name"))
        if not name:
            raise InvalidArgument("'name' is not the name of a tool")
        raw = params.get("arguments")
        given = bytes(raw) if raw is not None else _NULL
        if given != _NULL and given[:1] != b"{":
            raise InvalidArgument("'arguments' is not an object")
        arguments = jsonrpc.members(raw)
        for stage in reversed(self._stages):
            name = stage.inward(name)
            if not name:
                raise Answered({"result": _unknown(called, modern=_MODERN in bytes(message["params"]))})
            stage.fill(name, arguments)
        params["name"] = _json(name)
        if arguments or given != _NULL:
            params["arguments"] = _json(arguments)
        return {**message, "params": _json(params)}

    def _list(self, response: Message) -> None:
        result = jsonrpc.members(response.get("result"))
        if "tools" not in result:
            return
        tools = jsonrpc.elements(result["tools"])
        for stage in self._stages:
            tools = [shown for tool in tools if (shown := stage.shown(tool)) is not None]
        result["tools"] = _json(tools)
        response["result"] = _json(result)

    def _greeting(self, response: Message) -> None:
        result = jsonrpc.members(response.get("result"))
        capabilities = jsonrpc.members(result.get("capabilities"))
        if any(capabilities.pop(name, None) is not None for name in self._without):
            for name in self._without:
                capabilities.pop(name, None)
            result["capabilities"] = _json(capabilities)
            response["result"] = _json(result)

    def _without_facilities(self, method: str, message: Message) -> Message:
        for name in self._without:
            if method.startswith(f"{name}/"):
                raise UnknownMethod(f"this server has no {name}")
        if self._without and method == "completion/complete":
            return self._completion(message)
        if self._without and method == "subscriptions/listen":
            return self._listen(message)
        return message

    def _completion(self, message: Message) -> Message:
        params = jsonrpc.members(message.get("params"))
        jsonrpc.refuse_alike(params, _COMPLETION)
        ref = jsonrpc.members(params.get("ref"))
        jsonrpc.refuse_alike(ref, _REF)
        kind = jsonrpc.text(ref.get("type"))
        left = [f"ref/{name[:-1]}" for name in _FACILITIES if name not in self._without]
        if kind not in left:
            raise InvalidArgument(f"this server completes {' and '.join(left) or 'nothing'}, and not {kind[:40]!r}")
        params["ref"] = _json(ref)
        return {**message, "params": _json(params)}

    def _listen(self, message: Message) -> Message:
        params = jsonrpc.members(message.get("params"))
        jsonrpc.refuse_alike(params, _LISTEN)
        asked = jsonrpc.members(params.get("notifications"))
        jsonrpc.refuse_alike(asked, _ASKED)
        for name in self._without:
            for each in _CHANGES[name]:
                asked.pop(each, None)
        params["notifications"] = _json(asked)
        return {**message, "params": _json(params)}


def screened(
    policy: Policy | None, caller: Caller | None, method: str, message: Message, shape: Shape | None
) -> tuple[Message, Shape | None]:
    """*message* of *caller* as *policy* lets it through, and what it does with the response followed by *shape*.

    Raises :class:`Answered`.
    """
    if caller is not None and caller.server:
        try:
            message = counted(message)
        except McpdError as fault:
            raise Answered(_failure(fault)) from None
    if policy is None:
        return message, shape
    message, own = policy.apply(method, message)
    return message, both(own, shape)


def answer(call: Call, answered: Answered, server: str, watch: Watch) -> None:
    """Answer *call* in the place of *server*, which does not see it."""
    call.respond({"jsonrpc": Raw(b'"2.0"'), "id": Raw(call.id), **answered.members}, server, watch)


def _failure(fault: McpdError) -> Message:
    return {"error": _json({"code": fault.jsonrpc_code, "message": fault.message})}


@lru_cache(maxsize=256)
def load(text: str) -> Stages | None:
    """The policy that mcpd hands over as the JSON *text*; ``None`` for an empty one.

    Raises :class:`~mcpd.errors.InvalidConfig`, as a server whose policy is not understood is not to be used.
    """
    return Stages(_decoded(text)) if text else None


def without_tool(text: str, names: Iterable[str]) -> list[str]:
    """Return what the policy *text* of one entry says of tools of which the server, with tools *names*, has none.

    Each as it is named in the entry: ``tools.NAME``, ``allowed_tools: PATTERN``. Raises as :func:`load` does.
    """
    known = frozenset(names)
    spelled = frozenset(map(_spelling, known))
    found: list[str] = []
    for rules in _decoded(text):
        found += [
            f"tools.{name}"
            for name, tool in rules.tools.items()
            if name not in known and not (tool.restricts and _spelling(name) in spelled)
        ]
        patterns = [("allowed_tools", each) for each in rules.allowed_tools or ()]
        patterns += [("disallowed_tools", each) for each in rules.disallowed_tools]
        found += [
            f"{field}: {pattern}"
            for field, pattern in patterns
            if not any(_matches(name, [pattern]) for name in known)
            and not any(_matches(name, [_spelling(pattern)]) for name in spelled)
        ]
    return found


def _decoded(text: str) -> list[_Rules]:
    try:
        return msgspec.json.decode(text, type=list[_Rules]) if text else []
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidConfig(f"the policy that mcpd gives for this server cannot be read: {error}") from None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _spelling(name: str) -> str:
    return name.replace("/", "_").replace(".", "_")


def _narrowed(schema: Raw | None, rules: Mapping[str, _Argument]) -> Raw:
    members = jsonrpc.members(schema)
    properties = jsonrpc.members(members.get("properties"))
    optional = {name for name, rule in rules.items() if rule.hide or rule.default is not UNSET}
    for name, rule in rules.items():
        if rule.hide:
            properties.pop(name, None)
        elif name in properties:
            said = jsonrpc.members(properties[name])
            if rule.default is not UNSET:
                said["default"] = rule.default
            if rule.description is not None:
                said["description"] = _json(rule.description)
            properties[name] = _json(said)
    if "properties" in members:
        members["properties"] = _json(properties)
    if "required" in members:
        required = jsonrpc.elements(members["required"])
        members["required"] = _json([each for each in required if jsonrpc.text(each) not in optional])
    return _json(members)


def _unknown(name: str, *, modern: bool) -> Raw:
    """As servers answer a call of a tool that they do not have: a model can read it and choose another one."""
    result: dict[str, object] = {"content": [{"type": "text", "text": f"Unknown tool: {name[:256]}"}], "isError": True}
    return _json({"resultType": "complete", **result} if modern else result)


def _json(value: object) -> Raw:
    return Raw(jsonrpc.encode(value))
