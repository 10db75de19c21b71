# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of the official registry's server.json (schemas 2025-07-09 to 2025-12-11) to entries."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpd.errors import InvalidManifest
from mcpd.formats.keys import ENVIRONMENT_NAME, HEADER_NAME, UniqueKeys, scalar_text
from mcpd.formats.seed import id_of, seed_entry
from mcpd.formats.server_json_build import PUBLISHER, SEED, build, seed_of
from mcpd.model import Entry, Source, Target, ValueType, printable
from mcpd.model.entry import NETWORK
from mcpd.model.placeholders import placeholders
from mcpd.package_sources import INDEXES, PackageIndex, SourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mcpd.model import JsonValue

Scalar = str | int | float | bool | None


class Input(msgspec.Struct, rename="camel"):
    """A value that the author or the user sets."""

    description: str | None = None
    is_required: bool | None = None
    is_secret: bool | None = None
    default: Scalar = None
    placeholder: str | None = None
    value: Scalar = None
    choices: list[Any] | None = None
    format: str | None = None
    variables: dict[str, Input] | None = None
    """Variables in :attr:`value`, which refers to them as ``{name}``."""


class KeyValue(Input, rename="camel", kw_only=True):
    """An environment variable or a header."""

    name: str


class Argument(Input, rename="camel", kw_only=True):
    """A ``positional`` or ``named`` argument."""

    type: str = "positional"
    name: str | None = None
    value_hint: str | None = None
    is_repeated: bool | None = None


class Transport(msgspec.Struct, rename="camel"):
    """Transport of a package, or of a remote server."""

    type: str = "stdio"
    url: str | None = None
    headers: list[KeyValue] | None = None
    variables: dict[str, Input] | None = None


class Package(msgspec.Struct, rename="camel", kw_only=True):
    """A package in a package registry, or a file."""

    registry_type: str
    identifier: str
    registry_base_url: str | None = None
    version: str | None = None
    file_sha256: str | None = msgspec.field(default=None, name="fileSha256")
    runtime_hint: str | None = None
    transport: Transport | None = None
    runtime_arguments: list[Argument] | None = None
    package_arguments: list[Argument] | None = None
    environment_variables: list[KeyValue] | None = None


class Icon(msgspec.Struct):
    """An icon."""

    src: str | None = None


class Server(msgspec.Struct, rename="camel", kw_only=True):
    """A whole server.json document."""

    name: str
    title: str | None = None
    description: str | None = None
    version: str | None = None
    website_url: str | None = None
    repository: dict[str, Any] | None = None
    icons: list[Icon] | None = None
    packages: list[Package] | None = None
    remotes: list[Transport] | None = None


_RENAMED: Final = {
    "registry_type": "registryType",
    "registry_name": "registryType",
    "registry_base_url": "registryBaseUrl",
    "file_sha256": "fileSha256",
    "runtime_hint": "runtimeHint",
    "runtime_arguments": "runtimeArguments",
    "package_arguments": "packageArguments",
    "environment_variables": "environmentVariables",
    "is_required": "isRequired",
    "is_secret": "isSecret",
    "is_repeated": "isRepeated",
    "value_hint": "valueHint",
    "website_url": "websiteUrl",
    "transport_type": "type",
}
"""Field names before schema 2025-09-16, mapped to the current names."""


