# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd-bridge: stdio MCP servers over Streamable HTTP. A process of its own, without secrets or state."""
