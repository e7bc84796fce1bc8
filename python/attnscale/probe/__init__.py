# SPDX-License-Identifier: BSD-3-Clause
"""Probe of an engine: a checkpoint whose log-probabilities tell what multiplied the score."""

from ._write import write

__all__ = ["write"]
