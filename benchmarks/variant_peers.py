# SPDX-License-Identifier: BSD-3-Clause
r"""Speed of the variants beside other packages that compute the same on a CPU.

    pip install . "torch==2.13.0"
    pip install --no-deps performer-pytorch local-attention linformer linear-attention-transformer einops \
        axial-positional-embedding hyper-connections product-key-memory colt5-attention
    python benchmarks/variant_peers.py --n 4096 16384

Packages that are not installed are named and left out. Prints the difference of the results, and the
package's time over ours, measured in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
from attnscale_bench._peers import limit_threads, load_torch
from attnscale_bench._timing import interleave

Array = Any
Call = Callable[[], Any]


class Peer(NamedTuple):
    """A peer package; `prepare(q, k, v)` returns our call and its own, equal to a relative `tolerance`."""

    package: str
    what: str
    prepare: Callable[[Array, Array, Array], tuple[Call, Call]]
    tolerance: float = 2e-5


def load(name: str) -> Any:
    """Import a module of a package, without its warnings and output."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def tensors(*arrays: Array) -> list[Any]:
    """The arrays as tensors with a batch axis, as the packages need them."""
    torch = load("torch")
    return [torch.from_numpy(x)[None] for x in arrays]


def performer(q: Array, k: Array, v: Array, causal: bool) -> tuple[Call, Call]:
    """FAVOR+ with 256 features and one projection, without the package's 1e-4 added to every feature.

    For standard normal rows of 64 channels most features are smaller than 1e-4.
    """
    package = load("performer_pytorch.performer_pytorch")
    weights = package.gaussian_orthogonal_random_matrix(256, q.shape[-1])
    projection = weights.numpy()
    sums = partial(package.causal_linear_attention_noncuda, eps=0.0) if causal else package.linear_attention
    tq, tk, tv = tensors(q, k, v)

    def theirs() -> Any:
        features = (
            package.softmax_kernel(x, projection_matrix=weights, is_query=x is tq, eps=0.0) for x in (tq, tk)
        )
        return sums(*features, tv)

    return (
        lambda: at.variants.performer_attention(q, k, v, projection=projection, is_causal=causal),
        theirs,
    )


def performer_efficient(q: Array, k: Array, v: Array) -> tuple[Call, Call]:
    """performer-pytorch without a projection is efficient attention."""
    package = load("performer_pytorch.performer_pytorch")
    layer = package.FastAttention(q.shape[-1], no_projection=True)
    given = tensors(q, k, v)
    return lambda: at.variants.efficient_attention(q, k, v), lambda: layer(*given)


def performer_linear(q: Array, k: Array, v: Array, causal: bool) -> tuple[Call, Call]:
    """performer-pytorch's sums with the features elu(x) + 1 of linear attention."""
    package = load("performer_pytorch.performer_pytorch")
    elu = load("torch").nn.functional.elu
    sums = package.causal_linear_attention_noncuda if causal else package.linear_attention
    tq, tk, tv = tensors(q, k, v)
    return (
        lambda: at.variants.linear_attention(q, k, v, is_causal=causal),
        lambda: sums(elu(tq) + 1, elu(tk) + 1, tv),
    )


def transformer_efficient(q: Array, k: Array, v: Array) -> tuple[Call, Call]:
    """linear-attention-transformer divides queries by sqrt(head_dim) after their softmax."""
    package = load("linear_attention_transformer.linear_attention_transformer")
    given = tensors(q, k, v)
    factor = math.sqrt(q.shape[-1])
    return (
        lambda: at.variants.efficient_attention(q, k, v),
        lambda: package.linear_attn(*given) * factor,
    )


def local(q: Array, k: Array, v: Array, causal: bool) -> tuple[Call, Call]:
    """A local window of 128 keys on each side of the query, or before it if causal."""
    package = load("local_attention")
    radius = 128
    layer = package.LocalAttention(
        window_size=radius,
        causal=causal,
        look_backward=1,
        look_forward=0 if causal else 1,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )
    given = tensors(q, k, v)
    return (
        lambda: at.variants.local_global_attention(q, k, v, radius=radius, is_causal=causal),
        lambda: layer(*given),
    )


