# SPDX-License-Identifier: BSD-3-Clause
"""One net of calls for everything that computes attention: cases, backends, and what both must agree on."""
