# SPDX-License-Identifier: BSD-3-Clause
"""Peers to compare with: PyTorch's fused attention, and the formulas written out in PyTorch and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from attnscale import get_num_threads, set_num_threads
from numpy.typing import NDArray

from ._timing import Action

__all__ = ["Torch", "limit_threads", "load_torch", "numpy_attention", "numpy_output_and_entropy"]

Array = NDArray[Any]


def numpy_attention(query: Array, key: Array, value: Array) -> Array:
    """softmax(query key^T / sqrt(head_dim)) value with the (heads, n, n) matrix in memory."""
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.asarray(weights @ value)


def numpy_output_and_entropy(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
    """Attention with the (heads, n, n) matrix in memory, and its entropy lse - sum p s."""
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    top = scores.max(-1, keepdims=True)
    lse = top + np.log(np.exp(scores - top).sum(-1, keepdims=True))
    weights = np.exp(scores - lse)
    return weights @ value, lse[..., 0] - (weights * scores).sum(-1)


class Torch:
    """PyTorch on NumPy arrays, without copies."""

    def __init__(self, module: Any) -> None:
        self.module = module

    @property
    def fused(self) -> Callable[..., Any]:
        """PyTorch's own attention; only tensors of four axes take its fast path."""
        function: Callable[..., Any] = self.module.nn.functional.scaled_dot_product_attention
        return function

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Action:
        """scaled_dot_product_attention with a batch axis in front."""
        return self.call(partial(self.fused, is_causal=is_causal), query, key, value)

    def step(self, attend: Callable[..., Any], tensors: Sequence[Any]) -> Action:
        """Forward and backward pass of a function of tensors; the gradient of the output is 1."""
        inputs = [tensor.requires_grad_() for tensor in tensors]
        ones = self.module.ones_like(inputs[-1])
        return lambda: self.module.autograd.grad(attend(*inputs), inputs, ones)

    def call(self, function: Callable[..., object], *arrays: Array) -> Action:
        """A function of tensors with a batch axis in front, without gradients."""
        tensors = self.tensors(*arrays)
        return self._without_gradients(lambda: function(*tensors))

    def tensors(self, *arrays: Array) -> list[Any]:
        """The arrays with a batch axis in front."""
        return [self._tensor(array)[None] for array in arrays]

    def _tensor(self, array: Array) -> Any:
        """The array as a tensor; NumPy and PyTorch exchange bfloat16 only as bits."""
        if array.dtype.name != "bfloat16":
            return self.module.from_numpy(array)
        return self.module.from_numpy(array.view(np.int16)).view(self.module.bfloat16)

    def output_and_entropy(self, query: Array, key: Array, value: Array) -> Action:
        """Output and entropy by hand, with scores, lse, weights and the sum in full."""
        q, k, v = (self.module.from_numpy(array) for array in (query, key, value))

        def call() -> object:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            lse = scores.logsumexp(-1)
            weights = (scores - lse[..., None]).exp()
            return weights @ v, lse - (weights * scores).sum(-1)

        return self._without_gradients(call)

    def attention_backward(self, query: Array, key: Array, value: Array, grad: Array) -> Action:
        """Only the backward pass of scaled_dot_product_attention, after one forward pass."""
        inputs, call = self._fused(query, key, value)
        output, wanted = call(), self.module.from_numpy(grad)[None]
        gradients = self.module.autograd.grad
        return lambda: gradients(output, inputs, wanted, retain_graph=True)

    def attention_step(self, query: Array, key: Array, value: Array, grad: Array) -> Action:
        """Forward and backward pass of scaled_dot_product_attention."""
        inputs, call = self._fused(query, key, value)
        wanted, gradients = self._tensor(grad)[None], self.module.autograd.grad
        return lambda: gradients(call(), inputs, wanted)

    def output_and_entropy_step(self, query: Array, key: Array, value: Array) -> Action:
        """Gradients of the sums of output and entropy by autograd, from the formulas in full."""
        q, k, v = (tensor.requires_grad_() for tensor in self.tensors(query, key, value))

        def call() -> object:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            weights = scores.softmax(-1)
            entropy = scores.logsumexp(-1) - (weights * scores).sum(-1)
            return self.module.autograd.grad((weights @ v).sum() + entropy.sum(), (q, k, v))

        return call

    def sparse_step(self, solve: Any, query: Array, key: Array, value: Array, grad: Array) -> Action:
        """Output and gradients with the matrix of scores through a function of the package entmax."""
        q, k, v = (self.module.from_numpy(array).requires_grad_() for array in (query, key, value))
        wanted, gradients = self.module.from_numpy(grad), self.module.autograd.grad
        return lambda: gradients(solve(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v, (q, k, v), wanted)

    def _fused(self, *arrays: Array) -> tuple[list[Any], Callable[[], Any]]:
        """Tensors that require gradients, and PyTorch's fused attention of them."""
        tensors = [tensor.requires_grad_() for tensor in self.tensors(*arrays)]
        return tensors, lambda: self.fused(*tensors)

    def article_attention(self, query: Array, key: Array, value: Array, *, efficient: bool) -> Action:
        """Dot-product or efficient attention as in article 003, with an axis of heads."""
        softmax = self.module.softmax
        q, k, v = (self.module.from_numpy(array) for array in (query, key, value))

        def call() -> object:
            if efficient:
                return softmax(q, -1) @ (softmax(k, -2).mT @ v)
            return softmax(q @ k.mT, -1) @ v

        return self._without_gradients(call)

    def cumulative_linear(self, query: Array, key: Array, value: Array) -> Action:
        """Causal linear attention by the cumulative sum of all k_i v_i^T, head by head."""
        elu = self.module.nn.functional.elu
        tensors = [self.module.from_numpy(array) for array in (query, key, value)]

        def call() -> object:
            return [head(*arrays) for arrays in zip(*tensors, strict=True)]

        def head(q: Any, k: Any, v: Any) -> object:
            q, k = elu(q) + 1, elu(k) + 1
            products = (k[:, :, None] * v[:, None, :]).cumsum(0)
            total = (q * k.cumsum(0)).sum(-1, keepdim=True)
            return (q[:, None, :] @ products)[:, 0] / total

        return self._without_gradients(call)

    def efficient_step(self, query: Array, key: Array, value: Array, grad: Array) -> Action:
        """Efficient attention in one line, and its gradients."""
        softmax = self.module.softmax
        return self._step(lambda q, k, v: softmax(q, -1) @ (softmax(k, -2).mT @ v), query, key, value, grad)

    def linear_step(self, query: Array, key: Array, value: Array, grad: Array) -> Action:
        """Linear attention as it is usually written, and its gradients."""
        elu = self.module.nn.functional.elu

        def output(q: Any, k: Any, v: Any) -> Any:
            q, k = elu(q) + 1, elu(k) + 1
            return q @ (k.mT @ v) / (q @ k.sum(-2)[..., None])

        return self._step(output, query, key, value, grad)

    def causal_linear_step(
        self, query: Array, key: Array, value: Array, grad: Array, block: int = 64
    ) -> Action:
        """Causal linear attention in blocks: sums of all blocks before, and a masked product within."""
        elu, torch = self.module.nn.functional.elu, self.module

        def output(q: Any, k: Any, v: Any) -> Any:
            q, k = elu(q) + 1, elu(k) + 1
            blocks = [x.unflatten(-2, (-1, block)) for x in (q, k, v)]
            sums = (blocks[1].mT @ blocks[2]).cumsum(-3)
            before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], 1)
            within = (blocks[0] @ blocks[1].mT).tril() @ blocks[2]
            return (blocks[0] @ before + within).flatten(-3, -2) / (q * k.cumsum(-2)).sum(-1, keepdim=True)

        return self._step(output, query, key, value, grad)

    def _step(self, output: Callable[..., Any], *arrays: Array) -> Action:
        """An action that computes an output, and gradients of its product with the last array."""
        *tensors, grad = (self.module.from_numpy(array) for array in arrays)
        inputs = [tensor.requires_grad_() for tensor in tensors]
        return lambda: self.module.autograd.grad(output(*inputs), inputs, grad)

    def _without_gradients(self, action: Action) -> Action:
        def call() -> object:
            with self.module.inference_mode():
                return action()

        return call


def load_torch() -> Torch | None:
    """PyTorch as a peer; None if it is not installed."""
    try:
        return Torch(import_module("torch"))
    except ImportError:
        return None


@contextmanager
def limit_threads(threads: int, torch: Torch | None) -> Iterator[None]:
    """Give all packages the same number of threads; for NumPy's BLAS this needs threadpoolctl."""
    with ExitStack() as stack:
        stack.callback(set_num_threads, get_num_threads())
        set_num_threads(threads)
        if find_spec("threadpoolctl") is not None:
            limits = import_module("threadpoolctl").threadpool_limits
            stack.enter_context(limits(threads, user_api="blas"))
        if torch is not None:
            stack.callback(torch.module.set_num_threads, torch.module.get_num_threads())
            torch.module.set_num_threads(threads)
        yield
