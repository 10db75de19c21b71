# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times as registries write them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(text: str) -> datetime | None:
    """The time that *text* names in ISO 8601, in UTC, which is meant where no zone is; None if it is none."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
