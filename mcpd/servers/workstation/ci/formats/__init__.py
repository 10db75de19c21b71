# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways in which programs say what is wrong, each with a reader of its own."""
