# SPDX-License-Identifier: BSD-3-Clause
"""A differential fuzzer: random calls of every public numeric function against extended precision."""
