# SPDX-License-Identifier: BSD-3-Clause
"""The compiled core. Arrays come checked; None stands for an absent one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._call.distance import ScoreForm
from .normalizers._base import Rule
from .variants._linear_form import LinearCall, LinearGradientCall

__version__: str
statistic_names: tuple[str, ...]
statistic_traits: dict[str, StatisticTraits]
feature_map_names: tuple[str, ...]
linear_norm_names: tuple[str, ...]

class StatisticTraits:
    @property
    def unit(self) -> str: ...  # "nat" or ""
    @property
    def is_count(self) -> bool: ...
    @property
    def has_gradient(self) -> bool: ...

# What rows of a normalizer have. distribution: its weights are divided by their sum, where that is a choice.
def statistics_of(kind: str, distribution: bool, /) -> tuple[str, ...]: ...
def simd_level() -> str: ...
def available_simd_levels() -> tuple[str, ...]: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def chosen_threads() -> int: ...
def choose_threads(n: int) -> None: ...
def use_threads_of(library: str) -> str: ...
def threads_library() -> str: ...
def build_info() -> dict[str, str]: ...
def xla_handlers() -> dict[str, object]: ...

class Intervals:
    """Which keys each query may see but for a mask: query i those from begin[i] to end[i] - 1.

    Arrays broadcast to (..., heads, n_queries). Neither end decreases from a query to the next.
    """

    def __init__(
        self,
        n_queries: int,
        n_keys: int,
        batch: tuple[int, ...],
        causal: str | int | None,
        window: tuple[int | None, int | None] | None,
        key_lengths: NDArray[Any] | None,
        document_ids: NDArray[Any] | None,
        /,
    ) -> None: ...
    @property
    def begin(self) -> NDArray[np.int64] | None:
        """None: from the first key."""
    @property
    def end(self) -> NDArray[np.int64] | None:
        """None: to the last key."""
    @property
    def origin(self) -> NDArray[np.int64] | None:
        """The first key of the query's document; None: there are none."""
    @property
    def offset(self) -> int | NDArray[np.int64]:
        """Query i is aligned with the key i + offset."""
    def aligned(self) -> NDArray[np.int64]:
        """Index of the key that each query is aligned with, which need not exist."""
    def positions(self) -> NDArray[np.int64]:
        """Index of that key within its document."""
    def row_sizes(self) -> NDArray[np.int64]:
        """Keys of the query's document up to the last one that the query may see."""
    def visible_keys(self) -> NDArray[np.int64]:
        """Keys that the query may see where there is no mask."""
    def distances(self) -> NDArray[np.int64]:
        """Position of the query less that of the key: of query i and key j at n_queries - 1 - i + j.

        Shape (n_distances,), or (..., heads = 1, n_distances) where key lengths move the diagonal.
        """
    def reach(self) -> int:
        """The largest distance that counts, of all pairs or of those within a document; -1: there is none."""

class CoreCall:
    """One attention call: made once, asked for outputs, statistics, curves and scales."""

    def __init__(
        self,
        query: NDArray[Any],
        key: NDArray[Any],
        mask: NDArray[Any] | None,
        begin: NDArray[np.int64] | None,
        end: NDArray[np.int64] | None,
        form: ScoreForm | None,
        wide: bool,
        num_threads: int,
        /,
    ) -> None: ...
    def show_leading(self, count: int, /) -> None: ...
    def attend(
        self,
        value: NDArray[Any] | None,
        output: NDArray[Any] | None,
        statistics: tuple[str, ...],
        scale: float | NDArray[np.float64],
        weights: Rule | None,
        wide_rows: bool = False,
        /,
    ) -> tuple[NDArray[Any], ...]: ...
    @property
    def has_lost_rows(self) -> bool: ...
    def gradients(
        self,
        value: NDArray[Any] | None,
        grad_output: NDArray[Any] | None,
        into: dict[str, NDArray[Any] | None],
        saved: dict[str, NDArray[Any]],
        cotangents: dict[str, NDArray[Any]],
        scale: float | NDArray[np.float64],
        weights: Rule | None,
        /,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]: ...
    def curve(
        self, scales: NDArray[np.float64], /
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]: ...
    def ladder(
        self, bases: NDArray[np.float64], n_scales: int, /
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]: ...
    def received_ladder(
        self, bases: NDArray[np.float64], n_scales: int, max_weight: NDArray[Any], top: NDArray[Any], /
    ) -> NDArray[np.float64]: ...
    def solve(
        self, target: NDArray[np.float64], tolerance: float, /
    ) -> tuple[
        NDArray[np.float64],
        NDArray[Any],
        NDArray[Any],
        NDArray[Any],
        NDArray[np.bool_],
        NDArray[np.bool_],
        NDArray[np.int64],
    ]: ...
    def top_keys(
        self, scale: float | NDArray[np.float64], k: int, /
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]: ...
    def count(self) -> NDArray[np.int64]: ...

# Rows of the last axis of length 1 ("l2") or sqrt(head_dim) ("rms"), in float64 or float32; 0 stays 0.
def scale_rows(rows: NDArray[Any], qk_norm: str, wide: bool, /) -> NDArray[Any]: ...

