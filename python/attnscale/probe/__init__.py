# SPDX-License-Identifier: BSD-3-Clause
"""Probe of an engine: a checkpoint whose log-probabilities tell what multiplied the score."""

from ._ask import ask
from ._measure import Measured
from ._reading import CheckpointReading, ProbeReading, read
from ._verdict import Row
from ._write import write

__all__ = ["CheckpointReading", "Measured", "ProbeReading", "Row", "ask", "read", "write"]
