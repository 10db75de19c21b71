# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measurements; ``make bench`` runs them all and writes ``bench/results.md``."""
