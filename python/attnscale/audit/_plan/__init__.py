# SPDX-License-Identifier: BSD-3-Clause
"""What multiplies a score in each layer of a model, as text and JSON, and where two models differ."""
