# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parsing of arbitrary Python source to a syntax tree, and the bindings of its top level.

Files may be hostile or broken: Python's parser raises six kinds of exceptions, and warns.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SOURCE: Final = 2 * 1024 * 1024
"""Maximum length of a source in characters: its tree takes about a hundred times as much memory."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_TYPE_ALIAS = getattr(ast, "TypeAlias", None)  # `type X = …`, since Python 3.12
_DESCRIPTORS: Final = frozenset({"property", "cached_property", "classmethod", "staticmethod"})
_BLOCKS: Final = ("body", "handlers", "cases", "orelse", "finalbody")


def decode(data: bytes, path: str) -> str:
    """Decode the Python file *data*, from UTF-8 or the encoding that it declares (PEP 263).

    Raises :class:`InvalidManifest` with *path* and the line.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding, newline=None).read()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidManifest(f"{path}:{line}: not {error.encoding}: {error.reason}") from None
    except (SyntaxError, LookupError, ValueError) as error:
        raise InvalidManifest(f"{path}:1: {error}") from None


def check(source: str, path: str) -> None:
    """Check that *source* is text and not too long; raises :class:`InvalidManifest` with the line."""
    if len(source) > MAX_SOURCE:
        raise InvalidManifest(f"{path}:1: longer than {MAX_SOURCE} characters, which is more than a script may be")
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise InvalidManifest(f"{path}:{line}: not text: there is a NUL byte in it")


def parse(source: str, path: str) -> ast.Module:
    """Return the syntax tree of *source*; raises :class:`InvalidManifest` as ``PATH:LINE: FAULT``."""
    check(source, path)
    try:
        return _parse(source, path)
    except SyntaxError as error:
        raise InvalidManifest(f"{path}:{error.lineno or 1}: {error.msg}") from None
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        raise InvalidManifest(f"{path}:{line}: not text: {error.reason}") from None
    except (RecursionError, MemoryError):
        raise InvalidManifest(f"{path}:1: nested too deep to be read") from None
    except ValueError as error:
        raise InvalidManifest(f"{path}:1: {error}") from None


def expression(text: str) -> ast.expr | None:
    """Return the expression in *text*, such as an annotation that is a string, or None if it is invalid."""
    try:
        module = _parse(text.strip(), "<annotation>")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match module.body:
        case [ast.Expr(value)]:
            return value
        case _:
            return None


def parameters(arguments: ast.arguments) -> list[tuple[ast.arg, ast.expr | None]]:
    """Return the parameters in *arguments* except ``*args`` and ``**kwargs``, each with its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    return [*zip(positional, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def _parse(source: str, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "invalid escape sequence" only concerns the author
        return ast.parse(source, filename=path)


@dataclass(slots=True)
class Bindings:
    """The final meaning of the names of a module's top level: later bindings replace earlier ones.

    *imports* are full names (``typing.Optional``), *stars* the modules of ``from MODULE import *``, *aliases* the
    expressions assigned to names, *once* the names that are bound only once.
    """

    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    once: set[str] = field(default_factory=set)
    exported: list[ast.expr] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def bound(self, name: str) -> None:
        """Forget the meaning of *name*, as it is bound again."""
        (self.once.discard if name in self._seen else self.once.add)(name)
        self._seen.add(name)
        for table in (self.functions, self.classes, self.aliases, self.imports):
            table.pop(name, None)

    def add_types(self, other: Bindings) -> None:
        """Add the bindings of *other*, except functions, for names that are not bound here."""
        self.classes |= {name: node for name, node in other.classes.items() if name not in self._seen}
        self.aliases |= {name: value for name, value in other.aliases.items() if name not in self._seen}
        self.imports |= {name: full for name, full in other.imports.items() if name not in self._seen}
        self.once |= other.once - self._seen
        self.stars = [*other.stars, *self.stars]


def bindings(module: ast.Module) -> Bindings:
    """Return the bindings of *module* at its top level, including blocks like ``if`` and ``try``.

    Bindings in ``if TYPE_CHECKING`` count for types without another binding, but not for functions. Those in
    ``if __name__ == "__main__"``, or in a condition that is never true, like ``if 0``, are ignored.
    """
    found, typing = Bindings(), Bindings()
    for node, typing_only in _statements(module):
        _bind(typing if typing_only else found, node)
    found.add_types(typing)
    return found


def _statements(module: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the statements of the top level in order, without recursion, and whether only type checkers see them."""
    stack: list[tuple[ast.AST, bool]] = [(node, False) for node in reversed(module.body)]
    while stack:
        node, hidden = stack.pop()
        yield node, hidden
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner: list[tuple[ast.AST, bool]] = []
        for name, typing_only in _run(node):
            inner += [(child, hidden or typing_only) for child in getattr(node, name, [])]
        stack += reversed(inner)


