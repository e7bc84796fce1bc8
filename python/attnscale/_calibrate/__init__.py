# SPDX-License-Identifier: BSD-3-Clause
"""What a calibration is made of: its fits, and the words that say what they found."""