def linformer(q: Array, k: Array, v: Array) -> tuple[Call, Call]:
    """linformer with 256 rows, without the layer's own linear maps, so that its values are its keys."""
    package, torch = load("linformer.linformer"), load("torch")
    heads, n, dim = q.shape
    layer = package.LinformerSelfAttention(heads * dim, n, k=256, heads=heads)
    for name in ("to_q", "to_k", "to_v", "to_out"):
        setattr(layer, name, torch.nn.Identity())
    query, key = (x.transpose(1, 2).reshape(1, n, -1).contiguous() for x in tensors(q, k))
    e, f = (np.ascontiguousarray(p.detach().numpy().T) for p in (layer.proj_k, layer.proj_v))

    def theirs() -> Any:
        return layer(query, context=key).reshape(1, n, heads, dim).transpose(1, 2)

    return lambda: at.variants.linformer_attention(q, k, k, e, f), theirs


def _both(package: str, what: str, prepare: Any, tolerance: float = 2e-5) -> list[Peer]:
    """The peers of one package, not causal and causal."""
    return [
        Peer(package, what + ending, lambda *arrays, c=causal: prepare(*arrays, c), tolerance)
        for ending, causal in (("", False), (", causal", True))
    ]


PEERS = [
    Peer("performer-pytorch", "efficient", performer_efficient),
    Peer("linear-attention-transformer", "efficient", transformer_efficient),
    *_both("performer-pytorch", "linear, elu + 1", performer_linear),
    *_both("performer-pytorch", "performer, 256 features", performer, 2e-4),
    *_both("local-attention", "window of 128", local),
    Peer("linformer", "linformer, 256 rows", linformer),
]


def difference(ours: Any, theirs: Any) -> float:
    """Largest difference over the largest value."""
    expected = theirs.detach().numpy().reshape(ours.shape)
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


def measure(peer: Peer, n: int, shape: tuple[int, int], how: argparse.Namespace) -> str:
    """Time a peer and compare results: one line of the table."""
    heads, head_dim = shape
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, heads, n, head_dim), np.float32)
    torch = load_torch()
    assert torch is not None
    with torch.module.inference_mode(), limit_threads(how.threads, torch):
        ours, theirs = peer.prepare(q, k, v)
        start = time.process_time()
        apart = difference(ours(), theirs())
        # A call of minutes is timed only once.
        rounds = 1 if time.process_time() - start > how.slow else how.repeat
        samples = interleave({"ours": ours, "theirs": theirs}, rounds, min_seconds=0.05)
    if how.cpu_time:
        samples = samples.on_cpu_time()
    ratio = samples.ratio("theirs", "ours")
    times = " | ".join(f"{1e3 * samples.seconds(name):.1f}" for name in ("ours", "theirs"))
    of = f"{peer.package} {version(peer.package)}"
    return f"| {of} | {peer.what} | {n} | {times} | {ratio.value:.1f}x +- {ratio.spread:.1f} | {apart:.1e} |"


def main() -> None:
    """Measure every peer that is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="a part of the name of a package or variant")
    parser.add_argument("--threads", type=int, default=at.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="for a busy machine, with one thread")
    parser.add_argument("--slow", type=float, default=5.0, help="seconds from which one call is enough")
    given = parser.parse_args()
    shape = given.heads, given.head_dim
    print("| package | variant | n | ours, ms | theirs, ms | ratio | apart |\n|---|---|---|---|---|---|---|")
    for peer in PEERS:
        if given.only not in f"{peer.package} {peer.what}":
            continue
        for n in given.n:
            try:
                print(measure(peer, n, shape, given), flush=True)
            except (ImportError, RuntimeError) as error:
                print(f"| {peer.package} | {peer.what} | {n} | | | {error} | |", flush=True)


if __name__ == "__main__":
    main()
