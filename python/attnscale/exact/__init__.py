# SPDX-License-Identifier: BSD-3-Clause
"""Functions of exact attention, a file for each."""
