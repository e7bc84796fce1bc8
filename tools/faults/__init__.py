# SPDX-License-Identifier: BSD-3-Clause
"""Faults of machines: killed processes, full disks and stores that two processes begin at once."""
