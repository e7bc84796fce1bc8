# SPDX-License-Identifier: BSD-3-Clause
"""One attention call: its arrays, the keys its rows may see, their scale, and what the core makes of them."""
