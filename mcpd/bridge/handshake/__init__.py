# SPDX-License-Identifier: LGPL-2.1-or-later
"""The handshake era: revisions 2024-11-05 to 2025-11-25, with ``initialize`` and sessions."""
