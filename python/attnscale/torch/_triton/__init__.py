# SPDX-License-Identifier: BSD-3-Clause
"""Attention of a GPU: one pass for output and statistics, and its backward pass, as kernels of Triton."""
