# SPDX-License-Identifier: LGPL-2.1-or-later
"""The modern era: revision 2026-07-28, in which there is no handshake and every request stands for itself."""

from mcpd.bridge.modern.serve import Modern

__all__ = ["Modern"]
