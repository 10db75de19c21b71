# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m mcpd.servers.workstation``: the program ``mcp-workstation``."""

import sys

from mcpd.servers.workstation.server import main

sys.exit(main())
