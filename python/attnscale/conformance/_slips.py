# SPDX-License-Identifier: BSD-3-Clause
"""Known slips of engines by name, each as a change of a call's draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..exact.lse_conventions import in_bfloat16, in_float16
from ._draft import Draft, Places, draft_of

#: Changes a draft; returns False where the slip cannot show in the call.
Change = Callable[[Draft], Any]


class Slip(NamedTuple):
    """A slip in words, and its change of a draft.

    `loose`: the factor of the tolerance, above 1 where the slip also loses digits of scores.
    """

    says: str
    change: Change
    loose: float = 1.0

    def apply(self, draft: Draft) -> Draft | None:
        """A changed draft, or None where the slip cannot show."""
        made = draft.copy()
        if self.change(made) is False:
            return None
        made.changed = (*draft.changed, self.says)
        return made


# ---- scale and soft-cap -----------------------------------------------------------------------------


def _is_given(d: Draft, name: str) -> bool:
    return d.options.get(name) is not None


def _no_scale(d: Draft) -> Any:
    d.scale = 1.0
    return "qk_norm" not in d.case.options


def _default(d: Draft) -> float:
    return 1 / float(np.sqrt(max(d.query.shape[-1], 1)))


def _other_default(of: Callable[[Draft], float], d: Draft) -> Any:
    if _is_given(d, "scale") or "qk_norm" in d.case.options or of(d) <= 0:
        return False
    d.scale = of(d)
    return None


def _heads(d: Draft) -> int:
    return max(d.query.shape[-3], 1) if d.query.ndim > 2 else 1


def _scale_unread(d: Draft) -> Any:
    d.scale = _default(d)
    return _is_given(d, "scale")


def _scale_zero_unread(d: Draft) -> Any:
    given = np.asarray(d.scale)
    d.scale = np.where(given == 0, _default(d), given)
    return bool((given == 0).any())


def _scale_unsigned(d: Draft) -> Any:
    d.scale = np.abs(d.scale)
    return bool((np.asarray(d.case.options.get("scale", 1)) < 0).any())


def _scale_divides(d: Draft) -> Any:
    if not _is_given(d, "scale") or (np.asarray(d.scale) == 0).any():
        return False
    d.scale = 1 / np.asarray(d.scale)
    return None


def _base_2(d: Draft) -> None:
    d.base = 2.0


def _cap_at(stage: str, d: Draft) -> Any:
    d.cap = stage
    return _is_given(d, "softcap")


def _cap_over_hidden(d: Draft) -> Any:
    """A soft-cap of -inf is a number."""
    if not _is_given(d, "softcap") or d.lets is None or d.added is None or d.lets.all():
        return False
    d.cap, d.added, d.lets = "over the mask", np.where(d.lets, d.added, -np.inf), None
    return None


def _cap_over_all(d: Draft) -> Any:
    """A soft-cap of -inf is a number, whatever hides the key."""
    if not _is_given(d, "softcap"):
        return False
    d.cap, d.hidden = "over the mask", -float(d.options["softcap"])
    return None


def _ignore(name: str, d: Draft) -> Any:
    given = d.options.pop(name, None)
    if name == "attn_mask":
        d.lets = d.added = None
    return given is not None


# ---- positions --------------------------------------------------------------------------------------


def _is_causal(d: Draft) -> bool:
    return bool(d.options.get("is_causal")) or _is_given(d, "causal")


def _causal_by(keeps: Callable[[Places], Any], d: Draft) -> Any:
    d.causal = keeps
    return _is_causal(d)


def _not_causal(d: Draft) -> Any:
    was = _is_causal(d)
    d.options.pop("is_causal", None)
    d.options.pop("causal", None)
    return was


def _aligned(causal: str | int, d: Draft) -> Any:
    if not _is_causal(d):
        return False
    d.options.pop("is_causal", None)
    d.options["causal"] = causal
    return None


def _absolute_offset(d: Draft) -> Any:
    d.offset = lambda lengths, queries: abs(lengths - queries)
    return d.options.get("causal") == "bottom_right"


def _last_row_open(at: Places) -> Any:
    return (at.distance <= 0) | (at.i == at.n_queries - 1)


def _in_blocks(of: int, at: Places) -> Any:
    position = at.j - at.distance
    return at.j // of <= position // of


def _window_moved(by_left: int, by_right: int, d: Draft) -> Any:
    left, right = d.options.get("window") or (None, None)
    sides = (None if left is None else left + by_left, None if right is None else right + by_right)
    d.options["window"] = sides
    is_moved = (left is not None and by_left) or (right is not None and by_right)
    return bool(is_moved) and all(x is None or x >= 0 for x in sides)


def _window_open(side: int, d: Draft) -> Any:
    sides = list(d.options.get("window") or (None, None))
    given, sides[side] = sides[side], None
    d.options["window"] = tuple(sides)
    return given is not None


def _lengths_by(keeps: Callable[[Places], Any], d: Draft) -> Any:
    d.within = keeps
    return _is_given(d, "key_lengths")


def _first_text(name: str, d: Draft) -> Any:
    """One text's lengths, documents or mask for all."""
    given = d.options.get(name)
    if given is None or np.ndim(given) < (4 if name == "attn_mask" else 1):
        return False
    if name == "attn_mask":
        d.lets, d.added = (None if x is None else x[:1] for x in (d.lets, d.added))
    elif name == "document_ids" and np.ndim(given) < 2:
        return False
    else:
        d.options[name] = np.broadcast_to(np.asarray(given)[:1], np.shape(given))
    return None


