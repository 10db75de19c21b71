# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where ensembles and profiles are: projects, the user's directory, and what the package brings."""
