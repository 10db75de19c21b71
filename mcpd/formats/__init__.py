# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion between entries and the formats in which other tools describe servers. Nothing here does I/O."""
