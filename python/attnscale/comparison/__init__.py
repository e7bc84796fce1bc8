# SPDX-License-Identifier: BSD-3-Clause
"""Two runs of attention compared: the first layer that differs, and why."""
