# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles of agents: models, scripts, other ensembles and tools of MCP servers in one graph."""