def _run(node: ast.AST) -> list[tuple[str, bool]]:
    """Return the names of the blocks of *node* that may be run, with True for those that only type checkers see."""
    if not isinstance(node, ast.If | ast.While):
        return [(name, False) for name in _BLOCKS]
    test, negated = node.test, False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, negated = test.operand, not negated
    then, other = ("orelse", "body") if negated else ("body", "orelse")
    if _is_type_checking(test):
        return [(name, name == then) for name in ("body", "orelse")]
    if _is_main(test):
        return [(other, False)]
    if isinstance(test, ast.Constant):
        return [(then if test.value else other, False)]
    return [("body", False), ("orelse", False)]


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]) | ast.Compare(
            ast.Constant("__main__"), [ast.Eq()], [ast.Name("__name__")]
        ):
            return True
        case _:
            return False


def _is_type_checking(test: ast.expr) -> bool:
    match test:
        case ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case _:
            return False


def _bind(found: Bindings, node: ast.AST) -> None:  # noqa: C901, PLR0912 -- a table
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            found.bound(name)
            if not any(_makes_descriptor(decorator) for decorator in node.decorator_list):
                found.functions[name] = node
        case ast.ClassDef(name=name):
            found.bound(name)
            found.classes[name] = node
        case ast.Import() | ast.ImportFrom():
            _bind_import(found, node)
        case ast.Assign(targets, value):
            for target in targets:
                _assign(found, target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            _assign(found, target, value)
        case ast.AugAssign(ast.Name("__all__"), ast.Add(), value):
            found.exported.append(value)
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
            _rebind(found, target)
        case ast.Delete(targets):
            for target in targets:
                _rebind(found, target)
        case ast.With(items) | ast.AsyncWith(items):
            for item in items:
                _rebind(found, item.optional_vars)
        case _ if _TYPE_ALIAS is not None and isinstance(node, _TYPE_ALIAS):
            _assign(found, node.name, node.value)
        case _:
            pass


def _makes_descriptor(decorator: ast.expr) -> bool:
    """Return True if *decorator* makes a function usable only in the body of a class."""
    match decorator:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in _DESCRIPTORS
        case _:
            return False


def _bind_import(found: Bindings, node: ast.Import | ast.ImportFrom) -> None:
    for name in node.names:
        if isinstance(node, ast.Import):
            bound = name.asname or name.name.partition(".")[0]
            full = name.name if name.asname else bound
        elif name.name == "*":
            found.stars.append(node.module or "")
            continue
        else:
            bound, full = name.asname or name.name, f"{'.' * node.level}{node.module or ''}.{name.name}"
        found.bound(bound)
        found.imports[bound] = full


def _rebind(found: Bindings, target: ast.expr | None) -> None:
    """Forget the names in *target*, as their value is now unknown."""
    for part in ast.walk(target) if target is not None else ():
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            found.bound(part.id)


def _assign(found: Bindings, target: ast.expr, value: ast.expr) -> None:
    if not isinstance(target, ast.Name):
        _rebind(found, target)
        return
    if target.id == "__all__":
        found.exported = [value]
    if _wraps(value, target.id):
        found.once.discard(target.id)
        return  # `greet = cached(greet)` keeps its meaning
    found.bound(target.id)
    found.aliases[target.id] = value


def _wraps(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and any(
        isinstance(argument, ast.Name) and argument.id == name for argument in value.args
    )