def _first_head(d: Draft) -> Any:
    """The mask of one head for all."""
    if not _is_given(d, "attn_mask") or np.ndim(_mask(d)) < 3 or np.shape(_mask(d))[-3] == 1:
        return False
    d.lets, d.added = (None if x is None else x[..., :1, :, :] for x in (d.lets, d.added))
    return None


# ---- masks ------------------------------------------------------------------------------------------


def _mask(d: Draft) -> Any:
    return np.asarray(d.options.get("attn_mask", 0.0))


def _is_boolean(d: Draft) -> bool:
    return _is_given(d, "attn_mask") and _mask(d).dtype == np.bool_


def _ignore_mask(d: Draft) -> Any:
    return _ignore("attn_mask", d)


def _only_one(change: Change, d: Draft) -> Any:
    """A mask that is lost where there are two."""
    return _is_causal(d) and _is_given(d, "attn_mask") and change(d)


def _inverted(d: Draft) -> Any:
    if not _is_boolean(d):
        return False
    d.lets = ~_mask(d)
    return None


def _added_as_numbers(d: Draft) -> Any:
    if not _is_boolean(d):
        return False
    d.lets, d.added = None, _mask(d).astype(np.float64)
    return None


def _read_as_boolean(of: Callable[[Any], Any], d: Draft) -> Any:
    if not _is_given(d, "attn_mask") or _is_boolean(d):
        return False
    d.lets, d.added = of(_mask(d)), None
    return None


def _mask_scaled(d: Draft) -> Any:
    if d.added is None:
        return False
    scale = np.asarray(d.scale)
    d.added = d.added * (scale[..., None] if scale.ndim else scale)
    return None


def _mask_padded(d: Draft) -> Any:
    """The first column alone is read; other keys are hidden."""
    n_keys = d.key.shape[-2]
    if not _is_given(d, "attn_mask") or np.shape(_mask(d))[-1:] != (1,) or n_keys < 2 or d.lets is None:
        return False
    d.lets = np.broadcast_to(d.lets, (*d.lets.shape[:-1], n_keys)) & (np.arange(n_keys) == 0)
    return None


def _hidden_score(number: float, d: Draft) -> Any:
    d.hidden = number


def _hidden_kept(d: Draft) -> None:
    d.keeps = float(np.exp(-20.0))


def _mask_leaks(number: float, d: Draft) -> Any:
    if not _is_boolean(d):
        return False
    d.lets, d.added = None, np.where(_mask(d), 0, number)
    return None


def _leaks(number: float, d: Draft) -> None:
    d.leak = number


# ---- sinks, heads, values, blocks -------------------------------------------------------------------


def _no_sink(d: Draft) -> Any:
    was, d.sink = d.sink, None
    return was is not None


def _sink_scaled(d: Draft) -> Any:
    if d.sink is None:
        return False
    scale = np.asarray(d.scale)
    d.sink = d.sink * (scale[..., None] if scale.ndim else scale)
    return None


def _sink_unshifted(d: Draft) -> Any:
    d.sink_is_shifted = False
    return d.sink is not None


def _one_sink(d: Draft) -> Any:
    if np.ndim(d.sink) == 0:
        return False
    d.sink = d.sink[:1]
    return None


def _tiled(names: tuple[str, ...], d: Draft) -> Any:
    heads, moved = _heads(d), False
    for name in names:
        own = getattr(d, f"{name}_heads")
        if own is not None:
            other = np.arange(heads) % getattr(d, name).shape[-3]
            moved = moved or not np.array_equal(own, other)
            setattr(d, f"{name}_heads", other)
    return moved


