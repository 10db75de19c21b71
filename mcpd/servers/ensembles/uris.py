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
"""What a URI that names something begins with."""


def uri(kind: str, name: str) -> str:
    """The URI of *name*, one of :data:`KINDS`."""
    return f"{SCHEME}{kind}/{quote(name, safe='')}"


def plain_uri(kind: str, name: str) -> str:
    """The same in the form that has the slashes of *name* in it."""
    return f"{SCHEME}{kind}/{quote(name)}"


def artifact_uri(artifact: str) -> str:
    """The URI of the artifact with the id *artifact*."""
    return plain_uri(ARTIFACT, artifact)


def parsed(text: str) -> tuple[str, str] | None:
    """What *text* names: one of :data:`KINDS`, and the name. None if it is no such URI."""
    kind, slash, name = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not slash or kind not in KINDS or not name:
        return None
    return kind, unquote(name, errors="replace")
