# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is taken down of calls: metrics, the audit trail, traces, and how many there may be."""
