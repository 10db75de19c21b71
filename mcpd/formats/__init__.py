# SPDX-License-Identifier: LGPL-2.1-or-later
"""Formats of other tools that describe servers, and their conversion from and to entries. Nothing here does IO."""
