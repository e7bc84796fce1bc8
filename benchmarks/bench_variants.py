# SPDX-License-Identifier: BSD-3-Clause
"""How fast are the linear-time families? `attnscale bench --variants` compares all of them against n."""

from _command import run

run("efficient", "linear_causal", "one_head", "kattention")
