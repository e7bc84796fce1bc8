# SPDX-License-Identifier: BSD-3-Clause
"""Probes of engines that are known to be right or wrong, and of engines that others install."""
