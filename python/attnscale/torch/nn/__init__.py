# SPDX-License-Identifier: BSD-3-Clause
"""Modules of PyTorch over this package's attention."""

from ._multihead import MultiheadAttention

__all__ = ["MultiheadAttention"]
