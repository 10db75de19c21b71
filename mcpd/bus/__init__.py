# SPDX-License-Identifier: LGPL-2.1-or-later
"""D-Bus: connection, dispatcher, callers, polkit, one module per interface, and the client."""