def _values_are(name: str, d: Draft) -> Any:
    other = getattr(d, name)
    if other.shape[-1] != d.value.shape[-1] or other.shape[-2] != d.value.shape[-2]:
        return False
    d.value = np.broadcast_to(other, np.broadcast_shapes(other.shape, d.value.shape))
    if d.value_heads is not None and name == "key" and d.value.shape[-3] != other.shape[-3]:
        return False
    return None


def _zeros(d: Draft) -> None:
    d.zeros = True


def _counted(times: float, start: int, d: Draft) -> Any:
    n = d.key.shape[-2]
    if n <= start:
        return False
    d.counts = np.where(np.arange(n) < start, 1.0, times)
    return None


def _incomplete_lost(block: int, d: Draft) -> Any:
    n = d.key.shape[-2]
    if n <= block or n % block == 0:
        return False
    return _counted(0.0, n - n % block, d)


def _overlapping(block: int, d: Draft) -> Any:
    """A last block that ends with the keys, and begins within the one before."""
    n = d.key.shape[-2]
    if n <= block or n % block == 0:
        return False
    j = np.arange(n)
    d.counts = np.where((j >= n - block) & (j < n // block * block), 2.0, 1.0)
    return None


def _rounded(name: str, d: Draft) -> Any:
    to = {"bfloat16": in_bfloat16, "float16": in_float16}[name]
    if d.dtype not in ("float32", "float64"):
        return False
    # A draft holds arrays after qk_norm: round those of the call.
    made = draft_of(d.case, [to(x) for x in (_as_given(d, x) for x in (d.query, d.key, d.value))], d.dtype)
    d.query, d.key, d.value = made.query, made.key, made.value
    return None


def _as_given(d: Draft, x: Any) -> Any:
    return x.swapaxes(-3, -2) if d.options.get("layout") == "bshd" and x.ndim > 2 else x


def _overflows(d: Draft) -> Any:
    d.narrow = True
    return d.dtype == "float16"


def _scale_slips() -> Iterator[Slip]:
    yield Slip("the scale is not applied", _no_scale)
    yield Slip("the scale is applied twice", partial(_other_default, lambda d: _default(d) ** 2))
    by_value = partial(_other_default, lambda d: 1 / float(np.sqrt(max(d.value.shape[-1], 1))))
    yield Slip("the scale is that of the value's width", by_value)
    yield Slip(
        "the scale is that of all heads' width",
        partial(_other_default, lambda d: _default(d) / _heads(d) ** 0.5),
    )
    yield Slip("scale is not read", _scale_unread)
    yield Slip("scale 0 is read as not given", _scale_zero_unread)
    yield Slip("the sign of the scale is lost", _scale_unsigned)
    yield Slip("the given scale divides", _scale_divides)
    yield Slip("the exponential is in base 2", _base_2)
    yield Slip("softcap is not read", partial(_ignore, "softcap"))
    yield Slip("the soft-cap is applied over the mask", partial(_cap_at, "over the mask"))
    yield Slip("the soft-cap is applied over the mask: hidden keys keep exp(-cap)", _cap_over_hidden)
    yield Slip("the soft-cap is applied over every mask: hidden keys keep exp(-cap)", _cap_over_all)
    yield Slip("the soft-cap is applied before the scale", partial(_cap_at, "before the scale"))
    yield Slip("the soft-cap does not divide", partial(_cap_at, "undivided"))


def _position_slips() -> Iterator[Slip]:
    yield Slip("the causal mask is not read", _not_causal)
    yield Slip("the causal mask is aligned at the last keys", partial(_aligned, "bottom_right"))
    yield Slip("the causal mask is aligned at the first keys", partial(_aligned, 0))
    yield Slip("the causal mask hides a query's own key", partial(_causal_by, lambda at: at.distance < 0))
    yield Slip("the causal mask shows the next key", partial(_causal_by, lambda at: at.distance <= 1))
    yield Slip("the causal mask is mirrored", partial(_causal_by, lambda at: at.distance >= 0))
    yield Slip("the last query has no causal mask", partial(_causal_by, _last_row_open))
    yield Slip("the causal offset is absolute", _absolute_offset)
    for of in (2, 4, 8, 16, 32, 64, 128):
        yield Slip(f"the causal mask is in blocks of {of}", partial(_causal_by, partial(_in_blocks, of)))
    yield Slip("window is not read", partial(_ignore, "window"))
    yield Slip("the left end of the window is not read", partial(_window_open, 0))
    yield Slip("the right end of the window is not read", partial(_window_open, 1))
    for side, moved in (("left", (1, 0)), ("right", (0, 1)), ("left and right", (1, 1))):
        yield Slip(f"the window is 1 key longer on the {side}", partial(_window_moved, *moved))
        yield Slip(f"the window is 1 key shorter on the {side}", partial(_window_moved, -moved[0], -moved[1]))
    yield Slip("key_lengths is not read", partial(_ignore, "key_lengths"))
    yield Slip("key_lengths are 1 too long", partial(_lengths_by, lambda at: at.j < at.lengths + 1))
    yield Slip("key_lengths are 1 too short", partial(_lengths_by, lambda at: at.j < at.lengths - 1))
    yield Slip(
        "key_lengths count from the end", partial(_lengths_by, lambda at: at.j >= at.n_keys - at.lengths)
    )
    yield Slip("document_ids is not read", partial(_ignore, "document_ids"))
    yield Slip("attn_mask of the first head holds for all", _first_head)
    for name in ("key_lengths", "document_ids", "attn_mask"):
        yield Slip(f"{name} of the first text holds for all", partial(_first_text, name))
    yield Slip("distance_bias is not read", partial(_ignore, "distance_bias"))
    yield Slip("distance_scale is not read", partial(_ignore, "distance_scale"))


def _mask_slips() -> Iterator[Slip]:
    yield Slip("attn_mask is not read", partial(_ignore, "attn_mask"))
    yield Slip("attn_mask is not read beside a causal mask", partial(_only_one, _ignore_mask))
    yield Slip("the causal mask is not read beside attn_mask", partial(_only_one, _not_causal))
    yield Slip("True in attn_mask hides a key", _inverted)
    yield Slip("a boolean attn_mask is added as 0 and 1", _added_as_numbers)
    yield Slip("a float attn_mask is read as boolean", partial(_read_as_boolean, lambda mask: mask > -1e4))
    yield Slip(
        "a float attn_mask is read as boolean: other than 0 is seen",
        partial(_read_as_boolean, lambda mask: mask != 0),
    )
    yield Slip("a float attn_mask is scaled", _mask_scaled)
    yield Slip("hidden scores are 0", partial(_hidden_score, 0.0))
    yield Slip("hidden keys keep exp(-20)", _hidden_kept)
    yield Slip("attn_mask of one column is padded, not repeated", _mask_padded)
    for number in (-1e4, -3e4, -1e5, -1e9):
        adds = f"adds {number:.0f}: hidden keys leak"
        yield Slip(f"a boolean attn_mask {adds}", partial(_mask_leaks, number), 20.0)
        yield Slip(f"every mask {adds}", partial(_leaks, number), 20.0)


def _other_slips() -> Iterator[Slip]:
    yield Slip("the sink is missing", _no_sink)
    yield Slip("the sink is scaled", _sink_scaled)
    yield Slip("the sink is not shifted by the largest score", _sink_unshifted)
    yield Slip("the first head's sink holds for all", _one_sink)
    yield Slip("key heads repeat as a whole, not each in its place", partial(_tiled, ("key", "value")))
    yield Slip("value heads repeat as a whole, not each in its place", partial(_tiled, ("value",)))
    yield Slip("heads of the key alone repeat as a whole", partial(_tiled, ("key",)))
    yield Slip("values are keys", partial(_values_are, "key"))
    yield Slip("values are queries", partial(_values_are, "query"))
    yield Slip("the output is zeros", _zeros)
    for start in (64, 128, 256, 512, 1024, 2048, 4096):
        yield Slip(f"keys from {start} on count twice", partial(_counted, 2.0, start))
        yield Slip(f"keys from {start} on are lost", partial(_counted, 0.0, start))
    for block in (64, 128, 256, 512, 1024, 2048):
        yield Slip(
            f"the last block of {block} keys begins too early: keys count twice", partial(_overlapping, block)
        )
    for block in (16, 32, 64, 128, 256, 512, 1024):
        yield Slip(f"an incomplete last block of {block} keys is lost", partial(_incomplete_lost, block))
    for name in ("bfloat16", "float16"):
        yield Slip(f"numbers are rounded to {name}", partial(_rounded, name), 8.0)
    yield Slip("scores overflow float16", _overflows)


#: Every known slip; of two that explain the same, the first is named.
SLIPS = (*_scale_slips(), *_position_slips(), *_mask_slips(), *_other_slips())
