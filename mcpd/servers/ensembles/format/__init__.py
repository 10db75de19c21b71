# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file format of ensembles, and its validation."""
