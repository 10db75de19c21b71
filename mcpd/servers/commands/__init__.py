# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that bundled servers run: without a shell, held to directories by the kernel, ended with all their own."""
