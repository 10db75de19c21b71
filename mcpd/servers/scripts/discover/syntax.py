# SPDX-License-Identifier: LGPL-2.1-or-later
"""Python source to a syntax tree, whatever the source is, and what its top level binds.

Everything here is about hostile or broken files: the parser of Python raises six kinds of exceptions, and warns.
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
"""The longest source that is read, in characters: its tree takes about a hundred times as much memory."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_TYPE_ALIAS = getattr(ast, "TypeAlias", None)  # `type X = …`, since Python 3.12
_DESCRIPTORS: Final = frozenset({"property", "cached_property", "classmethod", "staticmethod"})
_BLOCKS: Final = ("body", "handlers", "cases", "orelse", "finalbody")


def decode(data: bytes, path: str) -> str:
    """The text of the Python file *data*, in UTF-8 or the encoding that it declares (PEP 263).

    Raises :class:`InvalidManifest`, which names *path* and the line.
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
    """See that *source* is text of a size that is read; raises :class:`InvalidManifest`, which names the line."""
    if len(source) > MAX_SOURCE:
        raise InvalidManifest(f"{path}:1: longer than {MAX_SOURCE} characters, which is more than a script may be")
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise InvalidManifest(f"{path}:{line}: not text: there is a NUL byte in it")


def parse(source: str, path: str) -> ast.Module:
    """The syntax tree of *source*; raises :class:`InvalidManifest` as ``PATH:LINE: what is wrong``."""
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
    """The expression in *text*, as in an annotation that is a string; None if it is none."""
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
    """The parameters in *arguments* but ``*args`` and ``**kwargs``, each with its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    return [*zip(positional, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def _parse(source: str, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "invalid escape sequence" is between the script and its author
        return ast.parse(source, filename=path)


@dataclass(slots=True)
class Bindings:
    """What the names of a module's top level stand for in the end: of two bindings the later one counts.

    *imports* are full names (``typing.Optional``), *stars* the modules of ``from MODULE import *``, *aliases* the
    expressions that names were assigned, *once* the names that were bound a single time.
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
        """Forget what *name* stood for, as it is bound again."""
        (self.once.discard if name in self._seen else self.once.add)(name)
        self._seen.add(name)
        for table in (self.functions, self.classes, self.aliases, self.imports):
            table.pop(name, None)

    def add_types(self, other: Bindings) -> None:
        """Add what *other* says of names that are not bound here, but for functions."""
        self.classes |= {name: node for name, node in other.classes.items() if name not in self._seen}
        self.aliases |= {name: value for name, value in other.aliases.items() if name not in self._seen}
        self.imports |= {name: full for name, full in other.imports.items() if name not in self._seen}
        self.once |= other.once - self._seen
        self.stars = [*other.stars, *self.stars]


def bindings(module: ast.Module) -> Bindings:
    """What *module* binds at its top level, blocks like ``if`` and ``try`` included.

    What is under ``if TYPE_CHECKING`` counts for types that nothing else says, but makes no functions. What is under
    ``if __name__ == "__main__"`` or a condition that never holds, like ``if 0``, does not count at all.
    """
    found, typing = Bindings(), Bindings()
    for node, typing_only in _statements(module):
        _bind(typing if typing_only else found, node)
    found.add_types(typing)
    return found


def _statements(module: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Statements of the top level in their order, without recursion, and whether only type checkers see them."""
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
    """The names of the blocks of *node* that may be run, and of those for type checkers alone, which are true here."""
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
    """Forget the names in *target*, as what they stand for now cannot be told."""
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
        return  # `greet = cached(greet)` is what it was
    found.bound(target.id)
    found.aliases[target.id] = value


def _wraps(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and any(
        isinstance(argument, ast.Name) and argument.id == name for argument in value.args
    )
