# SPDX-License-Identifier: BSD-3-Clause
"""Bad arguments of experiments and arrays: the error says the rule and the value seen."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import montecarlo as mc

NAN = np.full((3, 4), np.nan)
ONES = np.ones((3, 4))
TOO_MANY = 2**53 + 1


def _read_only():
    x = np.zeros(3)
    x.flags.writeable = False
    return x


def _unaligned():
    return np.zeros(25, np.uint8)[1:].view(np.float64)


TYPE_ERRORS = {
    r"n must be an integer, got 1\.5": lambda: mc.entropy_vs_length([2, 1.5]),
    r"or a pair \(query, key\), got int": lambda: mc.entropy_vs_length(2, model=3),
    "query must be floating": lambda: mc.entropy_vs_length(2, model=(np.ones((3, 4), int), ONES)),
    "shape must be an integer or a sequence of them, got 'a'": lambda: mc.normal("a"),
    r"shape must be an integer or a sequence of them, got 1\.5": lambda: mc.normal(1.5),
    "dtype must be float64 or float32, got int64": lambda: mc.normal(3, dtype=np.int64),
    "dtype must be float64 or float32, got 'f9'": lambda: mc.normal(3, dtype="f9"),
    "shape must be given where out is not": lambda: mc.uniform(),
    "out must be a NumPy array, got list": lambda: mc.laplace(out=[1.0]),
    "out must be float64 or float32, got int32": lambda: mc.normal(out=np.zeros(3, np.int32)),
    "out must be float64 or float32, got >f8": lambda: mc.normal(out=np.zeros(3, ">f8")),
    "out must have the given dtype, float32, got float64": lambda: mc.normal(
        out=np.zeros(3), dtype=np.float32
    ),
    r"got an unexpected keyword argument 'sample_s'; did you mean 'samples'": lambda: mc.max_cosine(
        8, 4, sample_s=3
    ),
    "samples must be an integer, got 1.5": lambda: mc.max_cosine(8, 4, samples=1.5),
    r"progress must be a boolean or a function of \(done, total\), got 'yes'": lambda: mc.max_cosine(
        8, 4, progress="yes"
    ),
    "resume must be the result of an experiment, got int": lambda: mc.max_cosine(8, 4, resume=3),
    "normalizer must be a name or one of": lambda: mc.sparsity(8, normalizer=2.0),
    "rng must be None, an integer of at least 0.*got '7'": lambda: mc.normal(3, rng="7"),
    r"rng must be None, an integer of at least 0.*got 1\.5": lambda: mc.normal(3, rng=1.5),
    "rng must be None, an integer of at least 0.*got True": lambda: mc.normal(3, rng=True),
    "rng must be None, an integer of at least 0.*got <object": lambda: mc.normal(3, rng=object()),
}
VALUE_ERRORS = {
    "n must be at least 1, got 0": lambda: mc.entropy_vs_length(0),
    "n must have at least one value, got none": lambda: mc.entropy_vs_length([]),
    r"n must have distinct values, got \[2, 2\]": lambda: mc.entropy_vs_length([2, 2]),
    "head_dim must be at least 2, got 1": lambda: mc.entropy_vs_length(2, head_dim=1),
    "head_dim must be at least 1, got 0": lambda: mc.softmax_saturation(head_dim=0),
    "the name of a law must be one of": lambda: mc.entropy_vs_length(2, law="log"),
    "law: a scale must be at least 0, got -1": lambda: mc.entropy_vs_length(2, law=-1.0),
    "value must be finite, got nan": lambda: mc.entropy_vs_length(2, law=float("nan")),
    "one scale for each n": lambda: mc.entropy_vs_length(2, law=at.laws.PerHead((1.0, 2.0))),
    "model must be one of 'sphere', 'gaussian'": lambda: mc.entropy_vs_length(2, model="cube"),
    "correlation goes with": lambda: mc.entropy_vs_length(2, correlation=0.5),
    "correlation must be between 0 and 1, got 2": lambda: mc.entropy_vs_length(
        2, model="correlated", correlation=2
    ),
    "n must be at most 3, the keys of a head, got 4": lambda: mc.entropy_vs_length(4, model=(ONES, ONES)),
    "n must be at most 3, the keys of a head, got 32768": lambda: mc.entropy_vs_length(model=(ONES, ONES)),
    "key must be finite": lambda: mc.entropy_vs_length(2, model=(ONES, NAN)),
    "the same head_dim, got 4 and 3": lambda: mc.entropy_vs_length(2, model=(ONES, ONES[:, :3])),
    "head_dim must be 4": lambda: mc.entropy_vs_length(2, model=(ONES, ONES), head_dim=8),
    "cosine must be between -1 and 1, got 1.5": lambda: mc.needle_dilution(4, cosine=1.5),
    "query and key must be given together": lambda: mc.dot_product_variance(query=ONES),
    "std must be greater than 0": lambda: mc.dot_product_variance(head_dim=4, std=0),
    "mean must be between -1e12 and 1e12": lambda: mc.dot_product_variance(head_dim=4, mean=(0.0, 1e30)),
    "distribution must be one of 'normal', .* got 'cauchy'": lambda: mc.dot_product_variance(
        head_dim=4, distribution="cauchy"
    ),
    r"eps must be in \(0, 1\), got 1": lambda: mc.jl_distortion(n=4, dim=4, k=2, eps=1),
    "points exclude n and dim": lambda: mc.jl_distortion(ONES, n=4, k=2),
    "points must be distinct": lambda: mc.jl_distortion(ONES, k=2),
    "points must be finite": lambda: mc.jl_distortion(NAN, k=2),
    "points must be finite, got inf": lambda: mc.jl_distortion(ONES * np.inf, k=2),
    "points must be distinct in float32, once their mean is taken off, got two equal ones": lambda: (
        mc.jl_distortion(np.array([[0.0], [1.0], [1 + 1e-12]]), k=2)
    ),
    r"shape \(n, dim\)": lambda: mc.jl_distortion(ONES[:1], k=2),
    "kind must be one of": lambda: mc.jl_distortion(n=4, dim=4, k=2, kind="hadamard"),
    "shape must not have a negative extent, got -1": lambda: mc.normal(-1),
    "std must be at least 0, got -1": lambda: mc.normal(3, std=-1),
    "mean must be finite, got nan": lambda: mc.normal(3, mean=float("nan")),
    "low must not be above high, got 2 and 1": lambda: mc.uniform(3, low=2, high=1),
    "low must be below high, got 1 and 1": lambda: mc.truncated_normal(3, low=1, high=1),
    "scale must be at least 0": lambda: mc.laplace(3, scale=-1),
    "shape must end in a number of coordinates": lambda: mc.sphere((3, 0)),
    "radius must be at least 0": lambda: mc.sphere((3, 2), radius=-1),
    "num_threads must be at least 1": lambda: mc.normal(3, num_threads=0),
    r"the given shape, \(4,\), got \(3,\)": lambda: mc.normal(4, out=np.zeros(3)),
    "out must be writable, got a read-only array": lambda: mc.normal(out=_read_only()),
    "out must be aligned to its item size": lambda: mc.normal(out=_unaligned()),
    r"out must be in C order, got strides \(16,\) for the shape \(3,\)": lambda: mc.truncated_normal(
        out=np.zeros(6)[::2]
    ),
    r"the shape of out must end in .*, got \(3, 0\)": lambda: mc.sphere(out=np.zeros((3, 0))),
    "samples must be at least 1, got 0": lambda: mc.max_cosine(8, 4, samples=0),
    "samples and target_error exclude each other": lambda: mc.max_cosine(8, 4, samples=5, target_error=0.1),
    "target_error must be greater than 0, got 0": lambda: mc.max_cosine(8, 4, target_error=0),
    "max_samples must be at least 1": lambda: mc.max_cosine(8, 4, target_error=0.1, max_samples=0),
    "on_interrupt must be one of 'return', 'raise', got 'stop'": lambda: mc.max_cosine(
        8, 4, on_interrupt="stop"
    ),
    "num_threads must be at least 1, got 0": lambda: mc.max_cosine(8, 4, num_threads=0),
    "model must be one of 'gaussian', 'sphere', got 'correlated'": lambda: mc.sparsity(8, model="correlated"),
    r"normalizer must give its rows .*Sigmoid.* has no": lambda: mc.sparsity(8, normalizer="sigmoid"),
    "normalizer must be one of": lambda: mc.sparsity(8, normalizer="entmin"),
    "normalizer must have distinct values": lambda: mc.sparsity(
        8, normalizer=["sparsemax", at.normalizers.Sparsemax()]
    ),
    "rng must be None, an integer of at least 0.*got -1": lambda: mc.normal(3, rng=-1),
    r"^head_dim must be at most 2\^53, ": lambda: mc.dot_product_variance(head_dim=TOO_MANY),
    r"^dim must be at most 2\^53, ": lambda: mc.jl_distortion(n=2, dim=TOO_MANY, k=2),
    r"^k must be at most 2\^53, ": lambda: mc.jl_distortion(n=2, dim=2, k=TOO_MANY),
    r"^samples must be at most 2\^53, ": lambda: mc.entropy_vs_length(8, samples=TOO_MANY),
    r"^max_samples must be at most 2\^53, ": lambda: mc.entropy_vs_length(
        8, target_error=1, max_samples=TOO_MANY
    ),
    r"std must be between 1e-12 and 1e12.*got 1e\+30": lambda: mc.dot_product_variance(head_dim=4, std=1e30),
    "std must be between 1e-12 and 1e12.*got 1e-30": lambda: mc.dot_product_variance(head_dim=4, std=1e-30),
}


@pytest.mark.parametrize("message", TYPE_ERRORS)
def test_a_wrong_kind_of_thing_is_one_clear_error(message):
    with pytest.raises(TypeError, match=message):
        TYPE_ERRORS[message]()


@pytest.mark.parametrize("message", VALUE_ERRORS)
def test_a_wrong_value_is_one_clear_error(message):
    with pytest.raises(ValueError, match=message):
        VALUE_ERRORS[message]()


def test_more_elements_than_memory_has_are_refused():
    with pytest.raises(MemoryError, match="more elements than fit"):
        mc.normal((2**40, 2**40))
