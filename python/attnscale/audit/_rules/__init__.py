# SPDX-License-Identifier: BSD-3-Clause
"""The families of models as a table, and the small rules in its cells."""
