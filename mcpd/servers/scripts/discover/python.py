# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools of a Python file: its public functions, found in its syntax tree.

A function is offered if it is defined at the top level, including blocks, and is not private; if the module has a
literal ``__all__``, it has to be listed there. Nothing is imported or run, so listing the tools of a file has none of
the side effects of importing it.
"""

from __future__ import annotations

import ast
import gc
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.servers.scripts.discover import constraints
from mcpd.servers.scripts.discover.annotations import Converter
from mcpd.servers.scripts.discover.budget import Budget
from mcpd.servers.scripts.discover.docstrings import Docstrings, summary
from mcpd.servers.scripts.discover.literals import literal
from mcpd.servers.scripts.discover.names import Kind, Names
from mcpd.servers.scripts.discover.syntax import Bindings, Function, bindings, decode, parameters, parse
from mcpd.servers.scripts.tool import MAX_TOOLS, Tool, tool_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.scripts.discover.types import Schema

__all__ = ["decode", "read"]

_CONTEXT: Final = "context"  # supplied by the caller of the function, so that no schema has it

_MAX_FUNCTION: Final = 128
"""Maximum length of the name of an offered function, in characters."""


def read(source: str, path: str) -> tuple[list[Tool], frozenset[str]]:
    """Return the tools of the Python *source*, in the order of their definition, and the names of all public functions.

    The names include those missing in ``__all__`` and are complete; there are at most :data:`MAX_TOOLS` tools.
    Raises :class:`~mcpd.errors.InvalidManifest` as ``PATH:LINE: FAULT`` if *source* is not valid Python.
    """
    with _without_collection():
        return _read(source, path)


def _read(source: str, path: str) -> tuple[list[Tool], frozenset[str]]:
    found = bindings(parse(source, path))
    public = {name: node for name, node in found.functions.items() if _is_public(name)}
    exported = _exported(found)
    docs, budget = Docstrings(), Budget()
    names = Names(found, budget)
    offered = ((name, node) for name, node in public.items() if exported is None or name in exported)
    made: dict[str, Tool] = {}
    for name, node in islice(offered, MAX_TOOLS):
        called = tool_name(name)
        if called not in made:
            made[called] = Tool(called, summary(node), _input(node, Converter(names, docs, budget)), function=name)
    return list(made.values()), frozenset(public)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection: a syntax tree has no garbage, and a large file would take four times as long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _is_public(name: str) -> bool:
    return not name.startswith("_") and len(name) <= _MAX_FUNCTION


def _exported(found: Bindings) -> set[str] | None:
    """Return the names in ``__all__``, or None if it does not exist or is not a literal."""
    names: set[str] = set()
    for part in found.exported:
        if not isinstance(part, ast.List | ast.Tuple):
            return None
        for item in part.elts:
            if not (isinstance(item, ast.Constant) and isinstance(item.value, str)):
                return None
            names.add(item.value)
    return names if found.exported else None


def _input(node: Function, converter: Converter) -> Schema:
    """Return the input schema of the function *node*."""
    said = converter.docs.parameters(node)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for argument, default in parameters(node.args):
        if argument.arg == _CONTEXT:
            continue
        info = _info(argument, default, converter.names)
        if not info.description and not _is_described(argument, converter.names):
            info.description = said.get(argument.arg, "")
        properties[argument.arg] = _property(argument.annotation, info, converter)
        if info.required:
            required.append(argument.arg)
    if (rest := node.args.vararg) is not None:
        properties[rest.arg] = _rest(rest, said, converter)
    others: Schema | bool = False
    if node.args.kwarg is not None:
        others = _others(node.args.kwarg, properties, required, converter)
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = others
    definitions = converter.definitions()
    return {**schema, "$defs": definitions} if definitions else schema


def _info(argument: ast.arg, default: ast.expr | None, names: Names) -> constraints.Info:
    """Return the default of *argument*, and whether it is required."""
    if default is None:
        return constraints.Info(required=True)  # even with a default in Annotated, which Python ignores
    if isinstance(default, ast.Call) and names.full(default.func) in constraints.FIELDS:
        info = constraints.read(default, names)
        info.required = info.required is not False
        return info
    return constraints.Info(default=literal(default, names.constant), required=False)


def _is_described(argument: ast.arg, names: Names) -> bool:
    """Return True if the annotation of *argument* has a description."""
    match argument.annotation:
        case ast.Subscript(value, ast.Tuple([_, *extras])) if names.full(value) == "Annotated":
            return any(constraints.read(extra, names).description for extra in extras)
        case _:
            return False


def _property(annotation: ast.expr | None, info: constraints.Info, converter: Converter) -> Schema:
    schema = converter.schema(annotation)
    if info.default is None and schema and not _takes_null(schema):
        schema = {"anyOf": [schema, {"type": "null"}]}  # implicit Optional: `x: int = None`
    return converter.described(schema, info)


def _takes_null(schema: Schema) -> bool:
    return (
        schema.get("type") == "null"
        or None in schema.get("enum", [])
        or ("const" in schema and schema["const"] is None)
        or any(_takes_null(branch) for branch in schema.get("anyOf", []))
    )


def _rest(argument: ast.arg, said: dict[str, str], converter: Converter) -> Schema:
    """Return the property for ``*args``: a list."""
    info = constraints.Info(description=said.get(argument.arg, ""))
    if isinstance(argument.annotation, ast.Starred):  # *args: *tuple[int, str]
        return converter.described(converter.schema(argument.annotation), info)
    return converter.described({"type": "array", "items": converter.schema(argument.annotation)}, info)


def _others(
    argument: ast.arg,
    properties: dict[str, Schema],
    required: list[str],
    converter: Converter,
) -> Schema | bool:
    """Return the schema of ``**kwargs`` besides *properties*, to which those of ``Unpack[SomeTypedDict]`` are added."""
    match argument.annotation:
        case ast.Subscript(value, inner) if converter.names.full(value) == "Unpack":
            found = converter.names.local(inner)
            if found is None or converter.names.kind(found[1]) is not Kind.TYPED_DICT:
                return True
            unpacked = converter.inline(found[1])
            if "properties" not in unpacked:
                return True
            for name, schema in unpacked["properties"].items():
                properties.setdefault(name, schema)
            required += [name for name in unpacked.get("required", []) if name not in required]
            return False
    return converter.schema(argument.annotation) or True
