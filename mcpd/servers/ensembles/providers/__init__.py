# SPDX-License-Identifier: LGPL-2.1-or-later
"""Models, by the APIs of their providers."""
