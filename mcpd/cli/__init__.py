# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl``, the command line of mcpd.

Each command is a function in a module of its own, named by the parser and imported only when it is chosen, so
that ``mcpctl run`` and ``mcpctl list`` start fast.
"""
