# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles as files: what may stand in them, and what is wrong with them."""
