# SPDX-License-Identifier: LGPL-2.1-or-later
"""Classes of the file that are objects in JSON: dataclasses, TypedDict, NamedTuple and models of pydantic."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.servers.scripts.discover import constraints
from mcpd.servers.scripts.discover.docstrings import MAX_LINE, one_line, summary
from mcpd.servers.scripts.discover.literals import NOTHING, literal, text
from mcpd.servers.scripts.discover.names import Kind, Names
from mcpd.servers.scripts.discover.syntax import parameters
from mcpd.servers.scripts.discover.types import ENUMS, FLAGS, INTEGER, Schema

if TYPE_CHECKING:
    from mcpd.servers.scripts.discover.annotations import Converter

_ROOT: Final = "pydantic.RootModel"


@dataclass(slots=True)
class Member:
    """A field of a class: its name in JSON, its annotation, and further information."""

    name: str
    annotation: ast.expr | None
    required: bool
    info: constraints.Info = field(default_factory=constraints.Info)


@dataclass(slots=True)
class Members:
    """The fields of a class, by their names in Python, and whether an object may have others.

    *cost* is the approximate length of the field names in JSON, in characters.
    """

    fields: dict[str, Member]
    open: bool = False
    description: str = ""
    cost: int = 0


def schema(node: ast.ClassDef, converter: Converter) -> Schema:
    """Return the schema of the class *node*; *converter* converts its fields."""
    names = converter.names
    kind = names.kind(node)
    if not names.may_read(*names.lineage(node)):
        return {}
    if kind is Kind.MODEL and (root := _root(node, names)) is not None:
        return converter.schema(root, 1)
    found = names.cache.get(id(node))
    if not isinstance(found, Members):
        found = names.cache[id(node)] = _members(node, kind, converter)
        found.description = summary(node)
        found.cost = sum(len(member.name) + 8 for member in found.fields.values())
    return converter.described(_object(found, converter), constraints.Info(description=found.description))


def _object(members: Members, converter: Converter) -> Schema:
    if not converter.budget.spend(members.cost):
        return {"type": "object"}
    properties = {
        member.name: converter.described(converter.schema(member.annotation, 1), member.info)
        for member in members.fields.values()
    }
    made: Schema = {"type": "object", "properties": properties}
    required = [member.name for member in members.fields.values() if member.required]
    if required:
        made["required"] = required
    return made if members.open else {**made, "additionalProperties": False}


def _members(node: ast.ClassDef, kind: Kind, converter: Converter) -> Members:
    names = converter.names
    found = Members({}, open=kind is Kind.MODEL)
    config: dict[str, ast.expr] = {}
    for cls in names.lineage(node):
        if kind is Kind.DATACLASS and not names.is_dataclass(cls):
            continue
        said, total = converter.docs.parameters(cls), _is_total(cls.keywords)
        for statement, following in zip(cls.body, [*cls.body[1:], None], strict=True):
            match statement:
                case ast.AnnAssign(ast.Name(name), annotation, value):
                    member = _member(name, annotation, value, kind, names, total=total)
                    found.fields.pop(name, None)
                case ast.Assign([ast.Name("model_config")], value) if kind is Kind.MODEL:
                    config |= _config(value)
                    continue
                case _:
                    continue
            if member is not None:
                member.info.description = member.info.description or _docstring(following) or said.get(name, "")
                found.fields[name] = member
        if kind is Kind.MODEL:
            config |= constraints.by_name(cls.keywords)
    if "extra" in config:
        found.open = literal(config["extra"]) != "forbid"
    if "alias_generator" in config:  # the names of the fields in JSON are only known at run time
        return Members({}, open=True)
    init = _written_init(node, names) if kind is Kind.DATACLASS else None
    return found if init is None else _parameters(init, found, names)


def _written_init(node: ast.ClassDef, names: Names) -> ast.FunctionDef | None:
    """Return the ``__init__`` of the dataclass *node* if it is written in the file; None if it is generated."""
    for cls in reversed(names.lineage(node)):
        for statement in cls.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                return statement
        if names.is_dataclass(cls):
            break
    return None


def _parameters(init: ast.FunctionDef, fields: Members, names: Names) -> Members:
    """Return the parameters of *init* as fields, with the descriptions of *fields* with the same names."""
    given = parameters(init.args)
    found = Members({}, open=init.args.kwarg is not None)
    for argument, default in given[1:] if init.args.posonlyargs or init.args.args else given:
        field_ = fields.fields.get(argument.arg)
        info = constraints.Info(description=field_.info.description if field_ else "")
        info.default = literal(default, names.constant) if default is not None else NOTHING
        found.fields[argument.arg] = Member(argument.arg, argument.annotation, default is None, info)
    return found


def _member(
    name: str, annotation: ast.expr, value: ast.expr | None, kind: Kind, names: Names, *, total: bool
) -> Member | None:
    """Return the field *name*, or None if the statement defines none; *total* is that of the TypedDict (PEP 589)."""
    outer = names.full(annotation.value if isinstance(annotation, ast.Subscript) else annotation)
    if outer in {"ClassVar", "dataclasses.KW_ONLY"} or (
        kind is Kind.MODEL and (name.startswith("_") or name == "model_config")
    ):
        return None
    if kind is Kind.TYPED_DICT:
        return Member(name, annotation, _is_required(annotation, names, total=total))
    if value is None:
        return Member(name, annotation, required=not _has_default(annotation, names))
    if kind is Kind.DATACLASS and isinstance(value, ast.Call) and names.full(value.func) == "dataclasses.field":
        return _dataclass_field(name, annotation, value, names)
    info = constraints.read(value, names) if isinstance(value, ast.Call) else constraints.Info()
    if info.required is None:
        is_field = isinstance(value, ast.Call) and names.full(value.func) in constraints.FIELDS
        ellipsis = kind is Kind.MODEL and isinstance(value, ast.Constant) and value.value is ...
        info.required = is_field or ellipsis
        if not info.required:
            info.default = literal(value, names.constant)
    return Member(info.alias or name, annotation, info.required, info)


def _dataclass_field(name: str, annotation: ast.expr, call: ast.Call, names: Names) -> Member | None:
    given = constraints.by_name(call.keywords)
    if isinstance(init := given.get("init"), ast.Constant) and init.value is False:
        return None
    info = constraints.Info()
    if "default" in given:
        info.default = literal(given["default"], names.constant)
    elif "default_factory" in given:
        info.default = constraints.factory(given["default_factory"], names)
    said = literal(given["doc"]) if "doc" in given else NOTHING
    if isinstance(metadata := given.get("metadata"), ast.Dict):
        extra = literal(metadata)
        said = extra.get("description", said) if isinstance(extra, dict) else said
    if isinstance(said, str):
        info.description = text(said, MAX_LINE)
    return Member(name, annotation, required=not {"default", "default_factory"} & given.keys(), info=info)


def _has_default(annotation: ast.expr, names: Names) -> bool:
    """Return True if ``Annotated[T, Field(default=…)]`` gives the field a default."""
    match annotation:
        case ast.Subscript(value, ast.Tuple([_, *extras])) if names.full(value) == "Annotated":
            return any(constraints.read(extra, names).required is False for extra in extras)
        case _:
            return False


def _is_required(annotation: ast.expr, names: Names, *, total: bool) -> bool:
    """Return True if a key of a TypedDict is required (PEP 655)."""
    if isinstance(annotation, ast.Subscript):
        full = names.full(annotation.value)
        if full in {"Required", "NotRequired"}:
            return full == "Required"
        if full in {"ReadOnly", "Annotated"}:
            inner = annotation.slice
            first = inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner
            return _is_required(first, names, total=total)
    return total


def _is_total(keywords: list[ast.keyword]) -> bool:
    return not any(item.arg == "total" and literal(item.value) is False for item in keywords)


def _config(node: ast.expr) -> dict[str, ast.expr]:
    """Return the settings in the ``model_config`` *node*."""
    match node:
        case ast.Call(keywords=keywords):
            return constraints.by_name(keywords)
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return {
                key.value: value for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        case _:
            return {}


def _docstring(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(ast.Constant(str(said))):
            return one_line(said)
        case _:
            return ""


def _root(node: ast.ClassDef, names: Names) -> ast.expr | None:
    """Return the type of a ``RootModel`` of pydantic, or None."""
    for base in node.bases:
        if isinstance(base, ast.Subscript) and names.full(base.value) == _ROOT:
            return base.slice
    if _ROOT in names.bases(node):
        return next(
            (
                statement.annotation
                for statement in node.body
                if isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.target.id == "root"
            ),
            None,
        )
    return None


def functional(call: ast.Call, full: str, converter: Converter, depth: int) -> Schema:
    """Return the schema of a type from a call: ``Enum("Color", "RED GREEN")``, ``TypedDict("Point", {"x": int})``."""
    second = call.args[1] if len(call.args) > 1 else None
    if full in FLAGS:
        return dict(INTEGER)
    if full in ENUMS:
        return _functional_enum(second, full, converter)
    pairs: list[tuple[str, ast.expr | None]] = []
    if full == "TypedDict" and isinstance(second, ast.Dict):
        pairs = [
            (key.value, value)
            for key, value in zip(second.keys, second.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
    elif full == "NamedTuple" and isinstance(second, ast.List | ast.Tuple):
        for item in second.elts:
            match item:
                case ast.Tuple([ast.Constant(str(name)), annotation]):
                    pairs.append((name, annotation))
    elif full == "collections.namedtuple" and second is not None:
        pairs = [(name, None) for name in _words(literal(second))]
    if not pairs or not converter.budget.spend(sum(len(name) + 8 for name, _ in pairs)):
        return {"type": "object"} if full in {"TypedDict", "NamedTuple", "collections.namedtuple"} else {}
    total = _is_total(call.keywords)
    required = [
        name
        for name, annotation in pairs
        if annotation is None or _is_required(annotation, converter.names, total=total)
    ]
    return {
        "type": "object",
        "properties": {name: converter.schema(annotation, depth + 1) for name, annotation in pairs},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _functional_enum(second: ast.expr | None, full: str, converter: Converter) -> Schema:
    members = literal(second) if second is not None else NOTHING
    if isinstance(members, dict):
        return converter.values(list(members.values()))
    if isinstance(members, list) and members and all(isinstance(pair, list) and len(pair) == 2 for pair in members):
        return converter.values([value for _, value in members])
    words = _words(members)
    return converter.values([word.lower() for word in words] if full == "enum.StrEnum" else [*range(1, len(words) + 1)])


def _words(names: object) -> list[str]:
    if isinstance(names, str):
        return names.replace(",", " ").split()
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
