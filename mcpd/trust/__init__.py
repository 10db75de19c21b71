# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trusted keys, and the creation of signatures."""
