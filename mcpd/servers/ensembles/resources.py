# SPDX-License-Identifier: LGPL-2.1-or-later
"""The resources: ensembles, profiles, artifacts and metrics as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, InvalidConfig, NotFound
from mcpd.model import dump_json, printable
from mcpd.servers.ensembles import drawing, uris
from mcpd.servers.ensembles.artifacts.analysis import metrics
from mcpd.servers.ensembles.artifacts.store import MAX_LISTED, homes
from mcpd.servers.ensembles.artifacts.stored import moment
from mcpd.servers.pagination import Pages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.servers.ensembles.artifacts.store import Artifacts
    from mcpd.servers.ensembles.artifacts.stored import ArtifactEntry
    from mcpd.servers.ensembles.engine.types import Origin
    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.format.models import Profile
    from mcpd.servers.ensembles.library.library import Entry, Library
    from mcpd.servers.ensembles.library.profiles import ProfileEntry

    Keyed = Callable[[Profile], bool]

JSON: Final = "application/json"
PAGE: Final = 500
"""Number of resources in a page."""
MOST_VALUES: Final = 100
"""Maximum number of values in a completion."""

ALWAYS: Final = {
    uris.ENSEMBLES: ("All ensembles", "The ensembles with their descriptions, and where they are"),
    uris.PROFILES: ("Model profiles", "The models that ensembles name, with their settings"),
}
"""Resources that always exist: titles and descriptions by URI."""
TEMPLATES: Final = {
    f"{uris.SCHEME}ensemble/{{name}}": ("An ensemble", "The whole configuration of an ensemble"),
    f"{uris.SCHEME}artifacts/{{ensemble}}": ("Runs of an ensemble", "The runs that are kept, the newest first"),
    f"{uris.SCHEME}artifact/{{id}}": ("A run", "Everything that went into a run and came out of it"),
    f"{uris.SCHEME}metrics/{{ensemble}}": ("Metrics of an ensemble", "Success rate, costs and durations of its runs"),
}
"""Resource templates: titles and descriptions by URI template."""


class Resources:
    """The resources of one process. All methods block, and are thread-safe."""

    def __init__(self, library: Library, artifacts: Artifacts, keyed: Keyed) -> None:
        """Serve *library* and *artifacts*; *keyed* returns whether there is a key for a profile."""
        self._library, self._artifacts, self._keyed = library, artifacts, keyed

    def list_resources(self, cursor: str | None) -> dict[str, Any]:
        """Return a page of ``resources/list``. Raises :class:`~mcpd.errors.InvalidArgument` for an invalid *cursor*."""
        entries = self._library.entries()
        known = {_name(entry): entry for entry in entries}
        ran = self._artifacts.names(homes(self._library, entries))
        names = [(uri, "") for uri in ALWAYS]
        names += [(uris.ENSEMBLE, name) for name in known]
        names += [(kind, name) for name in ran for kind in (uris.ARTIFACTS, uris.METRICS)]
        page, following = Pages("resources", names, PAGE).page(cursor)
        listed = [_listed(kind, name, known) for kind, name in page]
        return {"resources": listed, **({"nextCursor": following} if following else {})}

    @staticmethod
    def list_resource_templates() -> dict[str, Any]:
        """Return the result of ``resources/templates/list``."""
        listed = [
            {"uriTemplate": uri, "name": uri, "title": title, "description": text, "mimeType": JSON}
            for uri, (title, text) in TEMPLATES.items()
        ]
        return {"resourceTemplates": listed}

    def read_resource(self, uri: str) -> dict[str, Any]:
        """Return the result of ``resources/read`` for *uri*.

        Raises :class:`~mcpd.errors.NotFound`, with the URI in its data, for an unknown resource.
        """
        try:
            value = self._value(uri)
        except NotFound as fault:
            fault.data = {"uri": uri, **(fault.data or {})}
            raise
        return {"contents": [{"uri": uri, "mimeType": JSON, "text": dump_json(value).decode()}]}

    def complete(self, template: str, argument: str, value: str) -> list[str]:
        """Return values of *argument* of *template* that begin with *value*, at most one more than :data:`MOST_VALUES`.

        Raises :class:`~mcpd.errors.InvalidArgument` for an unknown template.
        """
        if template not in TEMPLATES:
            raise InvalidArgument(f"there is no resource template {printable(template)!r}")
        if f"{{{argument}}}" not in template:
            return []
        if argument == "name":
            names = [_name(entry) for entry in self._library.entries()]
        elif argument == "ensemble":
            names = self._artifacts.names()
        else:
            return self._artifact_ids(value)
        return [name for name in names if name.startswith(value)][: MOST_VALUES + 1]

    def _artifact_ids(self, value: str) -> list[str]:
        found: list[str] = []
        for name in self._artifacts.names():
            if f"{name}/".startswith(value) or value.startswith(f"{name}/"):
                found += [each for each in self._artifacts.ids(name) if each.startswith(value)]
            if len(found) > MOST_VALUES:
                break
        return found[: MOST_VALUES + 1]

    def _value(self, uri: str) -> object:
        if uri == uris.ENSEMBLES:
            return {"ensembles": [ensemble_entry(entry) for entry in self._library.entries()]}
        if uri == uris.PROFILES:
            return {"profiles": [profile_to_resource(each, self._keyed) for each in self._library.profiles()]}
        parsed = uris.parsed(uri)
        if parsed is None:
            raise NotFound(
                f"there is no resource {printable(uri)}; resources/list has all there are, such as {uris.ENSEMBLES}"
            )
        kind, name = parsed
        if kind == uris.ENSEMBLE:
            return self._ensemble(name)
        if kind == uris.ARTIFACT:
            artifact = self._artifacts.resolved(name)
            return {**self._artifacts.read(artifact), "id": artifact}
        name = self._artifacts.called(name)
        entries, total = self._artifacts.listing(name, MAX_LISTED), self._artifacts.count(name)
        if not total:
            # An ensemble that was never run has an empty list of runs.
            self._known(name)
        if kind == uris.METRICS:
            return {"ensemble": name, **metrics(entries)}
        return artifacts_to_resource(name, entries, total)

    def _known(self, name: str) -> Entry:
        """Return the entry of the ensemble *name*. Raises :class:`~mcpd.errors.NotFound`."""
        for entry in self._library.entries():
            if name == entry.qualified or (name == entry.name and not entry.shadowed):
                return entry
        raise NotFound(f"there is no ensemble {printable(name)!r}; {uris.ENSEMBLES} lists those that there are")

    def _ensemble(self, name: str) -> dict[str, Any]:
        entry = self._known(name)
        try:
            _, loaded, text = self._library.loaded(name)
        except InvalidConfig as fault:
            return broken_to_resource(entry, fault)
        return ensemble_to_resource(entry, loaded, text)


def ensemble_entry(entry: Entry) -> dict[str, Any]:
    """Return an ensemble as an entry of the list."""
    made: dict[str, Any] = {
        "name": entry.name,
        "description": entry.description,
        "agents": entry.agents,
        "kinds": list(entry.kinds),
        "qualified": entry.qualified,
        "shadowed": entry.shadowed,
        "uri": uris.uri(uris.ENSEMBLE, _name(entry)),
        "modified": moment(entry.modified),
        **_source(entry.origin),
    }
    return made if entry.problem is None else {**made, "problem": entry.problem}


def ensemble_to_resource(entry: Entry, loaded: Loaded, text: str) -> dict[str, Any]:
    """Return a whole ensemble: every key of its file, its text, its location, and a diagram."""
    return {
        **loaded.document,
        "source": {**_source(entry.origin), "qualified": entry.qualified, "modified": moment(entry.modified)},
        "yaml": text,
        "mermaid": drawing.mermaid(loaded.ensemble),
    }


def broken_to_resource(entry: Entry, fault: InvalidConfig) -> dict[str, Any]:
    """Return an invalid ensemble with its faults."""
    return {
        "name": entry.name,
        "problem": fault.message,
        "problems": (fault.data or {}).get("problems", []),
        "source": {**_source(entry.origin), "qualified": entry.qualified, "modified": moment(entry.modified)},
    }


def artifacts_to_resource(ensemble: str, entries: Sequence[ArtifactEntry], total: int) -> dict[str, Any]:
    """Return the list of runs of an ensemble, newest first; *total* is the number of all."""
    return {
        "ensemble": ensemble,
        "total": total,
        "artifacts": [{**each.payload(), "uri": uris.artifact_uri(each.id)} for each in entries],
    }


def profile_to_resource(entry: ProfileEntry, keyed: Keyed) -> dict[str, Any]:
    """Return a profile; instead of its key, only whether there is one."""
    made: dict[str, Any] = {"name": entry.name, "shadowed": entry.shadowed, **_source(entry.origin)}
    if entry.profile is not None:
        made |= {**entry.profile.model_dump(mode="json", exclude_none=True), "has_key": keyed(entry.profile)}
        if "@" in made.get("base_url", ""):
            # The part before "@" may be a password; nothing is sent to such a URL.
            del made["base_url"]
    if entry.problem is not None:
        made["problem"] = entry.problem
    return made


def _source(origin: Origin) -> dict[str, Any]:
    project = {"project": str(origin.project)} if origin.project is not None else {}
    return {"tier": origin.tier, **project, "file": str(origin.file)}


def _name(entry: Entry) -> str:
    """Return the unambiguous name of *entry*."""
    return entry.qualified if entry.shadowed else entry.name


def _listed(kind: str, name: str, known: Mapping[str, Entry]) -> dict[str, Any]:
    """Return a resource as an entry of the list: *name* of the given *kind*, or one of :data:`ALWAYS`."""
    if kind in ALWAYS:
        uri, (title, text) = kind, ALWAYS[kind]
    elif kind == uris.ENSEMBLE:
        uri, title, text = uris.uri(kind, name), name, known[name].problem or known[name].description
    else:
        title = f"Runs of {name}" if kind == uris.ARTIFACTS else f"Metrics of {name}"
        uri, text = uris.uri(kind, name), ""
    described = {"description": text} if text else {}
    return {"uri": uri, "name": uri.removeprefix(uris.SCHEME), "title": title, **described, "mimeType": JSON}
