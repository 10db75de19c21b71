# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-remote``: makes a remote server available as a stdio program (``docs/remote.md``)."""
