# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing servers: plan → fetch → build → verify → activate, as jobs."""

from mcpd.install.installer import Installer
from mcpd.install.job import PROGRESS_UNKNOWN, Job, JobEvent, JobKind, Jobs, JobState, Need
from mcpd.install.lockfile import LOCK_FILE, read_lock
from mcpd.install.options import InstallOptions
from mcpd.install.updates import is_pinned, is_update

__all__ = [
    "LOCK_FILE",
    "PROGRESS_UNKNOWN",
    "InstallOptions",
    "Installer",
    "Job",
    "JobEvent",
    "JobKind",
    "JobState",
    "Jobs",
    "Need",
    "is_pinned",
    "is_update",
    "read_lock",
]
