# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of JSON arguments into those of a function, according to its annotations."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from mcpd.servers.scripts.calls.convert import BadArgument, convert, hints

__all__ = ["BadArgument", "bind"]


def bind(
    function: Any, arguments: dict[str, Any], positional: list[Any], context: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the named arguments for a call of *function*; raises :class:`BadArgument`.

    As many of *positional* as it takes come first. A parameter ``context`` gets *context*. ``*args`` is an array with
    its name, ``**kwargs`` gets the arguments without a parameter.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return list(positional), dict(arguments)
    binding = _Binding(dict(arguments), list(positional), context, _hints(function))
    binding.in_place = any(p.kind is p.VAR_POSITIONAL and arguments.get(p.name) for p in parameters)
    for parameter in parameters:
        binding.add(parameter)
    if binding.left:
        known = ", ".join(p.name for p in parameters if p.name != "context") or "none"
        raise BadArgument(f"There is no argument {next(iter(binding.left))!r}; there are: {known}.")
    return binding.args, binding.kwargs


@dataclass
class _Binding:
    """The arguments of a call while they are assigned to parameters."""

    left: dict[str, Any]
    given: list[Any]
    context: dict[str, Any]
    hints: dict[str, Any]
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    in_place: bool = False
    """True if the arguments before ``*args`` must be positional, because ``*args`` gets some."""

    def add(self, parameter: inspect.Parameter) -> None:
        """Assign the argument for the next *parameter*."""
        name, kind = parameter.name, parameter.kind
        hint = self.hints.get(name, Any)
        if kind is parameter.VAR_POSITIONAL:
            items = _array(self.left.pop(name, []), name)
            self.args += self.given + [convert(item, hint, f"{name}[{at}]") for at, item in enumerate(items)]
            self.given = []
        elif kind is parameter.VAR_KEYWORD:
            self.kwargs |= {key: convert(item, hint, key) for key, item in self.left.items()}
            self.left = {}
        elif kind is parameter.KEYWORD_ONLY:
            self._put(parameter, hint, by_name=True)
        elif self.given:
            self.args.append(self.given.pop(0))
        else:
            self._put(parameter, hint, by_name=kind is not parameter.POSITIONAL_ONLY and not self.in_place)

    def _put(self, parameter: inspect.Parameter, hint: Any, *, by_name: bool) -> None:
        name = parameter.name
        value: Any
        if name == "context":
            self.left.pop(name, None)
            value = self.context
        elif name in self.left:
            given = self.left.pop(name)
            # If None is the default, the schema allows null, whatever the annotation is: `x: int = None`.
            value = None if given is None and parameter.default is None else convert(given, hint, name)
        elif parameter.default is parameter.empty:
            raise BadArgument(f"The argument {name!r} is missing.")
        elif by_name:
            return
        else:
            value = parameter.default
        if by_name:
            self.kwargs[name] = value
        else:
            self.args.append(value)


def _array(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadArgument(f"The argument {name!r} has to be an array.")
    return value


def _hints(function: Any) -> dict[str, Any]:
    """Return the annotations of the function, or of a class's or object's method that is called."""
    if not inspect.isroutine(function):
        function = getattr(function, "__init__" if isinstance(function, type) else "__call__", function)
    return hints(inspect.unwrap(function))
