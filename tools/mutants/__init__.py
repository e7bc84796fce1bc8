# SPDX-License-Identifier: BSD-3-Clause
"""Faults planted into a copy of the repository, one after the other: which tests catch each?"""
