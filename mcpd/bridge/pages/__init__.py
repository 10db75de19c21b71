# SPDX-License-Identifier: LGPL-2.1-or-later
"""What people see in a browser: the list of servers, a page for each, and errors (V-24, V-25, V-86).

Imported when the first page is asked for.
"""
