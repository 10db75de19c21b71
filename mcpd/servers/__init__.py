# SPDX-License-Identifier: LGPL-2.1-or-later
"""The programs that come with mcpd and run confined like any server."""
