# SPDX-License-Identifier: BSD-3-Clause
"""Readers of files: heads, safetensors, GGUF."""
