# SPDX-License-Identifier: BSD-3-Clause
"""Questions to the attention of other packages, and the page of their answers."""
