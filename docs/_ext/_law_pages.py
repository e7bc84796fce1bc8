# SPDX-License-Identifier: BSD-3-Clause
"""A page for each family of laws, generated from the laws."""

from __future__ import annotations

import dataclasses
import sys

from _generated import write_generated
from _law_formulas import typeset
from attnscale import laws
from attnscale.laws._registry import class_of

# Parameters in the tables for laws without defaults.
EXAMPLES = {
    "constant": {"value": 1 / 16},
    "per_head": {"values": 1.5},
    "layer_index": {"layer": 3},
    "disentangled_scale": {"terms": 3},
    "latent_scale": {"hidden": 6144, "rank": 1536},
    "log_n_from_training": {"train_length": 8192},
    "kappa": {"kappa": 1.28},
    "qwen_log_n": {"train_length": 8192},
    "grok_temperature": {"length": 1024},
    "asentmax": {"delta": 1, "beta": 0.1, "gamma": 1},
    "selective_temperature": {"strength": 0.1},
    "nope_temperature": {"slope": 0.3},
    "yarn": {"factor": 16},
    "mla_yarn": {"factor": 40, "mscale_all_dim": 1},
    "longrope": {"train_length": 4096, "factor": 32},
    "info_scale": {"train_length": 512},
    "retrieval": {"gap": 4.624},
    "qk_norm_scale": {"train_length": 512},
}
LENGTHS = (512, 4096, 32768, 131072)
HEAD_DIM = 64


def write_law_pages(folder):
    """Write one page for each module of attnscale.laws that defines laws, and remove old pages."""
    families = {}
    for name in laws.names():
        law = class_of(name)
        if law is not None:
            families.setdefault(law.__module__, []).append(law)
    written = {
        f"{module.rpartition('._')[2]}.md": _page(module, members) for module, members in families.items()
    }
    write_generated(folder, written)


def _page(module, members):
    title = sys.modules[module].__doc__.strip().splitlines()[0].rstrip(".")
    return "\n\n".join([f"# {title}", *(_section(law) for law in members)]) + "\n"


def _section(law):
    rows = [
        ("name", f"`{law.name}`"),
        ("class", f"{{class}}`~attnscale.laws.{law.__name__}`"),
        ("parameters", _parameters(law)),
        ("scale", typeset(law)),
        ("as code", f"`{law.formula}`"),
        ("n", f"{law.n_means}: {laws.MEANINGS_OF_N[law.n_means]}"),
        ("channels", law.channels),
        ("layers", law.layers),
        ("source", law.source),
        ("used by", law.used_by),
        ("configuration", ", ".join(f"`{key}`" for key in law.config_keys)),
        ("note", law.remark),
    ]
    table = "\n".join(f"| {title} | {cell(text)} |" for title, text in rows if text)
    return f"## {law.__name__}\n\n| | |\n|---|---|\n{table}\n\n{_values(law)}"


def _parameters(law):
    texts = []
    for each in dataclasses.fields(law):
        default = "" if each.default is dataclasses.MISSING else f" = {each.default!r}"
        texts.append(f"`{each.name}{default}`")
    return ", ".join(texts)


def _values(law):
    example = laws.get(law.name, **EXAMPLES.get(law.name, {}))
    head, n, values = series(example, LENGTHS, (1, 2, 4, 8))
    values = [f"{value:.4f}" for value in values]
    return (
        f"`{example!r}`, multiple of $1/\\sqrt d$ at head_dim {HEAD_DIM}:\n\n"
        f"| {head} | {' | '.join(map(str, n))} |\n|---|{'---|' * len(n)}\n"
        f"| multiplier | {' | '.join(values)} |"
    )


def series(law, lengths, measured):
    """The counted quantity, its values, and the multiples there; `measured` if n is not a number of keys."""
    if law.meaning.is_distance:
        return "distance", lengths, law.factor(lengths)
    if law.meaning.at_position is None:
        return law.n_means, measured, law.multiplier(measured, HEAD_DIM)
    counts = law.n_of_position([length - 1 for length in lengths])
    return "keys of a causal query", lengths, law.multiplier(counts, HEAD_DIM)


def cell(text):
    return text.replace("|", "\\|")
