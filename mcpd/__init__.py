# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd, the MCP service of a Linux system."""

__version__ = "0.1.0"
"""The version of the package; the build takes it from here."""
