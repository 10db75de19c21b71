# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of MCPB bundle manifests (formerly DXT), versions 0.1 to 0.4, to entries.

The bundle's files are in the install directory, which is the server's working directory, so ``${__dirname}`` becomes
``.``. The bundle's ``user_config`` becomes configurable properties. The format has no permissions, so an entry gets
``network`` and the directories and files that the user sets.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from mcpd.errors import InvalidManifest
from mcpd.formats.keys import UniqueKeys
from mcpd.formats.launchers import Command, package_of, without_uv
from mcpd.model.base import Strings, Text, as_list, as_map, check_json, first_fault, id_from_name, printable
from mcpd.model.entry import NETWORK, Entry
from mcpd.model.manifest import EnvironmentName
from mcpd.model.placeholders import placeholders
from mcpd.package_sources import SourceType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.model.source import Source

_VERSIONS: Final = ("0.1", "0.2", "0.3", "0.4")
_VARIABLE: Final = re.compile(r"\$\{(__dirname|HOME|DESKTOP|DOCUMENTS|DOWNLOADS|pathSeparator|/|user_config\.[^{}]+)\}")
_DIRECTORIES: Final = {
    "HOME": "Home directory",
    "DESKTOP": "Desktop directory",
    "DOCUMENTS": "Documents directory",
    "DOWNLOADS": "Downloads directory",
}
"""Variables for directories of the user, with their labels; the user sets the paths, which a conversion cannot know."""
_ROOT: Final = frozenset({"", ".", "./", "${__dirname}", "${__dirname}/"})
_OPTION: Final = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_TYPES: Final = {"directory": "path", "file": "path"}
_MAPPED: Final = frozenset(
    {"name", "display_name", "version", "description", "long_description", "author", "license", "support", "keywords"}
    | {"tools", "server", "user_config"}
)
"""Fields that map completely to fields of an entry; the others are kept under ``mcpb``."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True, defer_build=True)


Arguments = Annotated[list[str], BeforeValidator(as_list), Field(max_length=1024)]
Environment = Annotated[dict[EnvironmentName, str], BeforeValidator(as_map), Field(max_length=256)]


class _Override(_Part):
    command: Text = ""
    args: Arguments | None = None
    env: Environment | None = None


class _McpConfig(_Part):
    command: Text = ""
    args: Arguments = Field(default_factory=list)
    env: Environment = Field(default_factory=dict)
    platform_overrides: Annotated[dict[str, _Override], BeforeValidator(as_map)] = Field(default_factory=dict)


class _Server(_Part):
    type: Literal["node", "python", "binary", "uv"]
    entry_point: Text = ""
    mcp_config: _McpConfig | None = None


class _Value(_Part):
    type: Literal["string", "number", "boolean", "directory", "file"]
    title: Text = ""
    description: Text = ""
    required: bool = False
    default: JsonValue = None
    multiple: bool = False
    sensitive: bool = False


class _Compatibility(_Part):
    platforms: JsonValue = None


class _Bundle(_Part):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    version: Annotated[str, Field(min_length=1, max_length=256)]
    display_name: Text = ""
    description: Text = ""
    long_description: Text = ""
    author: JsonValue = None
    repository: JsonValue = None
    homepage: Text = ""
    documentation: Text = ""
    support: Text = ""
    icon: Text = ""
    icons: JsonValue = None
    screenshots: JsonValue = None
    keywords: Strings = Field(default_factory=list)
    license: JsonValue = None
    tools: JsonValue = None
    compatibility: Annotated[_Compatibility, BeforeValidator(as_map)] = Field(default_factory=_Compatibility)
    server: _Server
    user_config: Annotated[dict[str, _Value], BeforeValidator(as_map), Field(max_length=256)] = Field(
        default_factory=dict
    )


def entry_of_bundle(manifest: object, origin: str, *, id: str = "") -> Entry:  # noqa: A002 - what it is everywhere
    """Return the entry for a bundle with the parsed ``manifest.json`` *manifest*, from *origin* (for messages).

    The entry has no package source, and one stdio transport with paths relative to the unpacked bundle. *id* overrides
    the id derived from the bundle's name.

    Raises :class:`~mcpd.errors.InvalidManifest`, which names *origin* and the field, for an invalid manifest, and for
    bundles that fetch their program at every start or pass a secret as an argument.
    """
    bundle = _parse(manifest, origin)
    values = _Values(bundle.user_config, origin)
    command, env = _command_and_environment(bundle.server, origin)
    args = list(values.arguments(command.arguments))
    transport = {"type": "stdio", "command": values.program(command.program), "args": args}
    env = {name: values.text(text, f"env.{name}") for name, text in env.items()}
    unmapped = {key: value for key, value in _document(manifest).items() if key not in _MAPPED}
    unmapped["server"] = {"type": bundle.server.type, "entry_point": bundle.server.entry_point}
    document: dict[str, Any] = {
        "id": id or id_from_name(bundle.name),
        "name": bundle.display_name or bundle.name,
        "summary": bundle.description,
        "description": bundle.long_description,
        "version": bundle.version,
        "author": bundle.author,
        "license": bundle.license,
        "homepage": bundle.homepage or _url(bundle.repository) or bundle.documentation,
        "bugUrl": bundle.support,
        "icon": _icon(bundle),
        "screenshots": _remote(bundle.screenshots),
        "categories": bundle.keywords,
        "tools": bundle.tools,
        "platforms": bundle.compatibility.platforms,
        "permissions": [NETWORK, *values.permissions],
        "configurableProperties": values.properties,
        "env": env,
        "origin": {"name": bundle.name},
        "mcpb": unmapped,
    }
    given = {key: value for key, value in document.items() if value not in (None, "", [], {})}
    return Entry.parse({**given, "transports": [transport]}, origin)


def file_wanted(source: Source | None) -> str:
    """Return advice for a server installed from a bundle file; empty for any other package source."""
    if source is None or source.type is not SourceType.MCPB or source.url or not source.sha256:
        return ""
    return source.unsupported


def _document(manifest: object) -> dict[str, Any]:
    return manifest if isinstance(manifest, dict) else {}


def _parse(manifest: object, origin: str) -> _Bundle:
    if not isinstance(manifest, dict):
        raise InvalidManifest(f"{origin}: not the manifest of a bundle: one object is expected")
    field = "manifest_version" if "manifest_version" in manifest else "dxt_version"
    version = manifest.get(field)
    if version not in _VERSIONS:
        shown = printable(str(version)) if isinstance(version, (str, int, float)) else "none"
        raise InvalidManifest(f"{origin}: {field}: {shown!r} is not one of {', '.join(_VERSIONS)}")
    try:
        check_json(manifest)
        return _Bundle.model_validate(manifest)
    except ValidationError as error:
        raise InvalidManifest(f"{origin}: {first_fault(error)}") from error
    except ValueError as error:
        raise InvalidManifest(f"{origin}: {error}") from error


def _command_and_environment(server: _Server, origin: str) -> tuple[Command, dict[str, str]]:
    """Return the command for Linux and its environment, both with variables not yet replaced."""
    where = f"{origin}: server.mcp_config"
    config = server.mcp_config
    if config is None or not config.command:
        return _by_entry_point(server, origin)
    override = config.platform_overrides.get("linux", _Override())
    args = config.args if override.args is None else override.args
    env = config.env if override.env is None else override.env
    command = Command(override.command or config.command, tuple(args))
    if command.program == "uv":
        command, directory = without_uv(command, where)
        if directory not in _ROOT:
            raise InvalidManifest(f"{where}: {printable(directory)!r} is not the bundle's directory")
    if (packaged := package_of(command, where)) is not None:
        source = packaged.source
        target = f"{source['type']}:{source['package']}" if "package" in source else f"git+{source['url']}"
        raise InvalidManifest(
            f"{where}: {printable(command.name)} fetches the program at every start, so the bundle does not pin it;"
            f" install the package itself ({target})"
        )
    program = command.program
    if re.fullmatch(r"(?:python|py)(?:\.exe)?", program):
        # The name of the interpreter in Debian.
        program = "python3"
    elif server.type == "binary" and "/" not in program and program == server.entry_point:
        # A bare name would be looked up in PATH.
        program = f"./{program}"
    return Command(program, command.arguments), env


def _by_entry_point(server: _Server, origin: str) -> tuple[Command, dict[str, str]]:
    path = PurePosixPath(server.entry_point)
    if not server.entry_point or path.is_absolute() or ".." in path.parts or "\\" in server.entry_point:
        raise InvalidManifest(
            f"{origin}: server.entry_point: {printable(server.entry_point)!r} is not a path in the bundle, and"
            " server.mcp_config names no command"
        )
    entry_point = f"./{path}"
    if server.type == "binary":
        return Command(entry_point, ()), {}
    return Command("node" if server.type == "node" else "python3", (entry_point,)), {}


class _Values:
    """Conversion of a bundle's ``user_config`` to properties, and of its variables to placeholders."""

    def __init__(self, user_config: dict[str, _Value], origin: str) -> None:
        self._origin = origin
        self._taken = UniqueKeys()
        self._keys: dict[str, str] = {}
        """Property keys by variable."""
        self._bare: set[str] = set()
        """Keys of optional values that are not booleans."""
        self._sensitive: set[str] = set()
        """Sensitive variables."""
        self.properties: list[dict[str, Any]] = []
        self.permissions: list[str] = []
        for name, value in user_config.items():
            self._add(name, value)

    def text(self, text: str, field: str) -> str:
        """Return *text*, from *field* of ``mcp_config``, with the bundle's variables replaced by placeholders."""

        used: set[str] = set()

        def filled(found: re.Match[str]) -> str:
            new = self._filled(found[1], field, text[: found.start()])
            used.update(placeholders(new))
            return new

        made = _VARIABLE.sub(filled, text)
        if placeholders(text) or not used.issuperset(placeholders(made)):
            raise InvalidManifest(
                f"{self._origin}: server.mcp_config.{field}: {{config.…}} is a placeholder of mcpd; a bundle"
                " uses ${user_config.…}"
            )
        return made

    def program(self, text: str) -> str:
        """Return the program *text* with variables replaced; it must not depend on values that the user sets."""
        made = self.text(text, "command")
        if placeholders(made):
            raise InvalidManifest(
                f"{self._origin}: server.mcp_config.command: {printable(text)!r} depends on a value that the user sets;"
                " mcpd only starts programs of the bundle or the system"
            )
        if ".." in PurePosixPath(made).parts:
            raise InvalidManifest(
                f"{self._origin}: server.mcp_config.command: {printable(text)!r} is outside the bundle"
            )
        return made

    def arguments(self, arguments: tuple[str, ...]) -> Iterator[str]:
        """Yield *arguments* with variables replaced; an option is omitted together with its optional value."""
        for index, argument in enumerate(arguments):
            following = _VARIABLE.fullmatch(arguments[index + 1]) if index + 1 < len(arguments) else None
            name = following[1] if following else ""
            if _OPTION.fullmatch(argument) and self._keys.get(name) in self._bare:
                yield f"{{config.{self._keys[name]}?{argument}}}"
            else:
                self._refuse_secrets(argument, index)
                yield self.text(argument, f"args.{index}")

    def _refuse_secrets(self, argument: str, index: int) -> None:
        for found in _VARIABLE.finditer(argument):
            if found[1] in self._sensitive:
                raise InvalidManifest(
                    f"{self._origin}: server.mcp_config.args.{index}: {printable(found[1])!r} is sensitive, but an"
                    " argument is visible to every user on this machine; the bundle must use 'env' for it"
                )

    def _filled(self, variable: str, field: str, before: str) -> str:
        if variable == "__dirname":
            if before.endswith("://"):
                raise InvalidManifest(
                    f"{self._origin}: server.mcp_config.{field}: ${{__dirname}} cannot be part of a URL, as it is"
                    " replaced by a relative path"
                )
            return "."
        if variable in ("/", "pathSeparator"):
            return "/"
        if variable in _DIRECTORIES:
            return f"{{config.{self._directory(variable)}}}"
        key = self._keys.get(variable)
        if key is None:
            raise InvalidManifest(
                f"{self._origin}: server.mcp_config.{field}: {printable(variable)!r} is not declared in user_config"
            )
        return f"{{config.{key}}}"

    def _directory(self, variable: str) -> str:
        """Return the key of the property for a *variable* of :data:`_DIRECTORIES`."""
        if variable not in self._keys:
            key = self._keys[variable] = self._taken.take(variable)
            self.properties.append(
                {"key": key, "label": _DIRECTORIES[variable], "type": "path", "required": True}
                | {"description": "The server gets access to this directory and its contents"}
            )
            self.permissions.append(f"filesystem:rw:{{config.{key}}}")
        return self._keys[variable]

    def _add(self, name: str, value: _Value) -> None:
        variable = f"user_config.{name}"
        key = self._keys[variable] = self._taken.take(name)
        is_path = value.type in _TYPES
        default, suggestion = _default(value)
        if not value.required and default in (None, "", []) and value.type != "boolean":
            self._bare.add(key)
        found: dict[str, Any] = {
            # The format has no "target", so an unknown field of that name must not take effect.
            **{field: held for field, held in (value.model_extra or {}).items() if field != "target"},
            "key": key,
            "label": value.title or name,
            "description": value.description,
            "type": "list" if value.multiple else _TYPES.get(value.type, value.type),
            "required": value.required,
        }
        if default not in (None, "", []):
            found["default"] = [default] if value.multiple and not isinstance(default, list) else default
        if suggestion is not None:
            found["placeholder"] = suggestion
        if value.sensitive and not is_path:
            found["sensitive"] = True
            self._sensitive.add(variable)
        self.properties.append(found)
        if is_path:
            self.permissions.append(f"filesystem:rw:{{config.{key}}}")


