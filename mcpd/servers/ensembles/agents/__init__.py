# SPDX-License-Identifier: LGPL-2.1-or-later
"""Agents that run scripts, or call tools of installed servers."""
