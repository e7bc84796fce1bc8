# SPDX-License-Identifier: BSD-3-Clause
"""Cases on a grid: their identity, the runners that compute them, and the store of their results."""
