# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes to ensembles that keep what people wrote around them."""
