# SPDX-License-Identifier: BSD-3-Clause
"""Results as tables: text, HTML, pandas and xarray."""
