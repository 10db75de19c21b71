# SPDX-License-Identifier: LGPL-2.1-or-later
"""What people see in a browser: the list of servers, a page for each, and errors.

Imported when the first page is asked for.
"""
