# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running servers: launchers, the sandbox, sessions."""
