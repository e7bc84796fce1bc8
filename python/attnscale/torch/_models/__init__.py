# SPDX-License-Identifier: BSD-3-Clause
"""Attention inside models: watching, recording, and monitoring during training."""
