# SPDX-License-Identifier: BSD-3-Clause
"""Calls that every backend of attention must answer alike: cases, backends, and comparisons."""
