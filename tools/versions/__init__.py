# SPDX-License-Identifier: BSD-3-Clause
"""The tests at both ends: with the newest packages of the index, and with the oldest on record."""
