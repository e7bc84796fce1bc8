# SPDX-License-Identifier: BSD-3-Clause
"""What a report of heads is made of: the measurements, the words, the page."""
