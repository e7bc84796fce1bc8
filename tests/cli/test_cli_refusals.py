# SPDX-License-Identifier: BSD-3-Clause
"""Bad input of the commands: one line that says what is wrong, status 2, and nothing is written."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

HEADS = str(files("attnscale") / "data" / "minilm_qk.npz")
REFUSED = {
    "entropy nope.npz": "nope.npz: no such file",
    "entropy": "give one FILE, two .npy or .pt FILEs, or --query and --key",
    "entropy a.npy b.npy c.npy": "give one FILE",
    "entropy --query a.npy": "give one FILE",
    "entropy HEADS --laws nope": "must be one of 'standard', 'unscaled'",
    "entropy HEADS --laws 'log_n(bse=3)'": "did you mean 'base'? law 'log_n' has no parameter 'bse'; its",
    "entropy HEADS --laws constant": "'constant' needs value",
    "entropy HEADS --laws 'log_n(512)'": "a law is written NAME or NAME(parameter=value, ...)",
    "entropy HEADS --laws 'log_n(base=open)'": "base of law 'log_n' must be a number, a list, or text",
    "entropy HEADS --laws 'log_n(**{'\"'\"'base'\"'\"': 2})'": "a law is written NAME",
    "entropy HEADS --laws 'per_head(values=[1.0, 2.0])'": "18",
    "entropy HEADS --n 64 513": "--n must be between 1 and 512",
    "entropy HEADS --n 0": "--n must be at least 1, got 0",
    "entropy HEADS --csv no/such/folder.csv": "there is no folder no/such",
    "entropy HEADS --laws nan": "law 'nan': value must be finite, got nan",
    "entropy HEADS --lengths 64": "unrecognized arguments: --lengths 64: did you mean --n?",
    "entropy --laws": "(see attnscale entropy --help)",
    "calibrate HEADS --n 1": "--n must be between 2 and the number of keys, 512, got 1",
    "laws --n 5 --laws 'constant(value=1e308)'": "scale must be finite, got inf",
    "laws --csv": "(see attnscale laws --help)",
    "explain nope": "must be one of 'standard', 'unscaled'",
    "explain '3 +'": "a law must be a number, as 0.125, or a name, as 'log_n', got '3 +'",
    "theory --n 0": "n must be at least 1, got 0",
    "theory --n 512 --laws scale_invariant": "law 'scale_invariant' gives the keys of a row different",
    "theory --n 512 --laws critical_scale": "has no n at a position: its n is sup over",
    "theory --n 512 --beta -1": "beta must be at least 0, got -1",
    "theory --n 512 --head-dim 1": "--head-dim must be at least 2, got 1",
    "theory --n 512 --laws nope": "must be one of 'standard', 'unscaled'",
    "theory --n 512 --laws 'per_head(values=[1.0, 2.0])'": "one multiple for each n is needed",
    "mc max_cosine --unit bits": "this command has no --unit",
    "mc sparsity --normalizer entmx": "did you mean 'entmax'? --normalizer must be one of",
    "mc max_cosine --n 0": "n must be at least 1, got 0",
    "mc max_cosine --n 8 --samples 0": "samples must be at least 1, got 0",
    "mc max_cosine --n 8 --samples 5 --target-error 1": "--samples and --target-error exclude each other",
    "mc max_cosine --n 8 --seed -1": "--seed must be at least 0, got -1",
    "mc max_cosine --n 8 --quantity entropy": "--quantity must be one of 'max_cosine', got 'entropy'",
    "mc max_cosine --n 8 --plot x.txt --samples 3": "--plot x.txt",
    "mc max_cosine --n 8 --plot x.jpeg2 --samples 3": "--plot x.jpeg2",
    "mc entropy_vs_length --n 8 --laws log": "the name of a law must be one of",
    "mc entropy_vs_length --n 8 --laws -0.5": "a scale must be at least 0, got -0.5",
    "mc entropy_vs_length --n 8 --heads nowhere.npz": "nowhere.npz: no such file",
    "mc entropy_vs_length --n 8 --heads a b c": "--heads takes one file, or two .npy or .pt files",
    "mc needle_dilution --n 8 --cosine 2": "cosine must be between -1 and 1, got 2",
    "mc jl_distortion --points 4 --dim 4 --k 2 --eps 1": "eps must be in (0, 1), got 1",
    "mc anything": "EXPERIMENT must be one of",
    "mc max_cosine --n 8 --cosine 1": "this command has no --cosine",
    "mc entropy-vs-lenght --n 8": "did you mean 'entropy_vs_length'? EXPERIMENT must be one of 'averaging",
    "mc sparsity --n 4 --model spher": "did you mean 'sphere'? --model must be one of 'gaussian', 'sphere'",
    "sweep nowhere.toml": "nowhere.toml: no such file",
    "sweep .": ".: is a folder, not a file",
    "sweep x.toml --n-jobs x": "--n-jobs must be a whole number, as 1024 or 1e3, got 'x'",
    "info --dmeo": "--dmeo: did you mean --debug? (see attnscale info --help)",
    "info --nope": "(see attnscale info --help)",
    "entropi": "did you mean 'entropy'? COMMAND must be one of 'demo', ",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_line(
    fail: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = fail(*(HEADS if word == "HEADS" else word for word in shlex.split(line)))
    assert REFUSED[line] in error
    assert "max-cosine" not in error  # a list of names has each once
    assert os.listdir() == []
