# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that start a server through a package manager, and the package sources they stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.model.base import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FETCHERS: Final = {
    **dict.fromkeys(("npx", "bunx", "pnpm", "pnpx", "yarn"), "install the package itself (npm:NAME)"),
    **dict.fromkeys(("uvx", "pipx"), "install the package itself (pypi:NAME)"),
    **dict.fromkeys(("docker", "podman"), "mcpd runs no containers; look for a package of the server"),
}
"""Programs that fetch what they run, with advice on what to do instead."""

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
"""Options of ``uv`` that do not affect what is started."""
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
        """The program without its directory and without the suffixes of Windows."""
        return re.sub(r"\.(?:exe|cmd|bat|ps1)$", "", re.split(r"[/\\]", self.program)[-1], flags=re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packaged:
    """The package source of a command, and the command that remains."""

    source: dict[str, Any]
    command: Command | None
    """None if the package defines its command."""


def without_uv(command: Command, where: str) -> tuple[Command, str]:
    """Return the command that ``uv run`` starts in the environment of a project, and the project's directory.

    The directory is empty if the command names none. Raises :class:`~mcpd.errors.InvalidManifest`, beginning with
    *where*, for a command that needs more than the project's packages.
    """
    words, first = _without_options(command.arguments, where)
    if words[:1] != ["run"]:
        raise InvalidManifest(f"{where}: only 'uv run' is supported; install the package itself")
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
    """Return the package that *command* runs; None if it is not a package runner.

    Raises :class:`~mcpd.errors.InvalidManifest`, beginning with *where*, for a package that mcpd cannot install.
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
    """Return *words* after the options of ``uv``, and the directory that the options name."""
    rest, directory = list(words), ""
    while rest and rest[0].startswith("-") and rest[0] not in _MODULE:
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in _UV_FLAGS:
            continue
        if option not in _UV_VALUES | _DIRECTORY:
            raise InvalidManifest(f"{where}: the option {printable(option)!r} of uv is not supported")
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
            f"{where}: {_shown(spec)} is not a package of the npm registry; for a repository or a directory use"
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
    """Return *spec* for a message; an address is left out, as it may hold credentials."""
    return "an address" if "://" in spec or "@" in spec[1:] else repr(printable(spec))


def _version(text: str | None) -> dict[str, str]:
    """Return the version if *text* is one; a tag such as ``latest`` pins nothing."""
    return {"version": text.removeprefix("v")} if text and _EXACT.fullmatch(text) else {}


def _options(
    words: Sequence[str], flags: frozenset[str], package: set[str], values: frozenset[str], where: str
) -> tuple[list[str], str]:
    """Return *words* after the options of the runner, and the package that an option names."""
    rest, spec = list(words), ""
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in flags:
            continue
        if option not in package | values or (option in package and spec):
            raise InvalidManifest(f"{where}: the option {printable(option)!r} of the command is not supported")
        if not equals:
            value = rest.pop(0) if rest else ""
        spec = value if option in package else spec
    return rest, spec


_IN_SANDBOX: Final = tuple(map(PurePosixPath, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev")))
"""Directories that every sandbox shows, so that they need no permission."""
NIX_STORE: Final = "/nix/store/"
"""Directory whose programs need each other's files."""
_SYSTEM_OWNED: Final = tuple(map(PurePosixPath, ("/opt", "/nix", "/snap", "/etc")))
"""Directories with system files, which servers only read."""
_INTERPRETER: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py|node|nodejs|deno|bun")
_PYTHON: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py")
_RUN: Final = frozenset({"run"})
"""Words between an interpreter and its script."""
_OUTPUTS: Final = frozenset({"dist", "build", "src", "lib", "out", "server"})
"""Directories of scripts within a project."""
_ENVIRONMENTS: Final = frozenset({".venv", "venv", "env", ".env"})
_HOMES: Final = frozenset({"home", "Users"})
_SHARED: Final = frozenset(
    {"Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos", "bin", "lib", "share"}
)
"""Directories that hold unrelated files."""
_ADVICE: Final = "install it by its directory (mcpctl install DIRECTORY --command PROGRAM) or its package"


@dataclass(frozen=True, slots=True)
class Local:
    """The command of a local server, and its package source."""

    source: dict[str, Any] | None
    """None for a program of the system."""
    command: Command


def local_command(command: Command, cwd: str, where: str) -> Local:
    """Return the directory to install for *command*, and the command with paths relative to it.

    *cwd* is its working directory, empty if unknown. Raises :class:`~mcpd.errors.InvalidManifest`, beginning with
    *where*, with advice if there is no such directory.
    """
    if command.name == "uv":
        command, directory = without_uv(command, where)
        cwd = directory or cwd
    if cwd and not cwd.startswith("/"):
        raise InvalidManifest(f"{where}: its working directory {printable(cwd)!r} is not an absolute path; {_ADVICE}")
    program, roots = _program(command, where)
    script = _script(command)
    if not roots and _lies_in(PurePosixPath(script or program), (*_IN_SANDBOX, PurePosixPath(NIX_STORE))):
        # Keep the path of the interpreter, which may have the modules that the script needs.
        program = command.program if command.program.startswith("/") else program
        return Local(None, Command(program, command.arguments))
    if cwd:
        roots.append(PurePosixPath(cwd))
    if script.startswith("/"):
        roots.append(_project(PurePosixPath(script).parent))
    elif not roots and (script or program.startswith(".") or _INTERPRETER.fullmatch(program)):
        raise InvalidManifest(f"{where}: the command does not say in which directory its program lies; {_ADVICE}")
    if not roots:
        if not program.startswith("/"):
            raise InvalidManifest(f"{where}: where {printable(program)!r} lies depends on the client's PATH; {_ADVICE}")
        return Local(None, Command(program, command.arguments))
    root = _common(roots, where)
    arguments = tuple(_relative(argument, root) for argument in command.arguments)
    return Local({"type": "local", "path": str(root)}, Command(_relative(program, root), arguments))


def permissions_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield permissions for the absolute paths in *texts*, also after ``=``; system files read-only."""
    for path in _paths_of(texts):
        if path.is_relative_to(NIX_STORE):
            yield f"filesystem:ro:{NIX_STORE.rstrip('/')}"
        elif not _lies_in(path, _IN_SANDBOX):
            yield f"filesystem:{'ro' if _lies_in(path, _SYSTEM_OWNED) else 'rw'}:{path}"


def _paths_of(texts: Iterable[str]) -> Iterator[PurePosixPath]:
    for text in texts:
        option, equals, value = text.partition("=")
        named = value if equals and option.startswith("-") else text
        path = PurePosixPath(named)
        is_plain = named.startswith("/") and not named.startswith("//") and len(path.parts) > 1
        if is_plain and ".." not in path.parts:
            yield path


def _program(command: Command, where: str) -> tuple[str, list[PurePosixPath]]:
    """Return the program's name after installation, and the directory it belongs to, if any."""
    path, name = PurePosixPath(command.program), command.name
    name = "python3" if _PYTHON.fullmatch(name) else name
    if not path.is_absolute():
        return (name if _INTERPRETER.fullmatch(name) else command.program), []
    if path.parent.name == "bin" and path.parent.parent.name in _ENVIRONMENTS:
        return name, [path.parent.parent.parent]
    if _INTERPRETER.fullmatch(name):
        return name, []
    if _lies_in(path, (*_IN_SANDBOX, *_SYSTEM_OWNED)):
        return command.program, []
    if path.parent.name in {"bin", "sbin"}:
        raise InvalidManifest(f"{where}: {printable(str(path.parent))!r} holds programs of all kinds; {_ADVICE}")
    return command.program, [path.parent]


def _script(command: Command) -> str:
    """Return the script given to an interpreter, or an empty string."""
    if not _INTERPRETER.fullmatch(command.name):
        return ""
    for argument in command.arguments:
        if argument in {"-m", "--module", "-c", "-e", "--eval"}:
            return ""
        if not argument.startswith("-") and argument not in _RUN:
            return argument
    return ""


def _project(directory: PurePosixPath) -> PurePosixPath:
    while directory.name in _OUTPUTS:
        directory = directory.parent
    return directory


def _common(roots: Sequence[PurePosixPath], where: str) -> PurePosixPath:
    top = min(roots, key=lambda path: len(path.parts))
    if ".." in top.parts or not all(path.is_relative_to(top) for path in roots):
        raise InvalidManifest(f"{where}: its files do not lie in one directory; {_ADVICE}")
    if _is_too_broad(top):
        raise InvalidManifest(f"{where}: {printable(str(top))!r} holds more than the server; {_ADVICE}")
    return top


def _lies_in(path: PurePosixPath, directories: Iterable[PurePosixPath]) -> bool:
    return ".." not in path.parts and any(path.is_relative_to(directory) for directory in directories)


def _is_too_broad(directory: PurePosixPath) -> bool:
    """Return whether *directory* also holds unrelated files, which must not be copied and shown to the server.

    Hidden directories of a home hold settings and keys.
    """
    parts = directory.parts[1:]
    within = parts[2:] if parts[:1] and parts[0] in _HOMES else parts[1:]
    if not within:
        return True
    is_home = parts[0] in _HOMES or parts[0] == "root"
    return (is_home and within[-1].startswith(".") and len(within) == 1) or within[-1] in _SHARED


def _relative(text: str, root: PurePosixPath) -> str:
    """Return *text* with a path below *root* made relative to it."""
    option, equals, value = text.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_relative(value, root)}"
    path = PurePosixPath(text)
    if not text.startswith("/") or ".." in path.parts or not path.is_relative_to(root):
        return text
    return f"./{path.relative_to(root)}" if path != root else "."
