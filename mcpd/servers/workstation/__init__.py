# SPDX-License-Identifier: LGPL-2.1-or-later
"""Filesystem, git and CI tools within configured directories."""
