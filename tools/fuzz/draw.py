# SPDX-License-Identifier: BSD-3-Clause
"""Random calls as plain data, from a seed and an index."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import LAYOUTS, PROFILES

Case = dict[str, Any]

# Around lanes, panels of rows, tiles of keys and blocks of them.
_SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 23, 24, 31, 32, 33, 40, 48, 63, 64, 65)
_LONG = (96, 127, 128, 129, 192, 193, 255, 256, 257, 385, 600, 1030)
_DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33)
_LONG_DIMS = (48, 63, 64, 65, 80, 96, 128, 129, 192, 256)
_TYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "foreign float32",
    "foreign float64",
    "foreign float16",
)
_WORK = 20_000  # pairs times channels of an ordinary call


def generator(seed: int, index: int, stream: int = 0) -> np.random.Generator:
    """Generator of a case; another stream draws its arrays."""
    return np.random.Generator(np.random.PCG64([seed, index, stream]))


class Draw:
    """A generator with the choices of a case."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = generator(seed, index)

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """low ... high, both included."""
        return int(self.rng.integers(low, high + 1))

    def number(self, spread: float = 1.0) -> float:
        return float(self.rng.standard_normal() * spread)

    def shapes(self, *, square: bool = False, batch: int = 2) -> Case:
        """Leading axes, numbers of queries and keys, and dimensions, within the work of a call."""
        heads = self.pick((None, 1, 1, 2, 2, 3, 4))
        lead = () if heads is None else (heads,)
        while heads is not None and len(lead) <= batch and self.chance(0.3):
            lead = (self.pick((1, 2, 3)), *lead)
        long = self.chance(0.06)
        nq, nk = self.pick(_SIZES), self.pick(_SIZES)
        if long:
            nq, nk = (
                (self.pick(_LONG), self.pick(_SIZES[:12]))
                if self.chance(0.3)
                else (self.pick(_SIZES[:12]), self.pick(_LONG))
            )
        if square:
            nq = nk
        d = self.pick(_LONG_DIMS if self.chance(0.12) else _DIMS)
        dv = d if self.chance(0.5) else self.pick(_DIMS)
        many = _WORK * (10 if self.chance(0.02) else 1)
        while int(np.prod(lead)) * nq * nk * max(d, dv, 8) > many:
            shrink = self.pick(("lead", "nq", "nk", "d"))
            if shrink == "lead" and lead:
                lead = (*lead[:-1], 1) if lead[-1] > 1 else (1,) * len(lead)
            elif shrink == "d":
                d, dv = max(1, d // 2), max(1, dv // 2)
            elif square:
                nq = nk = max(1, nq // 2)
            else:
                nq, nk = (max(1, nq // 2), nk) if shrink == "nq" and nq > 1 else (nq, max(1, nk // 2))
        found = {"lead": list(lead), "nq": nq, "nk": nk, "d": d, "dv": dv}
        if self.chance(0.03):
            name = self.pick(("nq", "nk", "d", "dv", *(("lead",) if lead else ())))
            found[name] = [0, *lead[1:]] if name == "lead" else 0
            if square and name in ("nq", "nk"):
                found["nq"] = found["nk"] = 0
        return found

    def kind(self) -> str:
        """A type: most often a usual one."""
        return self.pick(_TYPES[:2]) if self.chance(0.6) else self.pick(_TYPES)

    def kinds(self, many: int) -> list[str]:
        """Types of the arrays of a call: most often one, never both 16-bit ones: they have no common type."""
        if self.chance(0.75):
            return [self.kind()] * many
        found = [self.kind() for _ in range(many)]
        narrow = self.pick(("float16", "bfloat16"))
        return [narrow if kind.endswith("float16") else kind for kind in found]

    def profile(self) -> str:
        return "normal" if self.chance(0.45) else self.pick(PROFILES)

    def array(self, shape: Any, dtype: str, profile: str | None = None) -> Case:
        strides = self.pick(LAYOUTS) if self.chance(0.4) else "c"
        return {
            "shape": [int(n) for n in shape],
            "dtype": dtype,
            "profile": profile or self.profile(),
            "strides": strides,
        }

    def lead_of(self, lead: list[int]) -> list[int]:
        """Leading axes that broadcast to these."""
        if not self.chance(0.15):
            return lead
        found = [1 if self.chance(0.5) else n for n in lead]
        return found[self.integer(0, len(found)) :] if self.chance(0.3) else found

    def qkv(self, shape: Case, layout: str) -> tuple[Case, bool]:
        """Specs of query, key and value, and whether query heads share key heads."""
        lead, kinds = shape["lead"], self.kinds(3)
        gqa = bool(lead) and self.chance(0.25)
        kv = lead
        if gqa and lead[-1]:
            kv = [*lead[:-1], self.pick([n for n in range(1, lead[-1] + 1) if lead[-1] % n == 0])]
        leads = [lead, kv, kv] if gqa else [lead, self.lead_of(lead), self.lead_of(lead)]
        rows = {
            "q": (shape["nq"], shape["d"]),
            "k": (shape["nk"], shape["d"]),
            "v": (shape["nk"], shape["dv"]),
        }
        plain = self.chance(0.3)
        found = {}
        for (name, (n, d)), each, dtype in zip(rows.items(), leads, kinds, strict=True):
            if layout == "bshd" and len(each) < len(lead):
                each = [1] * (len(lead) - len(each)) + list(each)
            axes = [*each[:-1], n, each[-1], d] if layout == "bshd" and each else [*each, n, d]
            found[name] = self.array(axes, dtype, "normal" if plain else None)
        return found, gqa

    def problem(self, heads_last: float = 0.2) -> tuple[Case, Case, Case]:
        """Shape, specs of query, key and value, and the options that tell how their axes are meant."""
        shape = self.shapes()
        layout = "bshd" if shape["lead"] and self.chance(heads_last) else "bhsd"
        arrays, gqa = self.qkv(shape, layout)
        axes: Case = {"enable_gqa": True} if gqa else {}
        return shape, arrays, axes | ({"layout": layout} if layout == "bshd" else {})

    def scale(self, shape: Case) -> Any:
        """["none"], ["number", x], ["array", axes, spread], ["name", law] or ["law", class, parameters]."""
        how = self.rng.random()
        if how < 0.3:
            return ["none"]
        if how < 0.55:
            return [
                "number",
                self.pick((0.0, 1.0, 0.125, -0.5, self.number(), self.number(0.3), self.number(1e3))),
            ]
        if how < 0.7:
            full = [*shape["lead"], shape["nq"]]
            return ["array", [1 if self.chance(0.3) else n for n in full], self.pick((0.3, 1.0, 1.0, 30.0))]
        if how < 0.85:
            return [
                "name",
                self.pick(
                    (
                        "log_n",
                        "ssmax",
                        "natural_log_n",
                        "standard",
                        "unscaled",
                        "mup",
                        "annealed",
                        "llama4_temperature",
                        "beam_temperature",
                        "ministral_temperature",
                        "inkling_temperature",
                        "adaptive_temperature",
                    )
                ),
            ]
        return ["law", *self.pick(_LAWS)]

    def masks(self, shape: Case, *, documents: bool = True) -> Case:
        """Options that hide keys."""
        lead, nq, nk = shape["lead"], shape["nq"], shape["nk"]
        found: Case = {}
        how = self.rng.random()
        if how < 0.15:
            found["is_causal"] = True
        elif how < 0.45:
            found["causal"] = self.pick(("top_left", "bottom_right"))
            if self.chance(0.3):
                found["causal"] = self.integer(-nq - 2, nk + 2)
        if self.chance(0.2):
            found["window"] = [self.pick((None, 0, 1, 2, 5, 16, 40, 10**9)) for _ in range(2)]
        if self.chance(0.25):
            found["attn_mask"] = self.mask(shape)
        if self.chance(0.2):
            batch = lead[:-1]
            one = not batch or self.chance(0.4)
            axes = [] if one else [1 if self.chance(0.3) else n for n in batch]
            dtype = self.pick(("int", "int64", "int32", "uint8")) if nk < 256 else self.pick(("int", "int64"))
            found["key_lengths"] = {
                "dtype": dtype,
                "axes": axes,
                "values": self.rng.integers(0, nk + 1, axes).tolist(),
            }
        if documents and nq <= nk and not isinstance(found.get("causal"), int) and self.chance(0.15):
            axes = lead[:-1] if self.chance(0.4) else []
            runs = self.integer(1, 5)
            found["document_ids"] = {
                "axes": axes,
                "runs": runs,
                "dtype": self.pick(("int64", "int32", "int8")),
            }
        return found

    def mask(self, shape: Case) -> Case:
        full = [*shape["lead"], shape["nq"], shape["nk"]]
        axes = [1 if self.chance(0.3) else n for n in full]
        axes = axes[self.integer(0, len(axes)) :] if self.chance(0.4) else axes
        dtype = "bool" if self.chance(0.5) else self.kind()
        return {
            "axes": axes,
            "dtype": dtype,
            "hidden": self.pick((0.0, 0.1, 0.4, 0.9)),
            "profile": self.pick(("normal", "zeros", "wide", "extreme")) if self.chance(0.4) else "normal",
            "strides": self.pick(LAYOUTS) if self.chance(0.3) else "c",
        }

    def tables(self, shape: Case) -> Case:
        """Tables over distances: arrays [axes of heads, spread] or the name of a function."""
        found: Case = {}
        for name in ("distance_scale", "distance_bias"):
            if self.chance(0.08):
                lead = [n if self.chance(0.5) else 1 for n in shape["lead"][-1:]] if self.chance(0.5) else []
                found[name] = (
                    ["function", self.pick(("decay", "sine", "signed"))]
                    if self.chance(0.4)
                    else ["array", lead]
                )
        return found

    def normalizer(self, shape: Case, *, softmax: bool = False) -> Any:
        """["name", name] or [class, arguments]."""
        how = self.rng.random()
        if how < (0.5 if softmax else 0.35):
            return ["name", "softmax"]
        if softmax or how < 0.5:
            heads = shape["lead"][-1] if shape["lead"] else 1
            logits = [self.number(3) for _ in range(heads)] if self.chance(0.5) and heads else self.number(3)
            return self.pick(
                (
                    ["SoftmaxN", 1],
                    ["SoftmaxN", abs(self.number()) + 1e-3],
                    ["Sink", logits],
                    ["name", "softmax_1"],
                )
            )
        return self.pick(
            (
                ["Sigmoid", None], ["Sigmoid", self.number(2)], ["ReLU", "n"], ["ReLU", "sum"],
                ["SquaredReLU", "n"], ["SquaredReLU", "sum"], ["Softpick", self.pick((1e-8, 0.0, 0.5))],
                ["Sparsemax"], ["Entmax", self.pick((1.5, 1.05, 1.25, 2.0, 2.5, 3.0, 4.0))],
                ["TopK", self.pick((1, 2, 3, 8, 40))], ["Entmax", 1.5], ["name", "softpick"],
            )
        )  # fmt: skip


_LAWS = (
    ["SSMax", {"s": 0.3, "b": 0.4}],
    ["LogN", {"base": 64.0, "floor": 2.0}],
    ["LogNFromTraining", {"train_length": 8.0}],
    ["QwenLogN", {"train_length": 4.0}],
    ["GrokTemperature", {"length": 4.0}],
    ["MinistralTemperature", {"beta": 0.5, "length": 4.0}],
    ["Llama4Temperature", {"a": 0.3, "floor": 4.0}],
    ["BeamTemperature", {"exponent": 0.2, "length": 4.0}],
    ["InklingTemperature", {"alpha": 0.5, "floor": 4.0}],
    ["SelectiveTemperature", {"strength": 0.3}],
    ["LogPower", {"power": 0.5, "base": 8.0}],
    ["NoPETemperature", {"slope": 0.3, "train_length": 4.0}],
    ["ASEntmax", {"delta": 1.0, "beta": 0.3, "gamma": 1.0}],
    ["Annealed", {"n0": 8.0}],
    ["InfoScale", {"train_length": 8.0}],
    ["Kappa", {"kappa": 2.0}],
    ["Constant", {"value": 0.7}],
    ["ScaleInvariant", {"tau": 10.0}],
)
