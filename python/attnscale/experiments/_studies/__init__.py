# SPDX-License-Identifier: BSD-3-Clause
"""The experiments that train, a module each: :func:`attnscale.experiments.names` lists what is here."""
