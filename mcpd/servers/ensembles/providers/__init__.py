# SPDX-License-Identifier: LGPL-2.1-or-later
"""Models, behind whatever serves them."""
