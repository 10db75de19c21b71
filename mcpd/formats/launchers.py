# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that start a server through a package manager, and the packages they come to."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.model.base import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

FETCHERS: Final = {
    **dict.fromkeys(("npx", "bunx", "pnpm", "pnpx", "yarn"), "install the package itself (npm:NAME)"),
    **dict.fromkeys(("uvx", "pipx"), "install the package itself (pypi:NAME)"),
    **dict.fromkeys(("docker", "podman"), "mcpd runs no containers; look for a package of the server"),
}
"""Programs that fetch what they run, and what to do instead."""

_NPM_RUNNERS: Final[tuple[tuple[str, ...], ...]] = (
    ("npx",), ("bunx",), ("pnpx",), ("npm", "exec"), ("npm", "x"), ("pnpm", "dlx"), ("yarn", "dlx"), ("bun", "x"),
)  # fmt: skip
_PYPI_RUNNERS: Final[tuple[tuple[str, ...], ...]] = (("uvx",), ("uv", "tool", "run"), ("pipx", "run"))
_NPM_FLAGS: Final = frozenset(
    {"-y", "--yes", "-q", "--quiet", "-s", "--silent", "--prefer-online", "--prefer-offline", "--bun", "--no-install"}
)
_UV_FLAGS: Final = frozenset(
    {"-q", "--quiet", "-v", "--verbose", "--frozen", "--locked", "--no-sync", "--no-dev", "--isolated", "--native-tls"}
    | {"--offline", "--no-progress", "--active", "--no-cache", "-n", "--no-config", "--no-editable", "--exact"}
    | {"--refresh", "--reinstall", "--system-certs"}
)
"""Options of ``uv`` that say nothing about what is started."""
_UV_VALUES: Final = frozenset({"-p", "--python", "--python-preference", "--color", "--cache-dir"})
_DIRECTORY: Final = frozenset({"--directory", "--project"})
_MODULE: Final = frozenset({"-m", "--module"})
_EXACT: Final = re.compile(r"v?\d+(?:\.\d+)*[A-Za-z0-9.+_-]*", re.ASCII)
_NPM: Final = re.compile(r"((?:@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*)(?:@([^\s/:]+))?", re.ASCII)
_PYPI: Final = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._, -]*\])?)(?:(==|@)([^\s/:,;<>=~!]+))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its arguments."""

    program: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The program without its directory, and without what Windows adds."""
        return re.sub(r"\.(?:exe|cmd|bat|ps1)$", "", re.split(r"[/\\]", self.program)[-1], flags=re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packaged:
    """What a runner of packages fetches and starts."""

    source: dict[str, Any]
    command: Command | None
    """None where the package has to say what is started."""


def without_uv(command: Command, where: str) -> tuple[Command, str]:
    """What ``uv run`` starts in an environment with the packages of its project, and the project's directory.

    The directory is empty where the command names none. Raises :class:`~mcpd.errors.InvalidManifest`, beginning with
    *where*, for a command that needs more than those packages.
    """
    words, first = _without_options(command.arguments, where)
    if words[:1] != ["run"]:
        raise InvalidManifest(f"{where}: of uv, mcpd knows 'uv run' only; install the package itself")
    words, second = _without_options(words[1:], where)
    if not words:
        raise InvalidManifest(f"{where}: uv run does not say what to start")
    program, *arguments = words
    if program in _MODULE:
        found = Command("python3", ("-m", *arguments))
    elif program.endswith(".py"):
        found = Command("python3", (program, *arguments))
    else:
        found = Command(program, tuple(arguments))
    return found, second or first


def package_of(command: Command, where: str) -> Packaged | None:
    """The package that *command* runs; None if it is no runner of packages.

    Raises :class:`~mcpd.errors.InvalidManifest`, beginning with *where*, for one that mcpd cannot install.
    """
    command = replace(command, program=command.name)
    words = (command.program, *command.arguments)
    for runner in _NPM_RUNNERS:
        if words[: len(runner)] == runner:
            return _npm(words[len(runner) :], where)
    for runner in _PYPI_RUNNERS:
        if words[: len(runner)] == runner:
            return _pypi(words[len(runner) :], where)
    if command.program in {"docker", "podman"}:
        raise InvalidManifest(f"{where}: a container image: {FETCHERS[command.program]} (mcpctl search)")
    return None


def _without_options(words: Sequence[str], where: str) -> tuple[list[str], str]:
    """*words* from the first on that is no option of ``uv``, or names a module; and the directory that they name."""
    rest, directory = list(words), ""
    while rest and rest[0].startswith("-") and rest[0] not in _MODULE:
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in _UV_FLAGS:
            continue
        if option not in _UV_VALUES | _DIRECTORY:
            raise InvalidManifest(
                f"{where}: mcpd installs what the project names, and cannot do as the option {printable(option)!r} of"
                " uv says"
            )
        if not equals:
            value = rest.pop(0) if rest else ""
        directory = value if option in _DIRECTORY else directory
    return rest, directory


def _npm(words: Sequence[str], where: str) -> Packaged:
    rest, spec = _options(words, _NPM_FLAGS, {"-p", "--package"}, frozenset(), where)
    source = _npm_source(spec or (rest.pop(0) if rest else ""), where)
    if spec:
        return Packaged(source, Command(rest[0], tuple(rest[1:])) if rest else None)
    return Packaged(source, Command("npx", (source["package"], *rest)))


def _npm_source(spec: str, where: str) -> dict[str, Any]:
    found = _NPM.fullmatch(spec)
    if not found:
        raise InvalidManifest(
            f"{where}: {_shown(spec)} is no package of the npm registry; for a repository or a directory use"
            " mcpctl install git+URL or mcpctl install PATH"
        )
    return {"type": "npm", "package": found[1]} | _version(found[2])


def _pypi(words: Sequence[str], where: str) -> Packaged:
    rest, spec = _options(words, _UV_FLAGS, {"--from", "--spec"}, _UV_VALUES, where)
    if not (spec or rest):
        raise InvalidManifest(f"{where}: the command names no package")
    source = _pypi_source(spec or rest.pop(0), where)
    if spec or source["type"] == "git":
        if not spec and rest:
            raise InvalidManifest(
                f"{where}: the command does not say which program of the repository gets the arguments; write it as"
                " uvx --from REPOSITORY PROGRAM ARGUMENTS"
            )
        return Packaged(source, Command(rest[0], tuple(rest[1:])) if rest else None)
    return Packaged(source, Command("uvx", (source["package"], *rest)))


def _pypi_source(spec: str, where: str) -> dict[str, Any]:
    if spec.startswith("git+"):
        url, _, fragment = spec.removeprefix("git+").partition("#")
        base, at, rev = url.rpartition("@")
        if not at or "/" in rev or "://" not in base:
            base, rev = url, ""
        path = dict(part.partition("=")[::2] for part in fragment.split("&")).get("subdirectory", "")
        return {"type": "git", "url": base} | ({"rev": rev} if rev else {}) | ({"path": path} if path else {})
    found = _PYPI.fullmatch(spec)
    if not found:
        raise InvalidManifest(
            f"{where}: {_shown(spec)} is neither the name of a package, with or without ==VERSION, nor a git repository"
        )
    return {"type": "pypi", "package": found[1].replace(" ", "")} | _version(found[3])


def _shown(spec: str) -> str:
    """*spec* for a message; the address of a package may hold credentials."""
    return "an address" if "://" in spec or "@" in spec[1:] else repr(printable(spec))


def _version(text: str | None) -> dict[str, str]:
    """The version, if *text* is one: a tag such as ``latest`` pins nothing."""
    return {"version": text.removeprefix("v")} if text and _EXACT.fullmatch(text) else {}


def _options(
    words: Sequence[str], flags: frozenset[str], package: set[str], values: frozenset[str], where: str
) -> tuple[list[str], str]:
    """*words* from the first on that is no option of the runner, and the package that an option names."""
    rest, spec = list(words), ""
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in flags:
            continue
        if option not in package | values or (option in package and spec):
            raise InvalidManifest(f"{where}: the option {printable(option)!r} of the command is not understood")
        if not equals:
            value = rest.pop(0) if rest else ""
        spec = value if option in package else spec
    return rest, spec
