# SPDX-License-Identifier: BSD-3-Clause
"""Attention inside models: what they compute is seen, recorded, and monitored while they are trained."""
