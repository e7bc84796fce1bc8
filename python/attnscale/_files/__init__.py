# SPDX-License-Identifier: BSD-3-Clause
"""Files that are read: heads, safetensors, GGUF, and those of a clone."""
