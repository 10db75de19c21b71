# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signed configurations for MCP clients, made from the installed servers."""