def _default(value: _Value) -> tuple[JsonValue, JsonValue]:
    """Return the default of *value* and None; or, for paths and values with variables, None and a suggestion.

    Such a default cannot be used directly: the server has another home directory and would get the text literally.
    Besides, users must enter each path that they permit, because consent does not show defaults.
    """
    given = value.default if isinstance(value.default, list) else [value.default]
    texts = [text for text in given if isinstance(text, str) and text]
    if not texts or (value.type not in _TYPES and not any(map(_VARIABLE.search, texts))):
        return value.default, None
    suggested: list[JsonValue] = [text.replace("${HOME}", "~", 1) for text in texts]
    return None, suggested if value.multiple else suggested[0]


def _url(repository: JsonValue) -> str:
    url = repository.get("url") if isinstance(repository, dict) else repository
    return url if isinstance(url, str) and url.startswith("https://") else ""


def _icon(bundle: _Bundle) -> str:
    """Return the URL of the bundle's icon; empty if the icon is a file in the bundle."""
    icons = bundle.icons if isinstance(bundle.icons, list) else []
    sources = [bundle.icon, *(icon.get("src") for icon in icons if isinstance(icon, dict))]
    return next((src for src in sources if isinstance(src, str) and src.startswith("https://")), "")


def _remote(screenshots: JsonValue) -> list[str]:
    listed = screenshots if isinstance(screenshots, list) else []
    return [url for url in listed if isinstance(url, str) and url.startswith("https://")]
