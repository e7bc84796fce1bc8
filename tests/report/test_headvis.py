# SPDX-License-Identifier: BSD-3-Clause
"""Files for HeadVis have its format, with the numbers of the whole matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import random_inputs

METRICS = {
    "self_attention_score",
    "previous_token_score",
    "pattern_entropy",
    "qk_distance",
    "induction_score",
}


def read(folder: Path) -> tuple[dict[str, Any], dict[tuple[int, int], Any], dict[tuple[int, int], Any]]:
    """Check the format of a folder: its config, numbers of heads and files of heads."""
    names = ("config.json", "scatter_data.json")
    config, scatter = (json.loads((folder / name).read_text()) for name in names)
    assert json.loads((folder / "server_config.json").read_text()) == {}
    assert json.loads((folder / "attributions" / "manifest.json").read_text()) == {}
    assert type(config["model_name"]) is str
    assert (config["n_intervals"], config["has_umap"], config["umap_heads"]) == (10, False, [])
    assert set(config["metrics"]) == set(config["metric_descriptions"]) == METRICS
    places = [(layer, head) for layer, head in config["heads"]]
    assert (config["n_layers"], config["n_heads"]) == tuple(np.max(places, 0) + 1)
    numbers = {(each["layer"], each["head"]): each for each in scatter}
    assert list(numbers) == places
    assert all(type(each[name]) is float for each in scatter for name in METRICS)
    names = {place: config["head_data_pattern"].format(layer=place[0], head=place[1]) for place in places}
    assert {each.name for each in (folder / "heads").iterdir()} == {*names.values()}
    heads = {place: json.loads((folder / "heads" / name).read_text()) for place, name in names.items()}
    for head in heads.values():
        for each in config["custom_plots"]:
            bars = head[each["key"]]
            assert len(bars["bin_edges"]) == len(bars["bin_values"]) + 1
        for each in config["custom_tables"]:
            assert all(row.keys() == {"token", "weight"} for row in head[each["key"]])
        assert head["statistics"].keys() == config["statistics_display"].keys()
        assert sum(head["histogram"]["bin_values"]) >= len(head["sequences"])
        for each in head["sequences"]:
            check_sequence(each)
    return config, numbers, heads


def check_sequence(each: dict[str, Any]) -> None:
    n, index, weight = each["seq_len"], each["attention_indices"], each["attention_values"]
    assert type(each["sequence_id"]) is int
    assert 1 <= each["interval"] <= 10
    assert len(each["tokens"]) == n
    assert len(index) == len(weight)
    assert index == sorted({*index})
    assert all(type(i) is int and 0 <= i < n * n for i in index)
    assert np.bincount(np.array(index) // n).max() <= 8
    assert all(type(w) is float and 0.005 <= w == round(w, 4) for w in weight)


def strongest(w: Any) -> Any:
    """The matrix of weights with the eight largest of each row, of 0.005 and more."""
    least = np.sort(w, -1)[..., -8:][..., :1]
    return np.where(w >= np.maximum(least, 0.005), w, 0)


@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"normalizer": "softmax_1"}, {"layout": "bshd"}], ids=str
)
def test_numbers_are_those_of_the_matrix(tmp_path: Path, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    sizes = (33, 20, 1)
    q, k = ([rng.standard_normal((2, heads, n, 6)) for n in sizes] for heads in (4, 2))
    ids = [rng.integers(0, 7, n) for n in sizes]
    words = [[f"w{i}" for i in text] for text in ids]
    twin = {name: x for name, x in options.items() if name != "layout"}
    p = [
        reference.attention_weights(*pair, enable_gqa=True, scale=1.0, **twin)
        for pair in zip(q, k, strict=True)
    ]
    if "layout" in options:
        q, k = ([x.swapaxes(1, 2) for x in each] for each in (q, k))
    folder = at.export_headvis(tmp_path / "data", q, k, words, enable_gqa=True, scale=1.0, **options)
    _, numbers, heads = read(folder)
    kinds = [
        reference.head_kinds(x, y, i, enable_gqa=True, scale=1.0, **options)
        for x, y, i in zip(q, k, ids, strict=True)
    ]
    for (layer, head), said in heads.items():
        w = [each[layer, head] for each in p]
        found = numbers[layer, head]
        diagonals = [np.concatenate([np.diagonal(each, -i) for each in w]).mean() for i in (0, 1)]
        assert found["self_attention_score"] == pytest.approx(diagonals[0], abs=1e-6)
        assert found["previous_token_score"] == pytest.approx(diagonals[1], abs=1e-6)
        induction = [np.nan_to_num(each.induction[layer, head]) for each in kinds]
        assert found["induction_score"] == pytest.approx(np.concatenate(induction).mean(), abs=1e-6)
        distance = [np.abs(np.subtract.outer(*[np.arange(len(each))] * 2)) for each in w]
        away = np.concatenate([(x * d).sum(-1) / x.sum(-1) for x, d in zip(w, distance, strict=True)])
        assert found["qk_distance"] == pytest.approx(away.mean(), abs=1e-6)
        rows = [
            at.attention_entropy(x[layer], y[layer], enable_gqa=True, scale=1.0, **options)
            for x, y in zip(q, k, strict=True)
        ]
        entropy = np.concatenate([each[head] for each in rows]).mean()
        assert found["pattern_entropy"] == pytest.approx(entropy, abs=1e-6)
        bars = said["qk_distance_histogram"]
        assert bars["bin_edges"] == [0, 1, 2, 4, 8, 16, 32, 64]
        weights, distances = (np.concatenate([x.ravel() for x in each]) for each in (w, distance))
        bins, _ = np.histogram(distances, bars["bin_edges"], weights=weights)
        np.testing.assert_allclose(bars["bin_values"], bins / bins.sum(), atol=6e-5)
        assert sorted((x["sequence_id"], x["interval"]) for x in said["sequences"])[-1] == (2, 4)
        shown = []
        for each in said["sequences"]:
            number, n = each["sequence_id"], each["seq_len"]
            assert each["tokens"] == words[number]
            kept = np.zeros(n * n)
            kept[each["attention_indices"]] = each["attention_values"]
            np.testing.assert_allclose(kept.reshape(n, n), strongest(w[number]), atol=6e-5)
            off = w[number] * ~np.eye(n, dtype=bool)
            assert each["max_activation"] == pytest.approx(off[1:, 1:].max(initial=0), abs=6e-5)
            shown.append((number, strongest(w[number])[1:, 1:]))
        of_key = np.zeros(7)
        for number, x in shown:
            np.add.at(of_key, ids[number][1:], x.sum(0))
        table = [(row["token"], row["weight"]) for row in said["top_key_tokens"]]
        order = np.argsort(-of_key)
        assert [token for token, _ in table] == [f"w{i}" for i in order]
        np.testing.assert_allclose([x for _, x in table], of_key[order] / of_key.sum(), atol=6e-5)


def test_ten_equal_buckets_of_at_most_twenty_texts(tmp_path: Path) -> None:
    q, k, _ = random_inputs(1, batch=(250, 1), n_queries=4, n_keys=4)
    _, _, heads = read(at.export_headvis(tmp_path / "data", q, k, [list("abcd")] * 250))
    for head in heads.values():
        found = head["sequences"]
        assert [sum(x["interval"] == i for x in found) for i in range(1, 11)] == [20] * 10
        by_size = sorted(found, key=lambda x: x["interval"])
        assert [x["max_activation"] for x in by_size] == sorted(x["max_activation"] for x in found)
        assert sum(head["histogram"]["bin_values"]) == 250
    _, _, heads = read(at.export_headvis(tmp_path / "few", q[:1], k[:1], [list("abcd")]))
    assert [x["interval"] for x in heads[0, 0]["sequences"]] == [10]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    q, k, _ = random_inputs(2, batch=(2, 1), n_queries=5, n_keys=5)
    words, folder = [list("abcde"), list("eeeee")], tmp_path / "data"
    at.export_headvis(folder, q, k, words, model_name="one")
    with pytest.raises(FileExistsError, match="is there already; overwrite=True replaces it"):
        at.export_headvis(folder, q, k, words)
    with pytest.raises(ValueError, match="tokens must be one for each query and each key of a text, got 4"):
        at.export_headvis(folder, q, k, [words[0], words[1][:4]], overwrite=True)
    assert read(folder)[0]["model_name"] == "one"
    (folder / "heads" / "L9H9.json").write_text("{}")
    at.export_headvis(folder, q, k, words, model_name="two", overwrite=True)
    assert read(folder)[0]["model_name"] == "two"
    others = tmp_path / "others"
    others.mkdir()
    at.export_headvis(others, q, k, words)  # a folder without files
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "page.html").write_text("")
    with pytest.raises(FileExistsError, match="has files that are not of HeadVis"):
        at.export_headvis(tmp_path / "mine", q, k, words, overwrite=True)
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        at.export_headvis(tmp_path / "mine" / "page.html", q, k, words)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        at.export_headvis(tmp_path / "no" / "data", q, k, words)
    assert {each.name for each in tmp_path.iterdir()} == {"data", "others", "mine"}


def test_what_is_refused(tmp_path: Path) -> None:
    q, k, _ = random_inputs(3, batch=(2, 1), n_queries=5, n_keys=5)
    words = [list("abcde")] * 2
    wrong: list[tuple[Any, type[Exception], str]] = [
        ((q, k[:1], words), ValueError, "query and key must have the same layers in each text, got 2 and 1"),
        ((q, k, words[:1]), ValueError, "tokens must be one sequence for each of one or more texts"),
        (([], [], []), ValueError, "tokens must be one sequence for each of one or more texts"),
        ((q, k, ["abcde", "abcde"]), TypeError, "tokens must be a sequence of str, got 'abcde'"),
        ((q * np.nan, k, words), ValueError, "query and key must have finite scores, got 10 rows of NaN"),
    ]
    for given, error, said in wrong:
        with pytest.raises(error, match=said):
            at.export_headvis(tmp_path / "data", *given)
    with pytest.raises(TypeError, match="overwrite must be True or False, got 1"):
        at.export_headvis(tmp_path / "data", q, k, words, overwrite=1)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
