# SPDX-License-Identifier: LGPL-2.1-or-later
"""The objects on the bus: their properties, their coming and going, and the standard interfaces over them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from mcpd.bus import codec, contract
from mcpd.bus.names import INTROSPECTABLE, MANAGER, OBJECT_MANAGER, PEER, PROPERTIES, ROOT
from mcpd.errors import (
    McpdError,
    NotAuthorized,
    PropertyReadOnly,
    ServiceUnavailable,
    UnknownInterface,
    UnknownObject,
    UnknownProperty,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcpd.bus.caller import Call
    from mcpd.bus.codec import Raw, Variant
    from mcpd.bus.connection import Connection
    from mcpd.runtime.sessions import Owner

CHANGE_INTERVAL: Final = 0.1
"""Seconds between two PropertiesChanged of one object, unless the change is urgent."""
_MANAGED: Final = "a{oa{sa{sv}}}"

log = logging.getLogger(__name__)


class Target(Protocol):
    """What stands behind an object: one interface with its properties, and the methods its table names."""

    interface: str

    def properties(self) -> Mapping[str, Variant]:
        """Every property of the interface."""


@runtime_checkable
class Writable(Target, Protocol):
    """A target with properties that are set."""

    def set_property(self, call: Call, name: str, value: object) -> None:
        """Set the property *name*, which its XML calls writable, if *call* may. Raises what the caller is told."""


@dataclass(slots=True)
class _Object:
    target: Target
    owner: Owner | None = None
    blob: Raw | None = None
    """The object as an entry of GetManagedObjects, until a property changes."""
    pending: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    last: float = 0.0

    def is_shown_to(self, call: Call) -> bool:
        """Whether the caller may read the properties."""
        owner = self.owner
        return owner is None or call.uid in (0, owner.uid) or call.sender == owner.name


class Objects:
    """What is at which path. Tells the bus about every difference once :meth:`announce` was called."""

    def __init__(self, connection: Connection, clients: Callable[[int], Iterable[str]]) -> None:
        """*clients* returns the unique names of the clients of a uid and of root."""
        self._connection = connection
        self._clients = clients
        self._objects: dict[str, _Object] = {}
        self._announcing = False

    def announce(self) -> None:
        """From now on changes are signalled; what is there already is for GetManagedObjects."""
        self._announcing = True

    def add(self, path: str, target: Target, owner: Owner | None = None) -> None:
        """Put *target* at *path*. What has an *owner* is shown to nobody else but root."""
        self._objects[path] = _Object(target, owner)
        if _is_managed(path):
            values = target.properties() if owner is None else {}
            self._emit(ROOT, OBJECT_MANAGER, "InterfacesAdded", path, {target.interface: values})

    def remove(self, path: str) -> None:
        """Take the object at *path* away; its last changes are signalled before."""
        if path in self._objects:
            self._flush(path)
            target = self._objects.pop(path).target
            if _is_managed(path):
                self._emit(ROOT, OBJECT_MANAGER, "InterfacesRemoved", path, [target.interface])

    def changed(self, path: str, names: Iterable[str], *, urgent: bool = False) -> None:
        """Signal that the properties *names* of the object at *path* have new values.

        Changes that are not *urgent* are collected, so that there is a signal every 100 ms at most.
        """
        known = self._objects.get(path)
        if known is None:
            return
        known.blob = None
        properties = contract.interfaces()[known.target.interface].properties
        known.pending.update(name for name in names if properties[name].emits_changed)
        now = asyncio.get_running_loop().time()
        if urgent or now - known.last >= CHANGE_INTERVAL:
            self._flush(path)
        elif known.timer is None and known.pending:
            known.timer = asyncio.get_running_loop().call_later(CHANGE_INTERVAL, self._flush, path)

    def get(self, path: str) -> Target | None:
        """The target at *path*."""
        known = self._objects.get(path)
        return known.target if known else None

    def interfaces(self, path: str) -> list[str]:
        """The interfaces of the object at *path*, its own first. Raises :class:`~mcpd.errors.UnknownObject`."""
        own = self.get(path)
        if own is not None:
            managing = [OBJECT_MANAGER] if path == ROOT else []
            return [own.interface, *managing, PROPERTIES, INTROSPECTABLE, PEER]
        if self.children(path):
            return [INTROSPECTABLE, PEER]
        raise UnknownObject(f"there is no object {path}")

    def children(self, path: str) -> list[str]:
        """The names of the nodes below *path*."""
        prefix = path.rstrip("/") + "/"
        below = {known[len(prefix) :].partition("/")[0] for known in self._objects if known.startswith(prefix)}
        return sorted(below - {""})

    def check_shown(self, path: str, call: Call) -> None:
        """Raises :class:`~mcpd.errors.NotAuthorized` if the caller may not read the object at *path*."""
        known = self._objects.get(path)
        if known is not None and not known.is_shown_to(call):
            raise NotAuthorized(f"{path} belongs to another user; only that user and root read it")

    def managed(self, call: Call) -> Raw:
        """What the caller may read but the manager itself, as the body of GetManagedObjects has it."""
        out = bytearray()
        for path, known in self._objects.items():
            if not _is_managed(path) or not known.is_shown_to(call):
                continue
            if known.blob is None:
                entry = {path: {known.target.interface: known.target.properties()}}
                known.blob = codec.Raw(codec.marshal(_MANAGED, [entry])[8:])
            out += bytes(-len(out) % 8)
            out += known.blob
        return codec.Raw(out)

    def emit(self, path: str, member: str, *args: object, destination: str = "", about: str = "") -> None:
        """Emit a signal of the own interface of the object at *path*, only to *destination* if that is given.

        Otherwise it goes to all who may read the object at *about*, by default that at *path*.
        """
        target = self.get(path)
        if target is not None:
            to = (destination,) if destination else self._readers(about or path)
            self._emit(path, target.interface, member, *args, to=to)

    def _readers(self, path: str) -> Iterable[str]:
        """Return who gets the signals about the object at *path*; the empty name stands for everybody."""
        known = self._objects.get(path)
        if known is None:
            return ()
        return ("",) if known.owner is None else self._clients(known.owner.uid)

    def close(self) -> None:
        """Send what is collected, and signal nothing any more."""
        for path in list(self._objects):
            self._flush(path)
        self._announcing = False

    def _flush(self, path: str) -> None:
        known = self._objects.get(path)
        if known is None:
            return
        if known.timer is not None:
            known.timer.cancel()
            known.timer = None
        if known.pending:
            values = known.target.properties()
            changed = {name: values[name] for name in sorted(known.pending)}
            known.pending.clear()
            known.last = asyncio.get_running_loop().time()
            to = self._readers(path)
            self._emit(path, PROPERTIES, "PropertiesChanged", known.target.interface, changed, [], to=to)

    def _emit(self, path: str, interface: str, member: str, *args: object, to: Iterable[str] = ("",)) -> None:
        if self._announcing:
            signature = contract.interfaces()[interface].signals[member]
            with suppress(ServiceUnavailable):
                for destination in to:
                    self._connection.emit(path, interface, member, signature, args, destination=destination)


def _is_managed(path: str) -> bool:
    """Whether the object manager at the root tells of the object at *path*."""
    return path.startswith(ROOT + "/")


def _properties_of(objects: Objects, path: str, call: Call, interface: str) -> Mapping[str, Variant]:
    if interface not in objects.interfaces(path):
        raise UnknownInterface(f"{path} has no interface {interface}")
    objects.check_shown(path, call)
    target = objects.get(path)
    return target.properties() if target is not None and target.interface == interface else {}


def _get(objects: Objects, path: str, call: Call, interface: str, name: str) -> Variant:
    values = _properties_of(objects, path, call, interface)
    if name not in values:
        raise UnknownProperty(f"{interface} has no property {name}")
    return values[name]


def _get_all(objects: Objects, path: str, call: Call, interface: str) -> Mapping[str, Variant]:
    return _properties_of(objects, path, call, interface)


def _set(objects: Objects, path: str, call: Call, interface: str, name: str, value: object) -> None:
    _get(objects, path, call, interface, name)
    target = objects.get(path)
    if not contract.interfaces()[interface].properties[name].writable or not isinstance(target, Writable):
        raise PropertyReadOnly(f"{interface}.{name} is changed by a method of {MANAGER}, not by setting it")
    target.set_property(call, name, value)


def _introspect(objects: Objects, path: str, _call: Call) -> str:
    return contract.introspection(objects.interfaces(path), objects.children(path))


def _machine_id(_objects: Objects, _path: str, _call: Call) -> str:
    for file in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError):
            return Path(file).read_text(encoding="ascii").strip()
    raise McpdError("this machine has no id: /etc/machine-id cannot be read")


STANDARD: Final[Mapping[tuple[str, str], Callable[..., Any]]] = {
    (PROPERTIES, "Get"): _get,
    (PROPERTIES, "GetAll"): _get_all,
    (PROPERTIES, "Set"): _set,
    (OBJECT_MANAGER, "GetManagedObjects"): lambda objects, _path, call: objects.managed(call),
    (INTROSPECTABLE, "Introspect"): _introspect,
    (PEER, "Ping"): lambda _objects, _path, _call: None,
    (PEER, "GetMachineId"): _machine_id,
}
"""The methods that every object has; they need no authorization."""
