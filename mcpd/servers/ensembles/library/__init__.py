# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles and profiles in projects, in the user's directory and in the package."""
