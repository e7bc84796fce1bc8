# SPDX-License-Identifier: BSD-3-Clause
"""Attention on a GPU, by kernels in Triton: one pass for output and statistics, and its backward pass."""
