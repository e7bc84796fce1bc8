# SPDX-License-Identifier: BSD-3-Clause
"""Checks of arguments, hints, seeds, provenance, and results as tables: no attention yet."""
