# SPDX-License-Identifier: BSD-3-Clause
"""The models that studies train or read, and the attention of these models."""
