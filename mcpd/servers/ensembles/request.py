# SPDX-License-Identifier: LGPL-2.1-or-later
"""The request that a run belongs to: models and tools are the same for all, but its client and its way are its own."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.ensembles.engine.types import Completion
    from mcpd.servers.ensembles.providers.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """What goes with a request."""

    sampling: Sampling | None = None
    """Asks the client's model; None if it has said that it has none."""
    hops: int = 0
    """How many servers it came through."""


_current: ContextVar[Request] = ContextVar("request", default=Request())  # noqa: B039 -- it is frozen


@contextmanager
def during(request: Request) -> Iterator[None]:
    """What is called, and the tasks that are begun, belong to *request*."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)


def hops() -> int:
    """How many servers the current request came through."""
    return _current.get().hops


class ClientsModel:
    """Asks the model of whichever client the current request is from."""

    async def sample(self, system: str | None, text: str, max_tokens: int, temperature: float | None) -> Completion:
        """The answer. Raises :class:`~mcpd.errors.NotSupported` if the client offers no model."""
        sampling = _current.get().sampling
        if sampling is None:
            raise NotSupported(
                "the client lends no model (it has not the capability sampling, or speaks a revision without it); give"
                " the profile another provider than mcp-sampling"
            )
        return await sampling.sample(system, text, max_tokens, temperature)
