# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of ``mcpctl``, one module per group."""
