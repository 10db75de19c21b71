# SPDX-License-Identifier: LGPL-2.1-or-later
"""Manifest of an installed server."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from mcpd.model.base import Document, Text, as_map
from mcpd.model.entry import Entry

EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Runtime(Document):
    """Settings for running a server."""

    sharing: Literal["session", "caller", "all"] = "session"
    idle_timeout: Annotated[float, Field(gt=0, le=86400)] | None = None
    """Seconds without a call after which a bridge session ends."""
    call_timeout: Annotated[float, Field(gt=0, le=7200)] | None = None
    """Seconds that a call may take without a reply or a progress notification."""
    run_as: Literal["user", "system"] = "user"


class Manifest(Entry):
    """Content of ``manifest.json``."""

    config: Annotated[dict[str, JsonValue], BeforeValidator(as_map)] = Field(default_factory=dict)
    install_dir: Text = ""
    env: Annotated[dict[EnvironmentName, str], BeforeValidator(as_map)] = Field(default_factory=dict)
    runtime: Runtime = Field(default_factory=Runtime)
    stateful: bool | None = None
    """Set by other tools for servers that keep state between calls; mcpd uses ``runtime.sharing``."""
