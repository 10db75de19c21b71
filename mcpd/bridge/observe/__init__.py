# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of calls (metrics, the audit trail, traces), and limits on their rate."""
