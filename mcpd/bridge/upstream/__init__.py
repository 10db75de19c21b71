# SPDX-License-Identifier: LGPL-2.1-or-later
"""The side of the servers: where they come from, their processes, and who uses which."""
