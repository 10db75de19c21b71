# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configurations of MCP clients: signed releases, and the files of clients that they are deployed into."""
