# SPDX-License-Identifier: BSD-3-Clause
"""The frame of experiments that train: what an experiment declares, its units, training and results."""
