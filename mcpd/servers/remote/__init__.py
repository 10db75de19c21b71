# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-remote``: a server that runs elsewhere, as a stdio program (``docs/remote.md``)."""
