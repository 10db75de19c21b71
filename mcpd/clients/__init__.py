# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configurations of MCP clients: signed releases, and their deployment into the clients' files."""
