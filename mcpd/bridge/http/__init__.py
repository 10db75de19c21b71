# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP: connections, requests, who is let in, and how replies are written."""
