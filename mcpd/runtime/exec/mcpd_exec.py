# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file that is started as ``mcpd-exec``: ``python3 -IS mcpd_exec.py [USER]``.

The program is in modules because only modules are kept compiled; reading it from source would double its start-up time.
"""

import sys

# Last, so that nothing installed next to mcpd can replace the standard library.
sys.path.append(__file__.removesuffix("/mcpd/runtime/exec/mcpd_exec.py"))

from mcpd.runtime.exec.supervisor import main

main()
