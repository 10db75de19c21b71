# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-scripts``: a Python file, a shell script or an entry of the mcps map as an MCP server (``docs/scripts.md``)."""
