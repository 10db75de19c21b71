# SPDX-License-Identifier: LGPL-2.1-or-later
"""Resolution of names in annotations: to an import, or to a class of the file and its kind."""

from __future__ import annotations

import ast
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from mcpd.servers.scripts.discover.literals import NOTHING, literal
from mcpd.servers.scripts.discover.types import DATACLASSES, ENUMS, FLAGS, KNOWN, MODELS, canonical, words

if TYPE_CHECKING:
    from mcpd.servers.scripts.discover.budget import Budget
    from mcpd.servers.scripts.discover.syntax import Bindings

_MAX_PARTS: Final = 8
_MAX_LINEAGE: Final = 40
_NODE: Final = 8  # average number of characters in the source for one node of the tree


class Kind(Enum):
    """The kind of a class of the file, as far as schemas are concerned."""

    ENUM = "enum"
    FLAG = "flag"
    TYPED_DICT = "TypedDict"
    NAMED_TUPLE = "NamedTuple"
    DATACLASS = "dataclass"
    MODEL = "model"
    OTHER = "other"


class Names:
    """Looks up names in the bindings of one module. Classes have keys: ``Outer.Inner``."""

    def __init__(self, bindings: Bindings, budget: Budget) -> None:
        self.bindings = bindings
        self._budget = budget
        prefixes = dict.fromkeys(canonical(f"{module}.") for module in reversed(bindings.stars))
        self._stars = [prefix for prefix in prefixes if any(full.startswith(prefix) for full in KNOWN)]
        self.cache: dict[int, object] = {}  # values that callers have computed for a class, by its id
        self._kinds: dict[int, Kind] = {}
        self._nested: dict[int, dict[str, ast.ClassDef]] = {}
        self._constants: dict[str, Any] = {}
        self._members: dict[int, dict[str, Any]] = {}
        self._weights: dict[int, int] = {}

    def may_read(self, *nodes: ast.AST) -> bool:
        """Return True if *nodes*, which are parts of the file, may be read once more."""
        for node in nodes:
            if id(node) not in self._weights:
                self._weights[id(node)] = _weight(node)
        return self._budget.read(sum(self._weights[id(node)] for node in nodes))

    def full(self, node: ast.expr | None) -> str:
        """Return the full name of the imported or built-in *node*, in the form of the tables; else an empty string."""
        parts = _parts(node)
        if not parts:
            return ""
        root, *rest = parts
        known = self.bindings
        if root in known.functions or root in known.classes or root in known.aliases:
            return ""
        if root not in known.imports and not rest and root not in _BUILTINS:
            return next((prefix + root for prefix in self._stars if prefix + root in KNOWN), root)
        base = known.imports.get(root, f"builtins.{root}")
        return canonical(".".join([base, *rest]))

    def local(self, node: ast.expr, scope: tuple[str, ast.ClassDef] | None = None) -> tuple[str, ast.ClassDef] | None:
        """Return the key and class of the file that *node* names, seen from inside the class *scope*, if given."""
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
        """Return the classes in the body of the class *node*."""
        if id(node) not in self._nested:
            self._nested[id(node)] = {child.name: child for child in node.body if isinstance(child, ast.ClassDef)}
        return self._nested[id(node)]

    def lineage(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """Return the class *node* and its ancestors in the file, the most distant first."""
        order: list[ast.ClassDef] = []
        self._ancestors(node, order, set())
        return order

    def _ancestors(self, node: ast.ClassDef, order: list[ast.ClassDef], seen: set[int]) -> None:
        if id(node) in seen or len(seen) > _MAX_LINEAGE:
            return
        if not self._budget.read(_NODE * (1 + len(node.bases) + len(node.decorator_list))):
            return
        seen.add(id(node))
        for base in reversed(node.bases):
            found = self.local(_unsubscripted(base))
            if found is not None:
                self._ancestors(found[1], order, seen)
        order.append(node)

    def bases(self, node: ast.ClassDef) -> list[str]:
        """Return the full names of the bases outside the file of the class *node* and of its ancestors in the file."""
        return [full for cls in self.lineage(node) for base in cls.bases if (full := self.full(_unsubscripted(base)))]

    def is_dataclass(self, node: ast.ClassDef) -> bool:
        """Return True if the class *node* itself is decorated as a dataclass."""
        return any(
            self.full(item.func if isinstance(item, ast.Call) else item) in DATACLASSES for item in node.decorator_list
        )

    def kind(self, node: ast.ClassDef) -> Kind:
        """Return the kind of the class *node*."""
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
        """Return the members of the enumeration *node* with their JSON values; if a value has no JSON form, the names
        are used instead.
        """
        if id(node) not in self._members:
            self._members[id(node)] = self._enum_members(node)
        return self._members[id(node)]

    def _enum_members(self, node: ast.ClassDef) -> dict[str, Any]:
        bases = self.bases(node)
        found: dict[str, Any] = {}
        highest: int | None = None
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
                found[name] = _automatic(bases, name, highest) if called == "enum.auto" else NOTHING
            elif isinstance(value, ast.Name) and value.id in found:
                found[name] = found[value.id]
            elif not isinstance(value, ast.Lambda):
                found[name] = NOTHING if is_bytes(value) else literal(value, self.constant)
            if isinstance(number := found.get(name), int):
                highest = number if highest is None else max(highest, number)
        plain = all(value is None or isinstance(value, str | int | float) for value in found.values())
        return found if plain else {name: name for name in found}

    def constant(self, node: ast.expr) -> Any:
        """Return the JSON value that *node* names: a constant of the module, or a member of an enumeration in it."""
        if isinstance(node, ast.Name):
            value = self.bindings.aliases.get(node.id)
            if value is None or node.id not in self.bindings.once or isinstance(value, ast.Name):
                return NOTHING
            if node.id not in self._constants:
                self._constants[node.id] = literal(value)
            found = self._constants[node.id]
            return found if found is NOTHING or self.may_read(value) else NOTHING
        if isinstance(node, ast.Attribute):
            if node.attr == "value" and isinstance(node.value, ast.Attribute):
                node = node.value
            owner = self.local(node.value)
            if owner is not None and self.kind(owner[1]) is Kind.ENUM:
                member = self.members(owner[1]).get(node.attr, NOTHING)
                return member if self._budget.read(len(str(member))) else NOTHING
        return NOTHING


_BUILTINS: Final = words("int str float bool bytes bytearray None object list dict set frozenset tuple type")


def _parts(node: ast.expr | None) -> list[str]:
    """Return ``a.b.c`` as ``["a", "b", "c"]``; empty if *node* does not have that form."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MAX_PARTS:
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _weight(node: ast.AST) -> int:
    """Return the approximate length of *node* in characters, without function bodies and nested classes."""
    weight = 0
    pending = [node]
    while pending:
        part = pending.pop()
        weight += _NODE
        if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
            weight += len(part.value)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.append(part.args)
        elif part is node or not isinstance(part, ast.ClassDef):
            pending += ast.iter_child_nodes(part)
    return weight


def is_bytes(node: ast.expr) -> bool:
    """Return True if *node* is a bytes literal, which as base64 would be another value."""
    return isinstance(node, ast.Constant) and isinstance(node.value, bytes)


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


def _automatic(bases: list[str], name: str, highest: int | None) -> Any:
    """Return the value of ``auto()`` for the member *name*; *highest* is the largest number before it."""
    if "enum.StrEnum" in bases:
        return name.lower()
    if "str" in bases:
        return NOTHING
    return (highest or 0) + 1
