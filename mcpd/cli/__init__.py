# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl``, the command line of mcpd.

The parser names the handler of each command, a function in :mod:`mcpd.cli.commands`. Its module is imported only when
the command is used, so that ``mcpctl run`` and ``mcpctl list`` start fast.
"""
