# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a calibration: its fits, and the words that say what they found."""
