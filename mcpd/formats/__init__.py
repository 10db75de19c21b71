# SPDX-License-Identifier: LGPL-2.1-or-later
"""The formats in which servers are described elsewhere, and the way from and to an entry. Nothing here does IO."""
