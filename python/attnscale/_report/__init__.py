# SPDX-License-Identifier: BSD-3-Clause
"""Parts of a report of heads: measurements, words, page."""
