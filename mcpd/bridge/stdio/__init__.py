# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers over ``stdio.sock``: what stdio is to a client, with the bridge between."""
