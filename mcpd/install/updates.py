# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether what a registry offers is newer than what is installed, and of where that came from."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.errors import AlreadyInstalled
from mcpd.model import SourceType, strip_credentials
from mcpd.store.documents import origin_of

if TYPE_CHECKING:
    from mcpd.model import Entry, Manifest, Source

_Key: TypeAlias = list[tuple[int, int, str]]

_FORM: Final = "1-"
"""Before a digest: how it is made. One that is made otherwise says nothing."""
_CONTENT: Final = (
    "source",
    "transports",
    "permissions",
    "env",
    "runtime",
    "manifest",
    "integrity",
)
_TEXTS: Final = frozenset({"label", "title", "description", "placeholder"})
"""What people read of a configurable property."""


def is_pinned(manifest: Manifest) -> bool:
    """Whether somebody asked for the installed version by name, so that updates leave it alone."""
    return origin_of(manifest).get("pinned") is True


def recorded_registry(manifest: Manifest) -> str | None:
    """URL of the registry the server came from; empty if a caller brought it, None if another tool installed it."""
    registry = origin_of(manifest).get("registry")
    return registry if isinstance(registry, str) else None


def is_from(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Whether *entry* of *registry* is of where the installed *manifest* came from.

    What another tool installed is told by its source, for nobody recorded the registry.
    """
    recorded = recorded_registry(manifest)
    if recorded is None:
        return (
            entry.source is not None and manifest.source is not None and _thing(entry.source) == _thing(manifest.source)
        )
    return recorded != "" and recorded == registry


def is_another(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Return whether *entry* is another server than the installed *manifest*.

    *registry* is empty for a user-supplied entry. Of two user-supplied files only the types are compared: another
    version has another name and hash.
    """
    if registry:
        return not is_from(manifest, entry, registry)
    new, old = entry.source, manifest.source
    if new is None or old is None:
        return new is not old
    if new.is_file and recorded_registry(manifest) == "":
        return new.type != old.type
    return _thing(new) != _thing(old)


def is_update(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Whether *entry* of *registry* is newer than the installed *manifest*, and from the same place.

    That is a higher version; or, where the registry is known to be the same, the same version with other content.
    """
    if is_pinned(manifest) or not is_from(manifest, entry, registry):
        return False
    if entry.version and manifest.version and entry.version != manifest.version:
        return _key(entry.version) > _key(manifest.version)
    if recorded_registry(manifest) is None:
        return False
    known = origin_of(manifest).get("content")
    if isinstance(known, str) and known.startswith(_FORM):
        return known != content_digest(entry)
    return not entry.is_summary and _pins(entry) != _pins(manifest)


def is_installed_version(manifest: Manifest, entry: Entry) -> bool:
    """Whether *entry* names just the version, and the revision or version of the source, that *manifest* has."""
    return entry.version == manifest.version and _requested(entry.source) == _requested(manifest.source)


def check_pin(manifest: Manifest, entry: Entry, *, reinstall: bool) -> None:
    """Raise :class:`~mcpd.errors.AlreadyInstalled` if *manifest* is pinned and *entry* may not take its place.

    Where nobody named a version, only the pinned one itself may, if a *reinstall* was asked for.
    """
    if not is_pinned(manifest) or (reinstall and is_installed_version(manifest, entry)):
        return
    offered = f", and what is offered is {entry.version}" if entry.version not in {"", manifest.version} else ""
    raise AlreadyInstalled(
        f"{entry.id} is pinned to {manifest.version or 'what is installed'}{offered};"
        f" 'mcpctl pin --remove {entry.id}' lets it change"
    )


def is_older(entry: Entry, manifest: Manifest) -> bool:
    """Whether *entry* is of a lower version than the installed *manifest*."""
    return bool(entry.version and manifest.version) and _key(entry.version) < _key(manifest.version)


def is_made_from(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Whether *manifest*, of an update that waits for approval, is just what *entry* of *registry* says now."""
    return (
        is_from(manifest, entry, registry)
        and origin_of(manifest).get("content") == content_digest(entry)
        and entry.version in {"", manifest.version}
    )


def content_digest(entry: Entry) -> str:
    """What is another one if *entry* installs or runs something else, and the same if only texts for people change.

    To be recorded as ``origin.content`` of the manifest, of the entry as the registry has it.
    """
    document = entry.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    content = {key: document[key] for key in _CONTENT if document.get(key) not in (None, "", [], {})}
    if isinstance(content.get("permissions"), list):
        content["permissions"] = sorted(content["permissions"])
    content["configurableProperties"] = [
        {key: value for key, value in prop.items() if key not in _TEXTS}
        for prop in document.get("configurableProperties", ())
    ]
    if isinstance(content.get("source"), dict):
        content["source"] = {**content["source"], "url": strip_credentials(content["source"].get("url", ""))}
    data = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return _FORM + hashlib.sha256(data.encode()).hexdigest()


def is_same_version(manifest: Manifest, entry: Entry, wanted: str) -> bool:
    """Whether *entry*, at the version or revision *wanted* if one is named, is what *manifest* has installed."""
    requested = wanted or _requested(entry.source)
    if requested and requested not in _installed_versions(manifest):
        return False
    return bool(wanted) or entry.version in {"", manifest.version}


def _thing(source: Source) -> tuple[str, ...]:
    return (source.type, strip_credentials(source.url), source.package, source.path)


def _requested(source: Source | None) -> str:
    if source is None:
        return ""
    return source.rev if source.type is SourceType.GIT else source.version


def _installed_versions(manifest: Manifest) -> set[str]:
    """What the installed version may be called."""
    asked_for = _requested(manifest.source)
    if manifest.source is not None and manifest.source.type is SourceType.GIT:
        return {asked_for}
    # A name such as npm's "next" came out as a version, which only a pinned manifest is sure to hold.
    return {asked_for, manifest.version} if is_pinned(manifest) else {asked_for or manifest.version}


def _pins(entry: Entry) -> tuple[str, ...]:
    source = entry.source
    if source is None:
        return ()
    url = strip_credentials(source.url)
    return (source.type, url, source.path, source.package, source.version, source.rev, source.sha256)


def _key(version: str) -> _Key:
    """For comparing versions as people mean them: numbers by value, ``1.0rc1`` before ``1.0`` before ``1.0.1``."""
    parts = re.findall(r"[0-9]+|[a-z]+", version.lower().removeprefix("v"))
    return [*(_number(part) if part.isdigit() else (0, 0, part) for part in parts), (1, 0, "")]


def _number(digits: str) -> tuple[int, int, str]:
    """Sorts by value, without the limit that ``int`` has on digits: a registry may write any number of them."""
    significant = digits.lstrip("0")
    return (2, len(significant), significant)
