# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a name in an annotation stands for: something imported, or a class of the file and its kind."""

from __future__ import annotations

import ast
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from mcpd.servers.scripts.discover.literals import NOTHING, literal
from mcpd.servers.scripts.discover.types import DATACLASSES, ENUMS, FLAGS, KNOWN, MODELS, canonical, words

if TYPE_CHECKING:
    from mcpd.servers.scripts.discover.syntax import Bindings

_MAX_PARTS: Final = 8
_MAX_LINEAGE: Final = 40


class Kind(Enum):
    """What a class of the file is, as far as a schema is concerned."""

    ENUM = "enum"
    FLAG = "flag"
    TYPED_DICT = "TypedDict"
    NAMED_TUPLE = "NamedTuple"
    DATACLASS = "dataclass"
    MODEL = "model"
    OTHER = "other"


class Names:
    """Looks names up in the bindings of one module. Classes have keys: ``Outer.Inner``."""

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings
        self.cache: dict[int, object] = {}  # what others found out about a class, by its id
        self._kinds: dict[int, Kind] = {}
        self._nested: dict[int, dict[str, ast.ClassDef]] = {}
        self._constants: dict[str, Any] = {}
        self._members: dict[int, dict[str, Any]] = {}

    def full(self, node: ast.expr | None) -> str:
        """The full name of the imported or built-in thing *node*, as the tables have it; else empty."""
        parts = _parts(node)
        if not parts:
            return ""
        root, *rest = parts
        known = self.bindings
        if root in known.functions or root in known.classes or root in known.aliases:
            return ""
        if root not in known.imports and not rest and root not in _BUILTINS:
            stars = (canonical(f"{module}.{root}") for module in reversed(known.stars))
            return next((full for full in stars if full in KNOWN), root)
        base = known.imports.get(root, f"builtins.{root}")
        return canonical(".".join([base, *rest]))

    def local(self, node: ast.expr, scope: tuple[str, ast.ClassDef] | None = None) -> tuple[str, ast.ClassDef] | None:
        """The key and the class of the file that *node* names, seen from inside the class *scope* if there is one."""
        parts = _parts(node)
        if not parts:
            return None
        root, *rest = parts
        if scope is not None and (inner := self.nested(scope[1]).get(root)) is not None:
            key, found = f"{scope[0]}.{root}", inner
        elif (outer := self.bindings.classes.get(root)) is not None:
            key, found = root, outer
        else:
            return None
        for part in rest:
            nested = self.nested(found).get(part)
            if nested is None:
                return None
            key, found = f"{key}.{part}", nested
        return key, found

    def nested(self, node: ast.ClassDef) -> dict[str, ast.ClassDef]:
        """The classes in the body of the class *node*."""
        if id(node) not in self._nested:
            self._nested[id(node)] = {child.name: child for child in node.body if isinstance(child, ast.ClassDef)}
        return self._nested[id(node)]

    def lineage(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """The class *node* and its ancestors in the file, the farthest first."""
        order: list[ast.ClassDef] = []
        self._ancestors(node, order, set())
        return order

    def _ancestors(self, node: ast.ClassDef, order: list[ast.ClassDef], seen: set[int]) -> None:
        if id(node) in seen or len(seen) > _MAX_LINEAGE:
            return
        seen.add(id(node))
        for base in reversed(node.bases):
            found = self.local(_unsubscripted(base))
            if found is not None:
                self._ancestors(found[1], order, seen)
        order.append(node)

    def bases(self, node: ast.ClassDef) -> list[str]:
        """The full names of what the class *node* and its ancestors in the file inherit from outside of it."""
        return [full for cls in self.lineage(node) for base in cls.bases if (full := self.full(_unsubscripted(base)))]

    def is_dataclass(self, node: ast.ClassDef) -> bool:
        """Whether the class *node* itself is decorated as a dataclass."""
        return any(
            self.full(item.func if isinstance(item, ast.Call) else item) in DATACLASSES for item in node.decorator_list
        )

    def kind(self, node: ast.ClassDef) -> Kind:
        """What the class *node* is."""
        if id(node) not in self._kinds:
            self._kinds[id(node)] = self._kind(node)
        return self._kinds[id(node)]

    def _kind(self, node: ast.ClassDef) -> Kind:
        bases = set(self.bases(node))
        for kind, names in (
            (Kind.FLAG, FLAGS),
            (Kind.ENUM, ENUMS),
            (Kind.TYPED_DICT, {"TypedDict"}),
            (Kind.NAMED_TUPLE, {"NamedTuple"}),
            (Kind.MODEL, MODELS),
        ):
            if bases & names:
                return kind
        return Kind.DATACLASS if any(self.is_dataclass(cls) for cls in self.lineage(node)) else Kind.OTHER

    def members(self, node: ast.ClassDef) -> dict[str, Any]:
        """The members of the enumeration *node* and how JSON says them: by their values, or if not all have one that
        JSON has, by their names.
        """
        if id(node) not in self._members:
            self._members[id(node)] = self._enum_members(node)
        return self._members[id(node)]

    def _enum_members(self, node: ast.ClassDef) -> dict[str, Any]:
        bases = self.bases(node)
        found: dict[str, Any] = {}
        for statement in node.body:
            match statement:
                case (
                    ast.Assign([ast.Name(name)], value)
                    | ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value)
                ) if not name.startswith("_"):
                    pass
                case _:
                    continue
            if isinstance(value, ast.Call):
                called = self.full(value.func)
                if called == "enum.nonmember":
                    continue
                found[name] = _automatic(bases, name, found) if called == "enum.auto" else NOTHING
            elif isinstance(value, ast.Name) and value.id in found:
                found[name] = found[value.id]
            elif not isinstance(value, ast.Lambda):
                found[name] = NOTHING if _is_bytes(value) else literal(value, self.constant)
        plain = all(value is None or isinstance(value, str | int | float) for value in found.values())
        return found if plain else {name: name for name in found}

    def constant(self, node: ast.expr) -> Any:
        """The JSON value that *node* names: a constant of the module, or a member of an enumeration in it."""
        if isinstance(node, ast.Name):
            value = self.bindings.aliases.get(node.id)
            if value is None or node.id not in self.bindings.once or isinstance(value, ast.Name):
                return NOTHING
            if node.id not in self._constants:
                self._constants[node.id] = literal(value)
            return self._constants[node.id]
        if isinstance(node, ast.Attribute):
            if node.attr == "value" and isinstance(node.value, ast.Attribute):
                node = node.value
            found = self.local(node.value)
            if found is not None and self.kind(found[1]) is Kind.ENUM:
                return self.members(found[1]).get(node.attr, NOTHING)
        return NOTHING


_BUILTINS: Final = words("int str float bool bytes bytearray None object list dict set frozenset tuple type")


def _parts(node: ast.expr | None) -> list[str]:
    """``a.b.c`` as ``["a", "b", "c"]``; empty if *node* is not of that form."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MAX_PARTS:
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _is_bytes(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bytes)


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


def _automatic(bases: list[str], name: str, found: dict[str, Any]) -> Any:
    """What ``auto()`` is for the member *name* after those *found*."""
    if "enum.StrEnum" in bases:
        return name.lower()
    if "str" in bases:
        return NOTHING
    numbers = [value for value in found.values() if isinstance(value, int)]
    return max(numbers, default=0) + 1
