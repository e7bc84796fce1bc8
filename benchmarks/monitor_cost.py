# SPDX-License-Identifier: BSD-3-Clause
r"""Cost of attnscale.torch.Monitor: time of a recorded training step over that of a plain step.

python benchmarks/monitor_cost.py
"""

from __future__ import annotations

import time
from statistics import median

import attnscale as at
import torch
from attnscale._base.text import to_text
from transformers import GPT2Config, GPT2LMHeadModel

#: Layers, heads, width, tokens of a text, texts of a batch, rounds.
_CASES = ((2, 2, 32, 64, 4, 200), (4, 4, 128, 128, 8, 60), (6, 8, 256, 256, 4, 30), (4, 8, 512, 512, 2, 15))


def main() -> None:
    """Measure all cases on one thread, and print the table."""
    torch.set_num_threads(1)
    at.set_num_threads(1)
    rows = []
    for layers, heads, width, n, texts, rounds in _CASES:
        ratio = _ratio(layers, heads, width, n, texts, rounds)
        rows.append([f"{layers} x {heads} x {width}", f"{texts} x {n}", f"{ratio:.3f}", f"{ratio - 1:.2f}"])
    print(to_text(["layers x heads x width", "tokens", "recorded / plain", "% at every=100"], rows))


def _ratio(layers: int, heads: int, width: int, n: int, texts: int, rounds: int) -> float:
    """Time of a recorded step over that of the plain steps around it; median over the rounds."""
    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": n, "vocab_size": 512}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 512, (texts, n))
    monitor = at.torch.Monitor(model, every=2)

    def step(number: int) -> float:
        start = time.perf_counter()
        with monitor.step(number):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    for number in range(4):  # warm-up
        step(number)
    turns = [(step(1), step(0), step(1)) for _ in range(rounds)]
    return median(2 * recorded / (before + after) for before, recorded, after in turns)


if __name__ == "__main__":
    main()