def read(document: dict[str, Any], origin: str) -> Server:
    """Parse the server.json *document*, read from *origin*, of any known schema.

    Raises :class:`~mcpd.errors.InvalidManifest` that names *origin*, the field and the fault.
    """
    try:
        return msgspec.convert(_modern(document), Server, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidManifest(f"{origin}: {error}") from error


def _modern(document: dict[str, Any]) -> dict[str, Any]:
    packages, remotes = document.get("packages"), document.get("remotes")
    if not {"version_detail", "website_url"} & document.keys() and not _is_older([packages, remotes]):
        return document
    new: dict[str, Any] = _renamed({key: value for key, value in document.items() if key != "_meta"})
    detail = document.get("version_detail")
    if "version" not in new and isinstance(detail, dict):
        new["version"] = detail.get("version")
    for package in new["packages"] if isinstance(new.get("packages"), list) else []:
        if isinstance(package, dict) and "identifier" not in package and "name" in package:
            package["identifier"] = package["name"]
    return new


def _is_older(value: Any) -> bool:
    """Return whether *value* contains an old field name at any depth, so that no old ``is_secret`` is overlooked."""
    if isinstance(value, list):
        return any(_is_older(item) for item in value)
    if not isinstance(value, dict):
        return False
    if not _RENAMED.keys().isdisjoint(value):
        return True
    return any(
        any(_is_older(variable) for variable in held.values())
        if key == "variables" and isinstance(held, dict)
        else _is_older(held)
        for key, held in value.items()
    )


def _renamed(value: Any) -> Any:
    """Return *value* with current field names; the names of variables are kept."""
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    new: dict[str, Any] = {}
    for key, held in value.items():
        if key == "variables" and isinstance(held, dict):
            new[key] = {name: _renamed(variable) for name, variable in held.items()}
        elif (today := _RENAMED.get(key)) is None or today not in value:
            new[today or key] = _renamed(held)
    return new


MAX_PROPERTIES: Final = 500
"""Maximum number of values that one server may ask for."""
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_TYPES: Final = {
    "string": ValueType.STRING,
    "number": ValueType.NUMBER,
    "boolean": ValueType.BOOLEAN,
    "filepath": ValueType.PATH,
}


class Inputs:
    """Configurable properties of one entry, with unique keys."""

    def __init__(self) -> None:
        self.properties: list[dict[str, Any]] = []
        self.permissions: list[str] = [NETWORK]
        """Permissions of a package. server.json cannot declare any, and nearly all packages use the network."""
        self.faults: list[str] = []
        """Reasons why the server cannot be started as its author intends."""
        self._keys = UniqueKeys()
        self._headers: dict[str, list[tuple[KeyValue, str]]] = {}

    def environment(self, variables: Sequence[KeyValue]) -> dict[str, str]:
        """Return the variables with fixed values; those that the user sets become properties."""
        fixed: dict[str, str] = {}
        names: set[str] = set()
        for variable in variables:
            name = variable.name
            if not ENVIRONMENT_NAME.fullmatch(name):
                self.faults.append(f"{name[:100]!a} cannot be the name of an environment variable")
            elif name not in names:
                names.add(name)
                if variable.value is not None:
                    fixed[name] = self._filled(scalar_text(variable.value), variable)
                elif self._keys.is_free(name):
                    self._property(name, variable, Target.ENV, granting=True)
                else:
                    # The name is not free as a key, so the property cannot have the target "env".
                    fixed[name] = f"{{config.{self._property(name, variable, Target.MANIFEST, granting=True)}}}"
        return fixed

    def arguments(self, arguments: Sequence[Argument]) -> list[str]:
        """Return the arguments, with ``{config.KEY}`` where the user sets the value."""
        found: list[str] = []
        for argument in arguments:
            found += self._named(argument) if argument.type == "named" and argument.name else self._positional(argument)
        return found

    def address(self, url: str, variables: Mapping[str, Input], *, required: bool) -> str:
        """Return the *url* of a remote server, with its *variables* replaced with ``{config.KEY}``."""
        return self._template(url, variables, Target.MANIFEST, required=required)

    def headers(self, headers: Sequence[KeyValue], *, required: bool) -> dict[str, str]:
        """Return the headers by name; *required* is False if the server can be used without them."""
        found: dict[str, str] = {}
        for header in headers:
            if not HEADER_NAME.fullmatch(header.name):
                self.faults.append(f"{header.name[:100]!a} cannot be the name of a header")
            elif header.name not in found:
                if header.value is not None:
                    text = scalar_text(header.value)
                    found[header.name] = self._template(text, header.variables, Target.MANIFEST, required=required)
                else:
                    found[header.name] = f"{{config.{self._header(header, required=required)}}}"
        return found

    def _header(self, header: KeyValue, *, required: bool) -> str:
        """Return the key of the property for *header*; transports with the same header share one property."""
        same = self._headers.setdefault(header.name, [])
        for known, key in same:
            if known == header:
                return key
        key = self._property(header.name, header, Target.HEADER, required=required)
        same.append((header, key))
        return key

    def _positional(self, argument: Argument) -> list[str]:
        if argument.value is not None:
            return [self._filled(scalar_text(argument.value), argument, in_argument=True)]
        key = self._argument(argument.value_hint or argument.name or "argument", argument)
        return [f"{{config.{key}}}"] if key else []

    def _named(self, argument: Argument) -> list[str]:
        flag = argument.name or ""
        self._refuse_placeholders(flag)
        if argument.value is not None:
            text = self._filled(scalar_text(argument.value), argument, in_argument=True)
            return _flagged(flag, text, argument)
        if not _asks(argument):
            return [flag]
        key = self._argument(flag, argument)
        return _flagged(flag, f"{{config.{key}}}", argument) if key else []

    def _argument(self, name: str, argument: Argument) -> str:
        """Return the key of the property for *argument*; empty for an optional secret."""
        if argument.is_secret:
            # Every user of the machine can read arguments, so they must not hold secrets.
            if argument.is_required:
                self.faults.append(
                    f"its argument {name[:100]!a} is a secret, which every user on this machine could read"
                )
            return ""
        return self._property(name, argument, Target.ARG, repeated=bool(argument.is_repeated), granting=True)

    def _filled(self, text: str, given: Input, *, in_argument: bool = False) -> str:
        return self._template(text, given.variables, Target.MANIFEST, in_argument=in_argument)

    def _template(
        self,
        text: str,
        variables: Mapping[str, Input] | None,
        target: Target,
        *,
        in_argument: bool = False,
        required: bool = True,
    ) -> str:
        """Return *text* with its *variables* replaced with placeholders; other text in braces is kept."""
        keys: dict[str, str] = {}

        def fill(found: re.Match[str]) -> str:
            name = found[1]
            variable = (variables or {}).get(name)
            if variable is None:
                return found[0]
            if variable.value is not None:
                return scalar_text(variable.value)
            if in_argument and variable.is_secret:
                self.faults.append(
                    f"its argument {name[:100]!a} is a secret, which every user on this machine could read"
                )
                return ""
            if name not in keys:
                keys[name] = self._property(name, variable, target, required=required, granting=in_argument)
            return f"{{config.{keys[name]}}}"

        filled = _VARIABLE.sub(fill, text)
        self._refuse_placeholders(text)
        self._refuse_placeholders(filled, set(keys.values()))
        return filled

    def _refuse_placeholders(self, text: str, own: Collection[str] = ()) -> None:
        """Record a fault if *text* contains ``{config.KEY}`` literally, that is, with a key that is not in *own*."""
        if keys := [key for key in placeholders(text) if key not in own]:
            self.faults.append(f"it contains {{config.{keys[0][:100]}}}, which mcpd would replace")

    def _property(
        self,
        name: str,
        given: Input,
        target: Target,
        *,
        required: bool = True,
        repeated: bool = False,
        granting: bool = False,
    ) -> str:
        """Add a property for *given*, and return its key. Raises :class:`~mcpd.errors.InvalidManifest`."""
        if len(self.properties) == MAX_PROPERTIES:
            raise InvalidManifest(f"requires more than {MAX_PROPERTIES} values")
        key = self._keys.take(name.lstrip("-"))
        kind = _TYPES.get(given.format or "")
        default = _typed(given.default, kind)
        grants = granting and kind is ValueType.PATH and not given.is_secret
        # Users must enter each path that they permit, because consent does not show defaults.
        suggested = scalar_text(default) if grants and default is not None else ""
        default = None if suggested else default
        parts: dict[str, Any] = {
            "label": name if key != name else "",
            "description": given.description,
            "sensitive": given.is_secret,
            "required": bool(given.is_required or suggested) and required,
            "type": ValueType.LIST if repeated else kind,
            "choices": given.choices,
            "placeholder": suggested or given.placeholder,
        }
        new = {"key": key, "target": target} | {part: value for part, value in parts.items() if value}
        if default is not None:
            new["default"] = [default] if repeated else default
        self.properties.append(new)
        if grants:
            self.permissions.append(f"filesystem:rw:{{config.{key}}}")
        return key


def _asks(argument: Argument) -> bool:
    """Return whether the user has to set a value for *argument*; a flag with only a name has none."""
    return any(
        (
            argument.description,
            argument.is_required,
            argument.default is not None,
            argument.value_hint,
            argument.placeholder,
            argument.choices,
            argument.format,
            argument.is_repeated,
        )
    )


def _flagged(flag: str, text: str, argument: Argument) -> list[str]:
    """Return *flag* and *text* as two arguments if they can only be omitted together, else joined by ``=``."""
    keys = placeholders(text)
    if not keys:
        return [flag, text]
    variables = (argument.variables or {}).values()
    truth = argument.format == "boolean" or any(variable.format == "boolean" for variable in variables)
    if truth or argument.is_repeated or "{" in flag or "}" in flag:
        return [f"{flag}={text}"]
    conditions = "".join(f"{{config.{key}?}}" for key in keys[:-1])
    return [f"{conditions}{{config.{keys[-1]}?{flag}}}", text]


def _typed(default: Scalar, kind: ValueType | None) -> Scalar:
    """Convert *default*, a string in the schema, to a value of *kind* if possible."""
    if not isinstance(default, str):
        return default
    if kind is ValueType.BOOLEAN and default.lower() in ("true", "false"):
        return default.lower() == "true"
    if kind is ValueType.NUMBER:
        for number in (int, float):
            with contextlib.suppress(ValueError):
                if math.isfinite(value := number(default)):
                    return value
    return default


_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(slots=True)
class PackagePlan:
    """Result of converting one package: how it would be installed and started."""

    source: dict[str, Any]
    transport: dict[str, Any] | None = None
    """A stdio transport; None for a bundle, whose manifest defines the transport."""
    environment: dict[str, str] = field(default_factory=dict)
    obstacle: str = ""
    """Reason why mcpd cannot install the package; empty if it can."""
    inputs: Inputs = field(default_factory=Inputs)


def plan_of(package: Package) -> PackagePlan:
    """Return the plan for *package*; it has a package source, for listings, even if mcpd cannot install it."""
    kind = package.registry_type
    transport = package.transport.type if package.transport is not None else "stdio"
    if kind in INDEXES:
        plan = _from_index(package, INDEXES[kind])
    elif kind == SourceType.MCPB:
        plan = _bundle(package)
    else:
        plan = PackagePlan(
            _known({"type": kind or "unknown", "package": package.identifier, "version": package.version})
        )
        plan.obstacle = Source.parse(plan.source, "package").unsupported if kind else "its package has no registryType"
    if transport != "stdio" and not plan.obstacle:
        plan.obstacle = (
            f"its package serves {printable(transport)} on a port, but mcpd only starts servers that use standard"
            " input and output"
        )
    return plan


def _known(fields: dict[str, str | None]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _bundle(package: Package) -> PackagePlan:
    digest = (package.file_sha256 or "").lower()
    source = {"type": "mcpb", "url": package.identifier, "sha256": digest, "version": package.version}
    if not _SHA256.fullmatch(digest):
        return PackagePlan(_known(source | {"sha256": ""}), obstacle="its bundle has no fileSha256 to verify it with")
    plan = PackagePlan(_known(source))
    if not package.identifier.lower().startswith(("https://", "http://", "file:///")):
        plan.obstacle = f"its bundle is not at a URL: {printable(package.identifier)!r}"
    return plan


def _from_index(package: Package, index: PackageIndex) -> PackagePlan:
    kind = index.type
    plan = PackagePlan(_known({"type": kind, "package": package.identifier, "version": package.version}))
    base = (package.registry_base_url or "").rstrip("/").lower()
    digest = (package.file_sha256 or "").lower()
    named = index.split(package.identifier)
    if base and base not in index.urls:
        plan.obstacle = f"its package is in a separate registry, {printable(base)}"
    elif named is None:
        plan.obstacle = f"{printable(package.identifier)!r} is not the name of {index.noun}"
    elif digest and not _SHA256.fullmatch(digest):
        plan.obstacle = "the fileSha256 of its package is not a SHA-256 digest"
    if plan.obstacle or named is None:
        return plan
    chosen, obstacle = _runtime(package, index, named[0])
    wanted = index.split(chosen) if chosen else named
    if obstacle or wanted is None:
        plan.obstacle = obstacle or f"{printable(chosen)!r} is not the name of {index.noun}"
        return plan
    version = wanted[1]
    if not version and index.normalise(wanted[0]) == index.normalise(named[0]):
        version = package.version or named[1]
    plan.source = _known({"type": kind, "package": wanted[0], "version": version, "sha256": digest})
    plan.environment = plan.inputs.environment(package.environment_variables or [])
    arguments = plan.inputs.arguments(package.package_arguments or [])
    # If the arguments name another package, the identifier is a command of that package.
    plan.transport = (
        {"type": "stdio", "command": named[0], "args": arguments}
        if chosen
        else {"type": "stdio", "command": index.runner, "args": [named[0], *arguments]}
    )
    plan.obstacle = plan.inputs.faults[0] if plan.inputs.faults else ""
    return plan


def _runtime(package: Package, index: PackageIndex, name: str) -> tuple[str, str]:
    """Return the package that the runner's arguments name instead of *name*, and why they are unsupported.

    Both may be empty.
    """
    words = list(_words(package.runtime_arguments or []))
    chosen = ""
    while words:
        word = words.pop(0)
        option, joined, value = word.partition("=")
        if option in index.package_options and (joined or words):
            chosen = value if joined else words.pop(0)
        elif word not in {"--", *index.flags} and (index.split(word) or ("",))[0] != name:
            return "", f"its package needs the runtime argument {printable(word)!r}, which mcpd does not support"
    return chosen, ""


def _words(arguments: Iterable[Argument]) -> Iterable[str]:
    for argument in arguments:
        if argument.type == "named" and argument.name:
            yield argument.name
        if argument.value is not None:
            yield scalar_text(argument.value)
        elif argument.type != "named":
            yield scalar_text(argument.default if argument.default is not None else argument.value_hint or "")


ORIGINAL: Final = "serverJson"
"""Field of an entry that contains the server.json from which it was converted."""
_SCHEMA: Final = "server.schema.json"
_NAME: Final = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", re.ASCII)
_INSTALL_FIELDS: Final = ("id", "source", "transports", "env", "manifest", "unsupportedReason")
"""Fields of an entry that decide what is installed and started."""
_SEED_FIELDS: Final = frozenset({"id", "transports", "transport", "source", "manifest"})


def is_server_json(document: object) -> bool:
    """Return whether *document* is a server.json of any schema, or an item of the official API that contains one."""
    if not isinstance(document, dict):
        return False
    found: dict[str, Any] = document["server"] if _is_item(document) else document
    schema = found.get("$schema")
    if isinstance(schema, str) and _SCHEMA in schema:
        return True
    name = found.get("name")
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and not _SEED_FIELDS & found.keys()


def entry_of(document: dict[str, Any], origin: str, *, published: bool = False) -> Entry:
    """Convert *document*, a server.json or an API item that contains one, to an entry; *origin* is for messages.

    An unchanged document from :func:`server_json_of` is converted to the entry embedded in it. If *published*, anyone
    may have written it, so the embedded entry is used only if the visible fields result in the same id, package source
    and transports. An item always counts as published.

    Raises :class:`~mcpd.errors.InvalidManifest` that names *origin*, the field and the fault.
    """
    if _is_item(document):
        document, published = document["server"], True
    embedded = _embedded(document, origin)
    if embedded is not None and not published:
        return embedded
    converted = _converted(document, origin)
    return embedded if embedded is not None and _installs_the_same(embedded, converted) else converted


def _is_item(document: dict[str, Any]) -> bool:
    """Return whether *document* is an item of a page of the official registry's API."""
    found = document.get("server")
    return isinstance(found, dict) and not {"name", *_SEED_FIELDS} & document.keys()


def original(entry: Entry) -> dict[str, Any] | None:
    """Return the server.json from which *entry* was converted; None if there is none or *entry* has since changed."""
    document = (entry.model_extra or {}).get(ORIGINAL)
    if not isinstance(document, dict):
        return None
    try:
        same = entry_of(document, entry.id).to_json() == entry.to_json()
    except InvalidManifest:
        return None
    return document if same else None


def _embedded(document: dict[str, Any], origin: str) -> Entry | None:
    found: Any = document
    for name in ("_meta", PUBLISHER, SEED):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return None
    try:
        entry = seed_entry(found, origin)
    except InvalidManifest:
        return None  # invalid, so only the visible fields are used
    return entry if build(entry) == document and original(entry) is None else None


def _installs_the_same(embedded: Entry, converted: Entry) -> bool:
    """Return whether both entries install and start the same program; descriptions and permissions may differ."""
    said, seen = embedded.to_json(), converted.to_json()
    return all(said.get(name) == seen.get(name) for name in _INSTALL_FIELDS)


def _converted(document: dict[str, Any], origin: str) -> Entry:
    server = read(document, origin)
    made: dict[str, Any] = {
        "id": id_of(server.name, origin),
        "name": server.title or server.name,
        "origin": {"name": server.name},
    }
    texts = {"summary": server.description, "version": server.version, "homepage": server.website_url}
    icons = (icon.src for icon in server.icons or [])
    texts["icon"] = next((src for src in icons if src), None)
    made |= {name: text for name, text in texts.items() if text}
    if server.repository:
        made["repository"] = server.repository
    try:
        made |= _installation(server)
    except InvalidManifest as error:
        raise InvalidManifest(f"{origin}: {error.message}") from error
    return Entry.parse(made | {ORIGINAL: document}, origin)


def _installation(server: Server) -> dict[str, Any]:
    """Return the fields for installing and reaching the server."""
    packages, remotes = server.packages or [], server.remotes or []
    chosen = _chosen(packages)
    if chosen is not None and not chosen.obstacle:
        # A bundle's transport is known only when it is fetched; other transports here would replace it.
        transports = [] if chosen.transport is None else [chosen.transport]
        if transports:
            transports += _transports(remotes, chosen.inputs, required=False)
        return _made(chosen, transports, chosen.inputs)
    inputs = Inputs()
    transports = _transports(remotes, inputs, required=True)
    inputs.permissions.clear()
    made = _made(chosen, transports, inputs)
    if chosen is not None and not transports:
        made["unsupportedReason"] = chosen.obstacle
    elif chosen is None and not transports:
        made["unsupportedReason"] = "it names neither a package nor a URL"
    elif inputs.faults:
        made["unsupportedReason"] = inputs.faults[0]
    return made


def _chosen(packages: Iterable[Package]) -> PackagePlan | None:
    """Return the plan for the first installable package, or for the first package if none is installable."""
    first: PackagePlan | None = None
    for package in packages:
        plan = plan_of(package)
        if not plan.obstacle:
            return plan
        first = first or plan
    return first


def _made(plan: PackagePlan | None, transports: list[Any], inputs: Inputs) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "source": plan.source if plan is not None else None,
        "transports": transports,
        "env": plan.environment if plan is not None and not plan.obstacle else None,
        "permissions": inputs.permissions,
        "configurableProperties": inputs.properties,
    }
    return {name: part for name, part in parts.items() if part}


def _transports(remotes: Iterable[Transport], inputs: Inputs, *, required: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for remote in remotes:
        made: dict[str, Any] = {
            "type": remote.type,
            "url": inputs.address(remote.url or "", remote.variables or {}, required=required),
        }
        if headers := inputs.headers(remote.headers or [], required=required):
            made["headers"] = headers
        found.append(made)
    return found


def server_json_of(entry: Entry) -> dict[str, JsonValue]:
    """Return the server.json (2025-12-11) for *entry*, which :func:`entry_of` converts back.

    For an unchanged entry from a server.json, that document is returned, whatever its schema.
    """
    return original(entry) or build(entry)


def registry_of(entries: Iterable[Entry], updated: str) -> dict[str, JsonValue]:
    """Return a registry of *entries*, last changed at *updated* (ISO 8601)."""
    return {"version": "1.0", "updated": updated, "servers": [seed_of(entry) for entry in entries]}
