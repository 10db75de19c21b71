# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parsers of diagnostics, one for each format."""
