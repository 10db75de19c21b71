# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m mcpd.servers.remote``: the command with which mcpd starts it."""

import sys

from mcpd.servers.remote.server import main

sys.exit(main())
