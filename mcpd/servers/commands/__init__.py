# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands of bundled servers: without a shell, confined to directories by the kernel, ended with all descendants."""
