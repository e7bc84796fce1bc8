# SPDX-License-Identifier: BSD-3-Clause
"""Measurement of a loaded model: what its code multiplies the score by."""
