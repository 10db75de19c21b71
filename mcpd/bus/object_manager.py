# SPDX-License-Identifier: LGPL-2.1-or-later
"""The objects on the bus: their properties and signals, and the standard interfaces."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from mcpd.bus import codec, contract
from mcpd.bus.contract import method
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
"""Seconds between two PropertiesChanged signals of one object, unless the change is urgent."""
_MANAGED: Final = "a{oa{sa{sv}}}"

log = logging.getLogger(__name__)


class Target(Protocol):
    """The implementation of an object: one interface with its properties and its decorated methods."""

    interface: str

    def properties(self) -> Mapping[str, Variant]:
        """Return all properties of the interface."""


@runtime_checkable
class Writable(Target, Protocol):
    """A target with writable properties."""

    def set_property(self, call: Call, name: str, value: object) -> None:
        """Set the property *name*, which the XML declares writable, if *call* is allowed to."""


@dataclass(slots=True)
class _Object:
    target: Target
    owner: Owner | None = None
    cached_entry: Raw | None = None
    """The object as an entry of GetManagedObjects, until a property changes."""
    pending: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    last: float = 0.0

    def is_readable_by(self, call: Call) -> bool:
        """Return whether the caller may read the properties."""
        return self.owner is None or call.uid == 0 or call.owns(self.owner)


class Objects:
    """The objects by path. Emits signals about all changes once :meth:`start_signals` has been called."""

    def __init__(self, connection: Connection, clients: Callable[[int], Iterable[str]]) -> None:
        """*clients* returns the unique names of the clients of a uid and of root."""
        self._connection = connection
        self._clients = clients
        self._objects: dict[str, _Object] = {}
        self._emitting = False

    def start_signals(self) -> None:
        """Emit signals from now on; clients get earlier objects from GetManagedObjects."""
        self._emitting = True

    def add(self, path: str, target: Target, owner: Owner | None = None) -> None:
        """Add *target* at *path*. If it has an *owner*, only the owner and root may read it."""
        self._objects[path] = _Object(target, owner)
        if _is_managed(path):
            values = target.properties() if owner is None else {}
            self._emit(ROOT, OBJECT_MANAGER, "InterfacesAdded", path, {target.interface: values})

    def remove(self, path: str) -> None:
        """Remove the object at *path*, after signalling its last changes."""
        if path in self._objects:
            self._flush(path)
            target = self._objects.pop(path).target
            if _is_managed(path):
                self._emit(ROOT, OBJECT_MANAGER, "InterfacesRemoved", path, [target.interface])

    def changed(self, path: str, names: Iterable[str], *, urgent: bool = False) -> None:
        """Signal that the properties *names* of the object at *path* have new values.

        Changes that are not *urgent* are collected for up to 100 ms.
        """
        known = self._objects.get(path)
        if known is None:
            return
        known.cached_entry = None
        properties = contract.interfaces()[known.target.interface].properties
        known.pending.update(name for name in names if properties[name].emits_changed)
        now = asyncio.get_running_loop().time()
        if urgent or now - known.last >= CHANGE_INTERVAL:
            self._flush(path)
        elif known.timer is None and known.pending:
            known.timer = asyncio.get_running_loop().call_later(CHANGE_INTERVAL, self._flush, path)

    def get(self, path: str) -> Target | None:
        """Return the target at *path*."""
        known = self._objects.get(path)
        return known.target if known else None

    def interfaces(self, path: str) -> list[str]:
        """Return the interfaces of the object at *path*, with the object's own first.

        Raises :class:`~mcpd.errors.UnknownObject`.
        """
        own = self.get(path)
        if own is not None:
            managing = [OBJECT_MANAGER] if path == ROOT else []
            return [own.interface, *managing, PROPERTIES, INTROSPECTABLE, PEER]
        if self.children(path):
            return [INTROSPECTABLE, PEER]
        raise UnknownObject(f"there is no object {path}")

    def children(self, path: str) -> list[str]:
        """Return the names of the nodes below *path*."""
        prefix = path.rstrip("/") + "/"
        below = {known[len(prefix) :].partition("/")[0] for known in self._objects if known.startswith(prefix)}
        return sorted(below - {""})

    def check_readable(self, path: str, call: Call) -> None:
        """Raise :class:`~mcpd.errors.NotAuthorized` if the caller may not read the object at *path*."""
        known = self._objects.get(path)
        if known is not None and not known.is_readable_by(call):
            raise NotAuthorized(f"{path} belongs to another user; only that user and root may read it")

    def managed(self, call: Call) -> Raw:
        """Return the body of GetManagedObjects: all objects below the root that the caller may read."""
        out = bytearray()
        for path, known in self._objects.items():
            if not _is_managed(path) or not known.is_readable_by(call):
                continue
            if known.cached_entry is None:
                entry = {path: {known.target.interface: known.target.properties()}}
                known.cached_entry = codec.Raw(codec.marshal(_MANAGED, [entry])[8:])
            out += bytes(-len(out) % 8)
            out += known.cached_entry
        return codec.Raw(out)

    def emit(self, path: str, member: str, *args: object, destination: str = "", about: str = "") -> None:
        """Emit a signal of the interface of the object at *path*, to *destination* or to all who may read it.

        Without a *destination*, *about* names the object that the receivers must be allowed to read, by default the
        object at *path*.
        """
        target = self.get(path)
        if target is not None:
            to = (destination,) if destination else self._readers(about or path)
            self._emit(path, target.interface, member, *args, to=to)

    def _readers(self, path: str) -> Iterable[str]:
        """Return the receivers of signals about the object at *path*; the empty name stands for everyone."""
        known = self._objects.get(path)
        if known is None:
            return ()
        return ("",) if known.owner is None else self._clients(known.owner.uid)

    def close(self) -> None:
        """Send the collected changes, and stop emitting signals."""
        for path in list(self._objects):
            self._flush(path)
        self._emitting = False

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
        if self._emitting:
            signature = contract.interfaces()[interface].signals[member]
            with suppress(ServiceUnavailable):
                for destination in to:
                    self._connection.emit(path, interface, member, signature, args, destination=destination)


def _is_managed(path: str) -> bool:
    """Return whether the object at *path* belongs to the object manager at the root."""
    return path.startswith(ROOT + "/")


STANDARD: Final = frozenset({PROPERTIES, INTROSPECTABLE, OBJECT_MANAGER, PEER})
"""The standard interfaces, which :class:`StandardMethods` implements."""


@dataclass(frozen=True, slots=True)
class StandardMethods:
    """The methods of the standard interfaces of the object at *path*; they need no authorization."""

    objects: Objects
    path: str

    def _properties_of(self, call: Call, interface: str) -> Mapping[str, Variant]:
        if interface not in self.objects.interfaces(self.path):
            raise UnknownInterface(f"{self.path} has no interface {interface}")
        self.objects.check_readable(self.path, call)
        target = self.objects.get(self.path)
        return target.properties() if target is not None and target.interface == interface else {}

    @method()
    def get(self, call: Call, interface: str, name: str) -> Variant:
        """Return the property *name*."""
        values = self._properties_of(call, interface)
        if name not in values:
            raise UnknownProperty(f"{interface} has no property {name}")
        return values[name]

    @method()
    def get_all(self, call: Call, interface: str) -> Mapping[str, Variant]:
        """Return all properties of *interface*."""
        return self._properties_of(call, interface)

    @method()
    def set(self, call: Call, interface: str, name: str, value: object) -> None:
        """Set the property *name*, if the XML declares it writable and the object allows it."""
        self.get(call, interface, name)
        target = self.objects.get(self.path)
        if not contract.interfaces()[interface].properties[name].writable or not isinstance(target, Writable):
            raise PropertyReadOnly(f"{interface}.{name} is read-only; use a method of {MANAGER}")
        target.set_property(call, name, value)

    @method()
    def get_managed_objects(self, call: Call) -> Raw:
        """Return the objects below the root that the caller may read."""
        return self.objects.managed(call)

    @method()
    def introspect(self, _call: Call) -> str:
        """Return the introspection data."""
        return contract.introspection(self.objects.interfaces(self.path), self.objects.children(self.path))

    @method()
    def ping(self, _call: Call) -> None:
        """Answer without doing anything."""

    @method()
    def get_machine_id(self, _call: Call) -> str:
        """Return the machine ID of this system."""
        for file in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            with suppress(OSError):
                return Path(file).read_text(encoding="ascii").strip()
        raise McpdError("cannot read the machine ID from /etc/machine-id")
