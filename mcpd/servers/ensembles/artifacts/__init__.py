# SPDX-License-Identifier: LGPL-2.1-or-later
"""What runs leave behind, and what can be told from it."""
