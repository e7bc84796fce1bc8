# SPDX-License-Identifier: BSD-3-Clause
"""The experiments that train, one module each: :func:`attnscale.experiments.names` lists them."""
