# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from tests.children import no_child_stays  # noqa: F401 -- for every module here
