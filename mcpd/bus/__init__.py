# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus service: connection, dispatcher, callers, polkit, one module per interface, and the client."""
