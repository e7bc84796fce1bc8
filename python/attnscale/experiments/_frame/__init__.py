# SPDX-License-Identifier: BSD-3-Clause
"""How experiments that train are run: what one declares, its units, their training, what it returns."""
