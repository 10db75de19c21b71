# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m mcpd.servers.ensembles``: the program ``llm-orc``."""

import sys

from mcpd.servers.ensembles.server import main

sys.exit(main())
