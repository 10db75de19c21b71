# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus interfaces: their declaration in XML, and the decorators of the methods that implement them.

A method of an interface is a decorated method of the class of its objects. ``list_servers`` implements ``ListServers``
and takes the call, then the arguments in the order of the XML::

    @method("uninstall", details={"id": "server_id"})
    def uninstall(self, call: Call, server_id: str, options: Options) -> str: ...
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar

from mcpd.bus.names import JOB, MANAGER, SERVER, SESSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from importlib.resources.abc import Traversable

    from mcpd.bus.caller import Call

P = ParamSpec("P")
"""The arguments of a D-Bus method."""
S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")

EMITS_CHANGED: Final = "org.freedesktop.DBus.Property.EmitsChangedSignal"
_DOCTYPE: Final = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"\n'
    '  "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of an interface."""

    interface: str
    name: str
    in_signature: str
    """Signature of the arguments."""
    out_signature: str
    """Signature of the results."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property of an interface."""

    name: str
    signature: str
    emits_changed: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface, as its XML file declares it."""

    name: str
    methods: Mapping[str, Method]
    signals: Mapping[str, str]
    """Signatures of the signals, by name."""
    properties: Mapping[str, Property]
    xml: str
    """The ``interface`` element with its annotations, without the comments."""


@cache
def interfaces() -> Mapping[str, Interface]:
    """Return all interfaces that mcpd serves, including the standard ones, by name."""
    found: dict[str, Interface] = {}
    for name in (MANAGER, SERVER, JOB, SESSION):
        found |= _parse(_directory() / f"{name}.xml")
    return MappingProxyType(found | _parse(files("mcpd.bus") / "standard.xml"))


def introspection(names: list[str], children: list[str]) -> str:
    """Return the introspection data of an object with the interfaces *names* and the child nodes *children*."""
    lines = [_DOCTYPE, "<node>\n"]
    lines += [interfaces()[name].xml for name in names]
    lines += [f'  <node name="{child}"/>\n' for child in children]
    lines.append("</node>\n")
    return "".join(lines)


def _directory() -> Traversable:
    """Return the directory of the XML files: in the installed package, or next to it in a source tree."""
    packaged = files("mcpd.bus") / "interfaces"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "dbus"


def _parse(file: Traversable) -> dict[str, Interface]:
    node = ET.fromstring(file.read_text(encoding="utf-8"))  # noqa: S314 -- our own file
    return {element.attrib["name"]: _interface(element) for element in node.iter("interface")}


def _interface(element: ET.Element) -> Interface:
    name = element.attrib["name"]
    ET.indent(element, level=1)
    element.tail = "\n"
    return Interface(
        name=name,
        methods={m.attrib["name"]: _method(name, m) for m in element.iter("method")},
        signals={s.attrib["name"]: "".join(a.attrib["type"] for a in s.iter("arg")) for s in element.iter("signal")},
        properties={p.attrib["name"]: _property(p) for p in element.iter("property")},
        xml="  " + ET.tostring(element, encoding="unicode"),
    )


def _method(interface: str, element: ET.Element) -> Method:
    def signature(direction: str) -> str:
        return "".join(a.attrib["type"] for a in element.iter("arg") if a.get("direction", "in") == direction)

    return Method(interface, element.attrib["name"], signature("in"), signature("out"))


def _property(element: ET.Element) -> Property:
    emits = {a.attrib["name"]: a.attrib["value"] for a in element.iter("annotation")}.get(EMITS_CHANGED, "true")
    writable = element.attrib["access"] == "readwrite"
    return Property(element.attrib["name"], element.attrib["type"], emits == "true", writable)


@dataclass(frozen=True, slots=True)
class Authorization(Generic[T]):
    """The authorization that a call needs, and what exactly it covers."""

    action: str | None
    """The polkit action without its prefix; ``None`` if anyone may call the method."""
    details: Mapping[str, object]
    """Details that the prompt shows and that polkit rules may read; of a dictionary, only the keys."""
    covered: T
    """Passed to the method, which uses this instead of a new look-up, so that it does exactly what was authorized."""


Authorizer: TypeAlias = "Callable[Concatenate[S, Call, P], Authorization[T] | Awaitable[Authorization[T]]]"


@dataclass(frozen=True, slots=True)
class Handler:
    """The implementation of a D-Bus method."""

    authorize: Callable[..., Authorization[Any] | Awaitable[Authorization[Any]]] | None
    """Called with the object, the call and the arguments; ``None`` if anyone may call the method."""
    run: Callable[..., object]
    """Called with the object, the call, :attr:`Authorization.covered` and the arguments."""
    changes: bool
    """True if the method changes what is installed or configured, which a read-only mcpd refuses."""


_handlers: Final[dict[object, Handler]] = {}
"""Handlers, by the decorated function."""


def method(
    action: str | None = None, *, details: Mapping[str, str] = MappingProxyType({}), changes: bool | None = None
) -> Callable[[Callable[Concatenate[S, Call, P], R]], Callable[Concatenate[S, Call, P], R]]:
    """Mark a method of a class as a D-Bus method that needs the polkit *action*, by default none.

    *details* maps the keys of the polkit details to the names of the parameters that have the values. *changes* is true
    if the method changes something; by default, if it needs an action.
    """

    def mark(function: Callable[Concatenate[S, Call, P], R]) -> Callable[Concatenate[S, Call, P], R]:
        code = function.__code__
        places = {key: code.co_varnames.index(name, 2, code.co_argcount) - 2 for key, name in details.items()}

        def authorize(_target: S, _call: Call, *args: object) -> Authorization[None]:
            return Authorization(action, {key: args[place] for key, place in places.items()}, None)

        def run(target: S, call: Call, _covered: None, *args: P.args, **_: P.kwargs) -> R:
            return function(target, call, *args, **_)

        needs_action = action is not None
        _handlers[function] = Handler(
            authorize if needs_action else None, run, needs_action if changes is None else changes
        )
        return function

    return mark


def authorized_method(
    authorize: Authorizer[S, P, T], *, changes: bool = True
) -> Callable[[Callable[Concatenate[S, Call, T, P], R]], Callable[Concatenate[S, Call, T, P], R]]:
    """Mark a method as :func:`method` does, where *authorize*, a method with the same arguments, decides the action.

    The marked method receives :attr:`Authorization.covered` as the argument after the call.
    """

    def mark(function: Callable[Concatenate[S, Call, T, P], R]) -> Callable[Concatenate[S, Call, T, P], R]:
        _handlers[function] = Handler(authorize, function, changes)
        return function

    return mark


@cache
def handlers(implementation: type) -> Mapping[str, Handler]:
    """Return the handlers of the D-Bus methods of the class *implementation*, by their name on the bus."""
    functions = {name: f for name, f in vars(implementation).items() if isinstance(f, FunctionType)}
    return {camel_case(name): _handlers[f] for name, f in functions.items() if f in _handlers}


def camel_case(name: str) -> str:
    """Return the name on the bus of the Python function *name*: ``GetServer`` for ``get_server``."""
    return "".join(part.capitalize() for part in name.split("_"))
