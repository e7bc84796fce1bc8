# SPDX-License-Identifier: BSD-3-Clause
"""The fits of a calibration."""
