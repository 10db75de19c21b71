# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-exec``, the small program between mcpd and one process tree."""
