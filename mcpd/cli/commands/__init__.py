# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of ``mcpctl``, one module per group; the parser names them and ``main`` imports the chosen one."""
