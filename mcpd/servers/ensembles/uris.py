# SPDX-License-Identifier: LGPL-2.1-or-later
"""The URIs of resources, all of the scheme ``llm-orc``."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

SCHEME: Final = "llm-orc://"
ENSEMBLES: Final = f"{SCHEME}ensembles"
PROFILES: Final = f"{SCHEME}profiles"
ENSEMBLE: Final = "ensemble"
ARTIFACTS: Final = "artifacts"
ARTIFACT: Final = "artifact"
METRICS: Final = "metrics"
KINDS: Final = (ENSEMBLE, ARTIFACTS, ARTIFACT, METRICS)
"""The first part of the URI of a named resource."""


def uri(kind: str, name: str) -> str:
    """Return the URI of *name*; *kind* is one of :data:`KINDS`."""
    return f"{SCHEME}{kind}/{quote(name, safe='')}"


def plain_uri(kind: str, name: str) -> str:
    """Return the same URI, with the slashes of *name* not escaped."""
    return f"{SCHEME}{kind}/{quote(name)}"


def artifact_uri(artifact: str) -> str:
    """Return the URI of the artifact with the id *artifact*."""
    return plain_uri(ARTIFACT, artifact)


def parsed(text: str) -> tuple[str, str] | None:
    """Return the kind and name in the URI *text*, or None if it is not the URI of a named resource."""
    kind, slash, name = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not slash or kind not in KINDS or not name:
        return None
    return kind, unquote(name, errors="replace")
