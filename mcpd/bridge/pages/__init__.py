# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages for browsers: the list of servers, a page for each server, and errors.

Imported when the first page is asked for.
"""
