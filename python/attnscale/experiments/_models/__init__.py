# SPDX-License-Identifier: BSD-3-Clause
"""The models that experiments train or read, and how these attend."""
