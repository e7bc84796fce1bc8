# SPDX-License-Identifier: BSD-3-Clause
"""Data that models are trained and tested on: texts, tags, sampled tasks, graphs."""
