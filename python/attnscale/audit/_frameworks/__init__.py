# SPDX-License-Identifier: BSD-3-Clause
"""What frameworks are on record to compute otherwise than a model's config says."""
