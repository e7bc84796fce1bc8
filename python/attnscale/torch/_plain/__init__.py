# SPDX-License-Identifier: BSD-3-Clause
"""Attention in plain operations of PyTorch, on any device: ``backend="torch"``."""
