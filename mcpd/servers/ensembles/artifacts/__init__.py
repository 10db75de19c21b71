# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recorded runs, and their analysis."""
