# SPDX-License-Identifier: BSD-3-Clause
"""One attention call: its arrays, the visible keys of its rows, their scale, and the results of the core."""
