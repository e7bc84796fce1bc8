# SPDX-License-Identifier: BSD-3-Clause
"""What models are trained and tested on: texts, tags, sampled tasks, graphs."""
