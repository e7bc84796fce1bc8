# SPDX-License-Identifier: BSD-3-Clause
"""Cases on a grid: what tells them apart, what runs them, and what keeps their results."""
