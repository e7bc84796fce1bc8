# SPDX-License-Identifier: BSD-3-Clause
"""Train a small causal transformer and extract the data of ``attnscale.datasets.causal_qk``.

Text: the Python standard library's own source (PSF licence), without tests and tables; the file
``statistics.py`` is held out, and its first 2048 tokens give the queries and keys. Everything is
made in the run: the byte-pair encoding, the weights, the activations. No network.

Run it in an environment with ``torch>=2.9`` and ``tokenizers``::

    python tools/evidence/train_causal.py --steps 400    # writes the file: 12 minutes of one core
    python tools/evidence/train_causal.py --steps 5 --output trial.npz --weights trial.pt
    python tools/evidence/train_causal.py --steps 150 --seed 1 --output other.npz --weights other.pt

The run is seeded and uses one thread: the same Python, PyTorch and processor give the same bytes. Elsewhere
rounding differs, and training leads to other weights: a model of the same loss, not the same numbers. So the
file names its Python, PyTorch and processor.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ["TOKENIZERS_PARALLELISM"] = "false"

HELD_OUT = "statistics.py"
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}
N_TOKENS = 2048
LENGTHS = ((512, 0.75), (2048, 1.0))  # length of a sequence, and the share of steps after which it ends
STEP_TOKENS = 4096
HEADS = (0, 1)  # in every layer, the two that share key head 0; chosen before any result
OUTPUT = Path(__file__).resolve().parents[2] / "python/attnscale/data/causal_qk.npz"


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, a small Llama."""

    vocabulary: int = 2048
    width: int = 192
    layers: int = 4
    heads: int = 6
    key_heads: int = 3
    head_dim: int = 32
    hidden: int = 512
    rotary_base: float = 10000.0


