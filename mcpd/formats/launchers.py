# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that start a server through a package manager, and the packages they come to."""

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


_SHOWN: Final = tuple(map(PurePosixPath, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev")))
"""What every sandbox has, so that it needs no permission."""
NIX_STORE: Final = "/nix/store/"
"""Where a program needs the files of others, and they theirs."""
_PACKAGED: Final = tuple(map(PurePosixPath, ("/opt", "/nix", "/snap", "/etc")))
"""Where files are the system's as well, which nobody changes by way of a server."""
_INTERPRETER: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py|node|nodejs|deno|bun")
_PYTHON: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py")
_RUN: Final = frozenset({"run"})
"""Words between an interpreter and its script."""
_OUTPUTS: Final = frozenset({"dist", "build", "src", "lib", "out", "server"})
"""Directories within a project in which its scripts lie."""
_ENVIRONMENTS: Final = frozenset({".venv", "venv", "env", ".env"})
_HOMES: Final = frozenset({"home", "Users"})
_SHARED: Final = frozenset(
    {"Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos", "bin", "lib", "share"}
)
"""Directories that hold things of all kinds, of whomever."""
_ELSEWHERE: Final = "install it by its directory (mcpctl install DIRECTORY --command PROGRAM) or its package"


@dataclass(frozen=True, slots=True)
class Local:
    """What is started, and from where."""

    source: dict[str, Any] | None
    """None for a program of the system."""
    command: Command


def local_command(command: Command, cwd: str, where: str) -> Local:
    """The directory to install for *command*, started in *cwd* (empty if the file does not say), paths made relative.

    Raises :class:`~mcpd.errors.InvalidManifest`, beginning with *where*, if there is no such directory; it says what
    to do instead.
    """
    if command.name == "uv":
        command, directory = without_uv(command, where)
        cwd = directory or cwd
    if cwd and not cwd.startswith("/"):
        raise InvalidManifest(f"{where}: its working directory {printable(cwd)!r} is no absolute path; {_ELSEWHERE}")
    program, roots = _program(command, where)
    script = _script(command)
    if not roots and _lies_in(PurePosixPath(script or program), (*_SHOWN, PurePosixPath(NIX_STORE))):
        # What interprets it may bring the modules that it needs.
        program = command.program if command.program.startswith("/") else program
        return Local(None, Command(program, command.arguments))
    if cwd:
        roots.append(PurePosixPath(cwd))
    if script.startswith("/"):
        roots.append(_project(PurePosixPath(script).parent))
    elif not roots and (script or program.startswith(".") or _INTERPRETER.fullmatch(program)):
        raise InvalidManifest(f"{where}: the command does not say in which directory its program lies; {_ELSEWHERE}")
    if not roots:
        if not program.startswith("/"):
            raise InvalidManifest(
                f"{where}: where {printable(program)!r} lies depends on the client's PATH; {_ELSEWHERE}"
            )
        return Local(None, Command(program, command.arguments))
    root = _common(roots, where)
    arguments = tuple(_relative(argument, root) for argument in command.arguments)
    return Local({"type": "local", "path": str(root)}, Command(_relative(program, root), arguments))


def permissions_of(texts: Iterable[str]) -> Iterator[str]:
    """The permissions for the absolute paths that *texts* name, also after ``=``: to read what is the system's."""
    for path in _paths_of(texts):
        if path.is_relative_to(NIX_STORE):
            yield f"filesystem:ro:{NIX_STORE.rstrip('/')}"
        elif not _lies_in(path, _SHOWN):
            yield f"filesystem:{'ro' if _lies_in(path, _PACKAGED) else 'rw'}:{path}"


def _paths_of(texts: Iterable[str]) -> Iterator[PurePosixPath]:
    for text in texts:
        option, equals, value = text.partition("=")
        named = value if equals and option.startswith("-") else text
        path = PurePosixPath(named)
        is_plain = named.startswith("/") and not named.startswith("//") and len(path.parts) > 1
        if is_plain and ".." not in path.parts:
            yield path


def _program(command: Command, where: str) -> tuple[str, list[PurePosixPath]]:
    """The program as it is called once it is installed, and the directory it comes from, if it has one of its own."""
    path, name = PurePosixPath(command.program), command.name
    name = "python3" if _PYTHON.fullmatch(name) else name
    if not path.is_absolute():
        return (name if _INTERPRETER.fullmatch(name) else command.program), []
    if path.parent.name == "bin" and path.parent.parent.name in _ENVIRONMENTS:
        return name, [path.parent.parent.parent]
    if _INTERPRETER.fullmatch(name):
        return name, []
    if _lies_in(path, (*_SHOWN, *_PACKAGED)):
        return command.program, []
    if path.parent.name in {"bin", "sbin"}:
        raise InvalidManifest(f"{where}: {printable(str(path.parent))!r} holds programs of all kinds; {_ELSEWHERE}")
    return command.program, [path.parent]


def _script(command: Command) -> str:
    """The file that an interpreter is given, or empty."""
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
        raise InvalidManifest(f"{where}: its files do not lie in one directory; {_ELSEWHERE}")
    if _holds_more(top):
        raise InvalidManifest(f"{where}: {printable(str(top))!r} holds more than the server; {_ELSEWHERE}")
    return top


def _lies_in(path: PurePosixPath, directories: Iterable[PurePosixPath]) -> bool:
    return ".." not in path.parts and any(path.is_relative_to(directory) for directory in directories)


def _holds_more(directory: PurePosixPath) -> bool:
    """Whether the server can only be one of many things in *directory*, of which none is to be copied and shown to it.

    Directories of a home that begin with a dot hold settings and keys.
    """
    parts = directory.parts[1:]
    within = parts[2:] if parts[:1] and parts[0] in _HOMES else parts[1:]
    if not within:
        return True
    is_home = parts[0] in _HOMES or parts[0] == "root"
    return (is_home and within[-1].startswith(".") and len(within) == 1) or within[-1] in _SHARED


def _relative(text: str, root: PurePosixPath) -> str:
    """*text* with a path in *root* made relative to it."""
    option, equals, value = text.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_relative(value, root)}"
    path = PurePosixPath(text)
    if not text.startswith("/") or ".." in path.parts or not path.is_relative_to(root):
        return text
    return f"./{path.relative_to(root)}" if path != root else "."
