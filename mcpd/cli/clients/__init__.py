# SPDX-License-Identifier: LGPL-2.1-or-later
"""The configuration files of MCP clients: found, edited so that what is not ours stays, and restored."""
