# SPDX-License-Identifier: BSD-3-Clause
"""A model's config: how it is handed over, its keys with their defaults, and keys that nobody knows."""
