# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which of the packages of a server.json mcpd can install, and as what."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mcpd.formats.keys import scalar_text
from mcpd.formats.server_json_inputs import Inputs
from mcpd.model import Source, SourceType, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.formats.server_json_schema import Argument, Package

_PUBLIC: Final = {
    SourceType.NPM: frozenset({"https://registry.npmjs.org"}),
    SourceType.PYPI: frozenset({"https://pypi.org", "https://pypi.org/simple"}),
}
RUNNERS: Final = {SourceType.NPM: "npx", SourceType.PYPI: "uvx"}
_FROM: Final = {SourceType.NPM: ("--package", "-p"), SourceType.PYPI: ("--from",)}
"""Options of the runners that name the package, where the command has another name."""
_HARMLESS: Final = frozenset({"-y", "--yes", "-q", "--quiet", "--"})
_NPM: Final = re.compile(
    r"((?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*)(?:@([A-Za-z0-9][A-Za-z0-9.+-]*))?", re.ASCII
)
_PYPI: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,-]*\])?)(?:(?:==|@)([A-Za-z0-9.!+_-]+))?", re.ASCII
)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(slots=True)
class Plan:
    """What becomes of one package."""

    source: dict[str, Any]
    transport: dict[str, Any] | None = None
    """Of type stdio; None for a bundle, which brings its own."""
    environment: dict[str, str] = field(default_factory=dict)
    obstacle: str = ""
    """Why mcpd cannot install it."""
    inputs: Inputs = field(default_factory=Inputs)


def plan_of(package: Package) -> Plan:
    """What becomes of *package*; it always has a source, so that a listing can say what it is."""
    kind = package.registry_type
    transport = package.transport.type if package.transport is not None else "stdio"
    if kind in RUNNERS:
        plan = _from_registry(package, SourceType(kind))
    elif kind == SourceType.MCPB:
        plan = _bundle(package)
    else:
        plan = Plan(_known({"type": kind or "unknown", "package": package.identifier, "version": package.version}))
        plan.obstacle = Source.parse(plan.source, "package").unsupported if kind else "its package has no registryType"
    if transport != "stdio" and not plan.obstacle:
        plan.obstacle = (
            f"its package serves {printable(transport)} on a port of its own, and mcpd starts servers that talk over"
            " standard input and output"
        )
    return plan


def _known(fields: dict[str, str | None]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _bundle(package: Package) -> Plan:
    digest = (package.file_sha256 or "").lower()
    source = {"type": "mcpb", "url": package.identifier, "sha256": digest, "version": package.version}
    if not _SHA256.fullmatch(digest):
        return Plan(_known(source | {"sha256": ""}), obstacle="its bundle has no fileSha256 to check it by")
    plan = Plan(_known(source))
    if not package.identifier.lower().startswith(("https://", "http://", "file:///")):
        plan.obstacle = f"its bundle is not at a URL: {printable(package.identifier)!r}"
    return plan


def _from_registry(package: Package, kind: SourceType) -> Plan:
    form = _NPM if kind is SourceType.NPM else _PYPI
    plan = Plan(_known({"type": kind, "package": package.identifier, "version": package.version}))
    base = (package.registry_base_url or "").rstrip("/").lower()
    digest = (package.file_sha256 or "").lower()
    named = form.fullmatch(package.identifier)
    if base and base not in _PUBLIC[kind]:
        plan.obstacle = f"its package is in a registry of its own, {printable(base)}"
    elif named is None:
        plan.obstacle = f"{printable(package.identifier)!r} is not the name of a package of type {kind}"
    elif digest and not _SHA256.fullmatch(digest):
        plan.obstacle = "the fileSha256 of its package is not one"
    if plan.obstacle or named is None:
        return plan
    chosen, obstacle = _runtime(package, kind, named[1])
    wanted = form.fullmatch(chosen) if chosen else named
    if obstacle or wanted is None:
        plan.obstacle = obstacle or f"{printable(chosen)!r} is not the name of a package of type {kind}"
        return plan
    version = wanted[2]
    if not version and _base(wanted[1]) == _base(named[1]):
        version = package.version or named[2]
    plan.source = _known({"type": kind, "package": wanted[1], "version": version, "sha256": digest})
    plan.environment = plan.inputs.environment(package.environment_variables or [])
    arguments = plan.inputs.arguments(package.package_arguments or [])
    # With another package, the identifier is the command, which the runtime finds among what the package brings.
    plan.transport = (
        {"type": "stdio", "command": named[1], "args": arguments}
        if chosen
        else {"type": "stdio", "command": RUNNERS[kind], "args": [named[1], *arguments]}
    )
    plan.obstacle = plan.inputs.faults[0] if plan.inputs.faults else ""
    return plan


def _base(name: str) -> str:
    """A package's *name* without its extras."""
    return name.partition("[")[0]


def _runtime(package: Package, kind: SourceType, name: str) -> tuple[str, str]:
    """The other package that the arguments of the runner name, and why they cannot be followed; both may be empty."""
    words = list(_words(package.runtime_arguments or []))
    chosen = ""
    while words:
        word = words.pop(0)
        option, joined, value = word.partition("=")
        if option in _FROM[kind] and (joined or words):
            chosen = value if joined else words.pop(0)
        elif word not in _HARMLESS and not _is_package(word, name):
            return "", f"its package wants to be run with {printable(word)!r}, which mcpd cannot do"
    return chosen, ""


def _words(arguments: Iterable[Argument]) -> Iterable[str]:
    for argument in arguments:
        if argument.type == "named" and argument.name:
            yield argument.name
        if argument.value is not None:
            yield scalar_text(argument.value)
        elif argument.type != "named":
            yield scalar_text(argument.default if argument.default is not None else argument.value_hint or "")


def _is_package(word: str, name: str) -> bool:
    return word == name or (word.startswith(name) and word[len(name) :].startswith(("@", "==")))
