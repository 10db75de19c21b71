# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose signatures are trusted, and making some."""
