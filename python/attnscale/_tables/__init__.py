# SPDX-License-Identifier: BSD-3-Clause
"""Results as tables: of text, of HTML, and as pandas and xarray have them."""
