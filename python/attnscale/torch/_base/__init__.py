# SPDX-License-Identifier: BSD-3-Clause
"""Calls on tensors: arguments, autograd, devices, learned parameters."""
