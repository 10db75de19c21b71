# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transforms: Python functions, identified by their content id, that generate tools, resources and prompts.

They run like calls, but must not write anything or use the network, and only for seconds. A failure is reported, and
does not affect the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from mcpd.errors import McpdError
from mcpd.scripts import contents
from mcpd.scripts.inspection import MAX_SCRIPT
from mcpd.servers.scripts.calls import PythonJob
from mcpd.servers.scripts.discover import python

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.scripts.calls import Limits, Outcome, ShellJob
    from mcpd.servers.scripts.definition import Definition

Kind: TypeAlias = Literal["tools", "resources", "prompts"]

SECONDS: Final = 5.0
"""Time limit of a transform in seconds."""
MOST_ITEMS: Final = 10_000
"""Maximum number of items from one transform."""
MOST_OFFERED: Final = 1000
"""Maximum number of tools, resources or prompts of one server."""


class Runs(Protocol):
    """Runs functions: :class:`~mcpd.servers.scripts.calls.Calls`."""

    async def call(
        self,
        job: PythonJob | ShellJob,
        limits: Limits | None = None,
        on_progress: Callable[[float, float | None, str], None] | None = None,
    ) -> Outcome:
        """Run *job* and return its outcome."""

    async def close(self) -> None:
        """End everything that runs."""


def content_of(definition: Definition, kind: Kind) -> str:
    """Return the content id of the transform for *kind*; empty if there is none."""
    entry = definition.entry
    return {
        "tools": entry.tools_transform_cid,
        "resources": entry.resources_transform_cid,
        "prompts": entry.prompts_transform_cid,
    }[kind]


async def generated(definition: Definition, runs: Runs, kind: Kind) -> tuple[list[Any], list[str]]:
    """Return the unchecked results of the transform for *kind*, and its problems."""
    content = content_of(definition, kind)
    if not content:
        return [], []
    function = f"generate_{kind}"
    origin = f"{kind}_transform_cid {content[:100]}"
    try:
        data = await asyncio.to_thread(contents.read, content, definition.contents, MAX_SCRIPT)
        source = python.decode(data, origin)
    except McpdError as error:
        return [], [f"{kind}_transform_cid: {error.message}"]
    outcome = await runs.call(
        PythonJob(
            function=function,
            arguments={},
            source=source,
            path=origin,
            positional=(definition.id, {**definition.context(), "source": definition.source}),
            read_only=True,
        ),
        replace(definition.limits(), seconds=SECONDS),
    )
    if outcome.error:
        return [], [f"{origin}: {function} failed: {outcome.error}"]
    if not isinstance(outcome.value, list):
        return [], [f"{origin}: {function} has to return a list of objects, not {_kind(outcome.value)}"]
    if len(outcome.value) > MOST_ITEMS:
        return [], [f"{origin}: {function} returned {len(outcome.value)} {kind}, more than {MOST_ITEMS}"]
    return outcome.value, []


def left_out(count: int, kind: Kind) -> str:
    """Return the problem that *count* of a *kind* exceed :data:`MOST_OFFERED`."""
    return f"{count} {kind} are left out: a server has {MOST_OFFERED} of them at most"


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