def sources() -> tuple[list[str], str]:
    """Source files of the standard library for training, in order of their names, and the held-out file."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    kept = [path for path in paths if not LEFT_OUT & set(path.parts) and "config" not in path.parts[0]]
    texts = [(root / path).read_text(encoding="utf-8") for path in kept if path.name != HELD_OUT]
    return texts, (root / HELD_OUT).read_text(encoding="utf-8")


def train_tokenizer(texts: list[str], size: int) -> tokenizers.Tokenizer:
    """Byte-pair encoding of these texts; every byte has a token, so nothing is unknown."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def rotate(x: Tensor, base: float) -> Tensor:
    """Rotary positions: channels c and c + d/2 turn by position / base^(2c/d)."""
    half = x.shape[-1] // 2
    rate = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rate)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Layer(nn.Module):
    """Grouped-query attention with scale 1 / sqrt(head_dim), then a gated linear unit."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, keys = shape.width, shape.key_heads * shape.head_dim
        self.query = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.key = nn.Linear(width, keys, bias=False)
        self.value = nn.Linear(width, keys, bias=False)
        self.output = nn.Linear(shape.heads * shape.head_dim, width, bias=False)
        self.gate = nn.Linear(width, shape.hidden, bias=False)
        self.up = nn.Linear(width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, width, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key after the rotation, and value: (batch, heads, n, head_dim)."""
        normed = F.rms_norm(x, x.shape[-1:])
        split = [
            linear(normed).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        ]
        base = self.shape.rotary_base
        return rotate(split[0], base), rotate(split[1], base), split[2]

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x)
        groups = self.shape.heads // self.shape.key_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        normed = F.rms_norm(x, x.shape[-1:])
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Decoder whose output layer is its embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        nn.init.normal_(self.embedding.weight, std=0.02)
        for layer in self.layers:  # a layer begins as the identity
            nn.init.zeros_(layer.output.weight)
            nn.init.zeros_(layer.down.weight)

    def embed(self, tokens: Tensor) -> Tensor:
        """The embedded tokens, which the first layer reads."""
        return F.rms_norm(self.embedding(tokens), self.embedding.weight.shape[-1:])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.rms_norm(x, x.shape[-1:]) @ self.embedding.weight.T

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of each next token, in nats."""
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def batch(corpus: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Sequences of ``length + 1`` tokens from random places."""
    starts = torch.randint(len(corpus) - length, (STEP_TOKENS // length,), generator=generator)
    return torch.stack([corpus[start : start + length + 1] for start in starts.tolist()])


def train(model: Model, corpus: Tensor, steps: int, seed: int) -> None:
    """Train by Muon (matrices) and AdamW (embedding); rates rise for 20 steps and fall to 0."""
    generator = torch.Generator().manual_seed(seed)
    matrices = [weight for name, weight in model.named_parameters() if name != "embedding.weight"]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0),
        torch.optim.AdamW([model.embedding.weight], lr=0.003, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    plan = [lambda step: min(1.0, (step + 1) / 20) * (1 - step / steps)] * 2
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        for optimizer, rate in zip(optimizers, plan, strict=True)
    ]
    for step in range(steps):
        length = next(length for length, end in LENGTHS if step < end * steps)
        loss = model.loss(batch(corpus, length, generator))
        loss.backward()
        for part in (*optimizers, *schedules):
            part.step()
        model.zero_grad()
        if step % 10 == 9:
            print(f"step {step + 1}: {loss.item():.3f} nat a token, {time.process_time():.0f} s", flush=True)


def capture(model: Model, tokens: Tensor, *, every: bool = False) -> tuple[np.ndarray, np.ndarray, float]:
    """Query and key after the rotation, and the loss; in float64.

    For ``HEADS`` the query is (layers, heads, n, d) and their shared key (layers, n, d). With `every`, both
    are (layers, heads, n, d), and shared keys are repeated.
    """
    model = model.double()
    query, key = [], []
    groups = model.shape.heads // model.shape.key_heads
    with torch.no_grad():
        loss = model.loss(tokens[None]).item()
        x = model.embed(tokens[None])
        for layer in model.layers:
            heads = layer.project(x)  # type: ignore[operator]
            query.append(heads[0][0] if every else heads[0][0, list(HEADS)])
            key.append(heads[1][0].repeat_interleave(groups, 0) if every else heads[1][0, 0])
            x = layer(x)
    return torch.stack(query).numpy(), torch.stack(key).numpy(), loss


def provenance(shape: Shape, steps: int, seed: int, loss: float, corpus: str, text: str) -> dict[str, Any]:
    """The provenance of the numbers, as stored beside them."""
    return {
        "model": f"causal transformer of {shape}, trained for this file on the Python standard library",
        "model_license": "BSD-3-Clause",
        "model_source": "tools/evidence/train_causal.py",
        "training_text": f"*.py of the standard library without {', '.join(sorted(LEFT_OUT))} and {HELD_OUT}",
        "training_text_sha256": hashlib.sha256(corpus.encode()).hexdigest(),
        "training": f"{steps} steps of {STEP_TOKENS} tokens, sequences of 512, then 2048; seed {seed}",
        "loss": f"{loss:.4f} nat a token on the text below",
        "text": f"{HELD_OUT} of the standard library, not seen in training, first {N_TOKENS} tokens",
        "text_license": "PSF-2.0",
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "tokenizers": str(tokenizers.__version__),
        "script": "tools/evidence/train_causal.py",
    }


def make(steps: int, seed: int, weights: Path | None) -> dict[str, np.ndarray]:
    """Arrays of the file by name."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    shape = Shape()
    texts, held_out = sources()
    tokenizer = train_tokenizer(texts, shape.vocabulary)
    ids = [encoded.ids for encoded in tokenizer.encode_batch(texts)]
    corpus = torch.tensor([token for text in ids for token in text])
    print(f"{len(texts)} files, {sum(map(len, texts))} characters, {len(corpus)} tokens", flush=True)
    model = Model(shape)
    train(model, corpus, steps, seed)
    encoded = tokenizer.encode(held_out)
    read = encoded.ids[:N_TOKENS]
    query, key, loss = capture(model, torch.tensor(read))
    text = tokenizer.decode(read)
    print(f"held out: {loss:.4f} nat a token, {loss * (N_TOKENS - 1) / len(text.encode()):.4f} a byte")
    if weights is not None:
        state = {"state": model.state_dict(), "bpe": tokenizer.to_str()}
        torch.save({"shape": vars(shape), "steps": steps, "seed": seed, **state}, weights)
    layers, heads = np.meshgrid(np.arange(shape.layers), HEADS, indexing="ij")
    return {
        "query": query.reshape(-1, N_TOKENS, shape.head_dim).astype(np.float16),
        "key": key.astype(np.float16),
        "layers": layers.ravel(),
        "heads": heads.ravel(),
        "token_ids": np.asarray(read),
        # Slices of the text: a token with only some bytes of a letter would decode to U+FFFD.
        "tokens": np.asarray([held_out[start:stop] for start, stop in encoded.offsets[:N_TOKENS]]),
        "provenance": np.asarray(
            json.dumps(provenance(shape, steps, seed, loss, "".join(texts), held_out), indent=1)
        ),
    }


def main() -> int:
    """Train and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="0 for the shipped file")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--weights", type=Path, help="keep the model and its tokenizer too")
    options = parser.parse_args()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **make(options.steps, options.seed, options.weights))  # type: ignore[arg-type]
    options.output.write_bytes(buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    print(f"{options.output.name}: {len(buffer.getvalue())} bytes, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
