# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd, the MCP service of a Linux system."""
