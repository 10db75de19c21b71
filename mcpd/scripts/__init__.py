# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers made of scripts, and the mcps map with its content store."""
