# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ends what the tests of script servers start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.unit.scripts.facility_parts import MADE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# How long an example takes says more of what else the machine does than of what is tested.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
async def facilities_are_closed() -> AsyncIterator[None]:
    yield
    while MADE:
        await MADE.pop().close()
