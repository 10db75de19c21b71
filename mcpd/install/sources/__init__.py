# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package sources, one module per type."""