# Turns the gradient of such rows, contiguous, into that of the given rows; 0 where a row of it was 0.
def pull_back_rows(rows: NDArray[Any], qk_norm: str, gradient: NDArray[Any], /) -> None: ...
def attend_arrays(
    query: Any,
    key: Any,
    value: Any,
    statistics: tuple[str, ...],
    options: Mapping[str, Any],
    /,
) -> tuple[NDArray[Any], tuple[NDArray[Any], ...], bool] | None: ...
def attend_tensors(
    query: Any,
    key: Any,
    value: Any,
    statistics: tuple[str, ...],
    options: Mapping[str, Any],
    /,
) -> tuple[Any, tuple[Any, ...], bool] | None: ...
def differentiate_arrays(
    query: Any,
    key: Any,
    value: Any,
    grad_output: Any,
    output: Any,
    names: tuple[str, ...],
    rows: Sequence[Any],
    cotangents: Sequence[Any],
    wanted: tuple[bool, ...],
    options: Mapping[str, Any],
    /,
) -> tuple[Any, ...] | None: ...
def differentiate_tensors(
    query: Any,
    key: Any,
    value: Any,
    grad_output: Any,
    output: Any,
    names: tuple[str, ...],
    rows: Sequence[Any],
    cotangents: Sequence[Any],
    wanted: tuple[bool, ...],
    options: Mapping[str, Any],
    /,
) -> tuple[Any, ...] | None: ...
def linear(call: LinearCall, /) -> None: ...
def linear_gradient(call: LinearGradientCall, /) -> None: ...
def run_fma(n_tasks: int, rounds: int, wide: bool, num_threads: int, /) -> float: ...
def read_memory(array: NDArray[Any], num_threads: int, /) -> int: ...
def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...
def mc_fill(
    out: NDArray[Any],
    distribution: str,
    parameters: Sequence[float],
    key: int,
    stream: int = 0,
    first: int = 0,
    num_threads: int = 0,
) -> None: ...
def mc_sphere(
    out: NDArray[Any],
    radius: float,
    key: int,
    stream: int = 0,
    first: int = 0,
    num_threads: int = 0,
) -> None: ...
def mc_score_rows(
    *,
    model: str,
    n: int,
    head_dim: int,
    correlation: float,
    multipliers: Sequence[float] | NDArray[np.float64],
    needle_cosine: float,
    key: int,
    stream: int = 0,
    first: int = 0,
    count: int,
    num_threads: int = 0,
) -> NDArray[np.float64]: ...
def mc_max_cosine(
    *,
    n: int,
    head_dim: int,
    key: int,
    stream: int = 0,
    first: int = 0,
    count: int,
    num_threads: int = 0,
) -> NDArray[np.float64]: ...
def mc_dot_products(
    *,
    head_dim: int,
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
    block: int,
    key: int,
    stream: int = 0,
    first: int = 0,
    count: int,
    num_threads: int = 0,
) -> NDArray[np.float64]: ...
def mc_points(points: NDArray[np.float64]) -> NDArray[np.float32]: ...
def mc_project(
    points: NDArray[np.float32],
    k: int,
    kind: str,
    key: int,
    stream: int = 0,
    density: float = ...,
    num_threads: int = 0,
) -> NDArray[np.float32]: ...
def jl_min_dim(
    n: NDArray[np.float64],
    eps: NDArray[np.float64],
    failure_probability: NDArray[np.float64] | float,
    chi_square: bool,
) -> Any: ...
def jl_rule_of_thumb(n: NDArray[np.float64], constant: NDArray[np.float64]) -> Any: ...
def law_names() -> list[str]: ...
def law_identity(spelling: str) -> tuple[str, str]: ...
def law_parameters(name: str) -> list[str]: ...
def law_values(
    name: str, parameters: tuple[Any, ...], n: NDArray[np.float64], head_dim: float, scale: bool
) -> NDArray[np.float64]: ...
def equivalent_head_dim(
    n: NDArray[np.float64], head_dim: NDArray[np.float64], n0: NDArray[np.float64]
) -> Any: ...
def pair_distances_ratio(
    points: NDArray[np.float32],
    projected: NDArray[np.float32],
    eps: Sequence[float] | NDArray[np.float64],
    num_threads: int = 0,
) -> tuple[float, float, float, float, NDArray[np.int64]]: ...

mc_pairs_of_row: int

def tally_add(
    tally: Any, rows: NDArray[np.float64]
) -> tuple[int, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]: ...
def tally_mean(tally: Any) -> NDArray[np.float64]: ...
def tally_covariance(tally: Any) -> NDArray[np.float64]: ...
def tally_standard_error(tally: Any) -> NDArray[np.float64]: ...
def share_error(share: NDArray[np.float64] | float, rows: NDArray[np.int64] | int) -> Any: ...
def mc_means_and_shares(
    tally: Any, shares: Sequence[int], bounded: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def mc_dot_product_moments(tally: Any, head_dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def mc_rows_wanted(
    rows: int, most: int, target_error: float | None, errors: Sequence[float] | NDArray[np.float64]
) -> int: ...
def mc_experiment_rows(
    *,
    experiment: str,
    model: str,
    n: int,
    head_dim: int,
    correlation: float,
    cosine: float,
    betas: Sequence[float] | NDArray[np.float64],
    key: int,
    first: int,
    count: int,
    num_threads: int = 0,
) -> NDArray[np.float64]: ...
def mc_dot_product_rows(
    *,
    head_dim: int,
    distribution: str,
    query_mean: float,
    key_mean: float,
    std: float,
    key: int,
    first: int,
    count: int,
    num_threads: int = 0,
) -> NDArray[np.float64]: ...
def mc_projection_rows(
    *,
    points: NDArray[np.float32] | None,
    n: int,
    dim: int,
    k: int,
    kind: str,
    eps: Sequence[float],
    key: int,
    first: int,
    count: int,
    num_threads: int = 0,
) -> NDArray[np.float64]: ...
def mc_random_scores(
    *,
    model: str,
    n: int,
    head_dim: int,
    key: int,
    first: int,
    count: int,
    num_threads: int = 0,
) -> NDArray[np.float64]: ...
def mc_experiment(
    name: str, options: dict[str, Any], run: dict[str, Any]
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64], int]: ...
