# SPDX-License-Identifier: LGPL-2.1-or-later
"""The path of a call: mcpd-bridge beside other bridges, under one load client."""
