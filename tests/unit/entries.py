# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of registries and indexes."""

from __future__ import annotations

from typing import Any


def entry(server_id: str = "a", **more: Any) -> dict[str, Any]:
    """One that has all that the format requires, with *more* in it."""
    return {
        "id": server_id,
        "name": "A",
        "summary": "s",
        "version": "1",
        "transports": [{"type": "stdio", "command": "x"}],
        "source": {"type": "git", "url": "https://example.com/a.git"},
        **more,
    }
