# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus interfaces as declared in XML: signatures for the dispatcher, text for introspection."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from mcpd.bus.names import JOB, MANAGER, SERVER, SESSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

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
    """Name to signature."""
    properties: Mapping[str, Property]
    xml: str
    """The ``interface`` element with its annotations, without the comments."""


@cache
def interfaces() -> Mapping[str, Interface]:
    """Return all interfaces that mcpd serves by name, including the standard ones."""
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
    """Return the directory of the XML files: in the installed package, or beside it in a source tree."""
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
