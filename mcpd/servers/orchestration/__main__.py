# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m mcpd.servers.orchestration``: the program ``mcp-orchestration``."""

import sys

from mcpd.servers.orchestration.server import main

sys.exit(main())
