# SPDX-License-Identifier: LGPL-2.1-or-later
"""The run of an ensemble."""
