# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-exec``, the small program that builds the sandbox of one process tree, watches the tree and ends it."""
