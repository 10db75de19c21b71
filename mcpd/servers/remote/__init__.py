# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-remote``: a server that runs elsewhere, as a stdio program (design §8; ``docs/remote.md``)."""
