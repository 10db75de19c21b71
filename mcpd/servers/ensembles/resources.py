# SPDX-License-Identifier: LGPL-2.1-or-later
"""The resources: ensembles, profiles, artifacts and metrics as JSON (L-1…L-6, C-32)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, InvalidConfig, NotFound
from mcpd.model import dump_json, printable
from mcpd.servers.ensembles import drawing, uris
from mcpd.servers.ensembles.artifacts import places
from mcpd.servers.ensembles.artifacts.entries import moment
from mcpd.servers.ensembles.artifacts.metrics import metrics
from mcpd.servers.ensembles.artifacts.store import MAX_LISTED
from mcpd.servers.pagination import Pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcpd.servers.ensembles.artifacts.entries import ArtifactEntry
    from mcpd.servers.ensembles.artifacts.store import Artifacts
    from mcpd.servers.ensembles.engine.types import Origin
    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.format.models import Profile
    from mcpd.servers.ensembles.library.library import Entry, Library
    from mcpd.servers.ensembles.library.profiles import ProfileEntry

    Keyed = Callable[[Profile], bool]

JSON: Final = "application/json"
PAGE: Final = 500
"""Resources of a page."""
MOST_VALUES: Final = 100
"""Of a completion."""

TEMPLATES: Final = {
    uris.ENSEMBLES: ("All ensembles", "The ensembles with their descriptions, and where they are"),
    f"{uris.SCHEME}ensemble/{{name}}": ("An ensemble", "The whole configuration of an ensemble"),
    f"{uris.SCHEME}artifacts/{{ensemble}}": ("Runs of an ensemble", "The runs that are kept, the newest first"),
    f"{uris.SCHEME}artifact/{{id}}": ("A run", "Everything that went into a run and came out of it"),
    f"{uris.SCHEME}metrics/{{ensemble}}": ("Metrics of an ensemble", "Success rate, costs and durations of its runs"),
    uris.PROFILES: ("Model profiles", "The models that ensembles name, with their settings"),
}
"""What ``resources/templates/list`` shows: titles and descriptions by URI."""


class Resources:
    """The resources of one process. All of it blocks, and may be called in any thread."""

    def __init__(self, library: Library, artifacts: Artifacts, keyed: Keyed) -> None:
        """*keyed* says whether there is a key for a profile."""
        self._library, self._artifacts, self._keyed = library, artifacts, keyed

    def list_resources(self, cursor: str | None) -> dict[str, Any]:
        """The page of ``resources/list`` at *cursor*. Raises :class:`~mcpd.errors.InvalidArgument` for a wrong one."""
        listed = [_listed(uri, *TEMPLATES[uri]) for uri in (uris.ENSEMBLES, uris.PROFILES)]
        for entry in self._library.entries():
            name = entry.qualified if entry.shadowed else entry.name
            listed.append(_listed(uris.uri(uris.ENSEMBLE, name), name, entry.problem or entry.description))
        for name in self._run():
            listed.append(_listed(uris.uri(uris.ARTIFACTS, name), f"Runs of {name}", ""))
            listed.append(_listed(uris.uri(uris.METRICS, name), f"Metrics of {name}", ""))
        page, following = Pages("resources", listed, PAGE).page(cursor)
        return {"resources": page, **({"nextCursor": following} if following else {})}

    @staticmethod
    def list_resource_templates() -> dict[str, Any]:
        """What ``resources/templates/list`` answers."""
        listed = [
            {"uriTemplate": uri, "name": uri, "title": title, "description": text, "mimeType": JSON}
            for uri, (title, text) in TEMPLATES.items()
        ]
        return {"resourceTemplates": listed}

    def read_resource(self, uri: str) -> dict[str, Any]:
        """What ``resources/read`` answers for *uri*.

        Raises :class:`~mcpd.errors.NotFound`, with the URI in its data, for what there is not.
        """
        try:
            value = self._value(uri)
        except NotFound as fault:
            fault.data = {"uri": uri, **(fault.data or {})}
            raise
        return {"contents": [{"uri": uri, "mimeType": JSON, "text": dump_json(value).decode()}]}

    def complete(self, template: str, argument: str, value: str) -> list[str]:
        """Values of *argument* of *template* that begin with *value*, at most one more than :data:`MOST_VALUES`.

        Raises :class:`~mcpd.errors.InvalidArgument` for a template that there is not.
        """
        if template not in TEMPLATES:
            raise InvalidArgument(f"there is no resource template {printable(template)!r}")
        if f"{{{argument}}}" not in template:
            return []
        if argument == "name":
            names = [entry.qualified if entry.shadowed else entry.name for entry in self._library.entries()]
        elif argument == "ensemble":
            names = self._run()
        else:
            return self._artifact_ids(value)
        return [name for name in names if name.startswith(value)][: MOST_VALUES + 1]

    def _artifact_ids(self, value: str) -> list[str]:
        ensemble, slash, _ = value.partition("/")
        found: list[str] = []
        for name in self._run():
            if name == ensemble if slash else name.startswith(ensemble):
                found += [entry.id for entry in self._artifacts.listing(name) if entry.id.startswith(value)]
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
            return {"id": name, **self._artifacts.read(name)}
        entries = self._artifacts.listing(name, MAX_LISTED)
        if not entries and name not in self._run():
            # An ensemble that has not run has no runs, which is no fault.
            self._known(name)
        if kind == uris.METRICS:
            return {"ensemble": name, **metrics(entries)}
        return artifacts_to_resource(name, entries, self._artifacts.count(name))

    def _run(self) -> list[str]:
        """The ensembles that have been run. It looks at their directories only: there may be thousands of runs."""
        found: set[str] = set()
        for root in self._library.artifact_roots():
            # What cannot be read says so where its runs are listed.
            with suppress(OSError), places.opened(root) as top:
                found |= set(filter(places.is_ensemble, places.names(top)))
        return sorted(found)

    def _known(self, name: str) -> Entry:
        """The ensemble *name*. Raises :class:`~mcpd.errors.NotFound`."""
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
    """An ensemble as a list has it (L-1)."""
    made: dict[str, Any] = {
        "name": entry.name,
        "description": entry.description,
        "agents": entry.agents,
        "kinds": list(entry.kinds),
        "qualified": entry.qualified,
        "shadowed": entry.shadowed,
        "uri": uris.uri(uris.ENSEMBLE, entry.qualified if entry.shadowed else entry.name),
        "modified": moment(entry.modified),
        **_source(entry.origin),
    }
    return made if entry.problem is None else {**made, "problem": entry.problem}


def ensemble_to_resource(entry: Entry, loaded: Loaded, text: str) -> dict[str, Any]:
    """The whole of an ensemble (L-2): every key of its file, its text, where it is, and how it hangs together."""
    return {
        **loaded.document,
        "source": {**_source(entry.origin), "qualified": entry.qualified, "modified": moment(entry.modified)},
        "yaml": text,
        "mermaid": drawing.mermaid(loaded.ensemble),
    }


def broken_to_resource(entry: Entry, fault: InvalidConfig) -> dict[str, Any]:
    """An ensemble that cannot be used, with what is wrong."""
    return {
        "name": entry.name,
        "problem": fault.message,
        "problems": (fault.data or {}).get("problems", []),
        "source": {**_source(entry.origin), "qualified": entry.qualified, "modified": moment(entry.modified)},
    }


def artifacts_to_resource(ensemble: str, entries: Sequence[ArtifactEntry], total: int) -> dict[str, Any]:
    """The runs of an ensemble (L-3), the newest first, of which there are *total*."""
    return {
        "ensemble": ensemble,
        "total": total,
        "artifacts": [{**each.payload(), "uri": uris.artifact_uri(each.id)} for each in entries],
    }


def profile_to_resource(entry: ProfileEntry, keyed: Keyed) -> dict[str, Any]:
    """A profile (L-6); of a key only whether there is one."""
    made: dict[str, Any] = {"name": entry.name, "shadowed": entry.shadowed, **_source(entry.origin)}
    if entry.profile is not None:
        made |= {**entry.profile.model_dump(mode="json", exclude_none=True), "has_key": keyed(entry.profile)}
        if "@" in made.get("base_url", ""):
            # What stands before it may be a password; nothing is sent there.
            del made["base_url"]
    if entry.problem is not None:
        made["problem"] = entry.problem
    return made


def _source(origin: Origin) -> dict[str, Any]:
    project = {"project": str(origin.project)} if origin.project is not None else {}
    return {"tier": origin.tier, **project, "file": str(origin.file)}


def _listed(uri: str, title: str, text: str) -> dict[str, Any]:
    described = {"description": text} if text else {}
    return {"uri": uri, "name": uri.removeprefix(uris.SCHEME), "title": title, **described, "mimeType": JSON}
