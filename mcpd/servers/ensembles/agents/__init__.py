# SPDX-License-Identifier: LGPL-2.1-or-later
"""What agents run besides models: scripts, and tools of installed servers."""
