# SPDX-License-Identifier: BSD-3-Clause
"""The scale that keeps the entropy of given heads, and the laws that come closest to it."""
