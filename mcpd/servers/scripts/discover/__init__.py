# SPDX-License-Identifier: LGPL-2.1-or-later
"""Discovery of what a script offers, by reading it: nothing of it is imported or run."""
