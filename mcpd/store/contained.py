# SPDX-License-Identifier: LGPL-2.1-or-later
"""Putting leftovers in order without letting one of them stop the rest."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)


@contextmanager
def contained(path: Path) -> Iterator[None]:
    """Log a fault while *path*, which a killed process left, is put in order: it must not keep mcpd from starting."""
    try:
        yield
    except (McpdError, OSError) as error:
        _log.warning("%s: could not be put in order, and stays: %s", path, error)
    except Exception:  # noqa: BLE001 - one leftover must not keep mcpd from starting
        _log.exception("%s: could not be put in order, and stays", path)
