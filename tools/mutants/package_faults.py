# SPDX-License-Identifier: BSD-3-Clause
"""Faults of the Python package, of the documentation, of what is packed, and of the fuzzer."""

from __future__ import annotations

from .fault import Fault, pytest, tool

__all__ = ["PACKAGE_FAULTS"]

_PACKAGE = "python/attnscale"

_CALLS = (
    Fault(
        "a window reaches one key further back",
        f"{_PACKAGE}/_call/rows.py",
        'return _read_side("left", left), _read_side("right", right)',
        'return _read_side("left", left + 1), _read_side("right", right)',
        pytest("tests/attention/test_masks.py"),
    ),
    Fault(
        "True counts as a number of threads",
        f"{_PACKAGE}/_base/checks.py",
        "    if isinstance(value, (bool, np.bool_)):\n        raise refusal(TypeError, name",
        "    if isinstance(value, np.bool_):\n        raise refusal(TypeError, name",
        pytest("tests/conformance/test_refusals.py", k="NumPy"),
    ),
    Fault(
        "a mask of integers is an error of its value and not of its type",
        f"{_PACKAGE}/_call/rows.py",
        'raise TypeError(f"attn_mask must be bool or float',
        'raise ValueError(f"attn_mask must be bool or float',
        pytest("tests/conformance/test_refusals.py", k="NumPy"),
    ),
    Fault(
        "states of an engine merge as if their lse were natural",
        f"{_PACKAGE}/exact/state.py",
        "convert_lse(lse, from_=convention)",
        'convert_lse(lse, from_="attnscale")',
        pytest("tests/attention/test_lse.py", k="merge"),
    ),
    Fault(
        "states merge without what rounding took from their lse",
        f"{_PACKAGE}/exact/state.py",
        "_wide(part.lse, part.lse_rest) for part",
        "_wide(part.lse, None) for part",
        pytest("tests/attention/test_state.py", k="digits"),
    ),
    Fault(
        "plain operations of PyTorch add up a long row key after key",
        f"{_PACKAGE}/torch/_plain/rows.py",
        "        weights = softmax(scores)\n",
        "        weights = scores.softmax(-1)\n",
        pytest("tests/tensors/test_torch_sums.py", k="digits"),
    ),
    Fault(
        "an lse without the sink passes for one that counts it",
        f"{_PACKAGE}/exact/lse.py",
        "for sink in (True, False) if has_sink else (True,):",
        "for sink in (True,):",
        pytest("tests/attention/test_lse.py", k="told_from_its_numbers"),
    ),
    Fault(
        "a window that is off by one is not explained",
        f"{_PACKAGE}/conformance/_slips.py",
        '(("left", (1, 0)), ("right", (0, 1)), ("left and right", (1, 1)))',
        '(("right", (0, 1)), ("left and right", (1, 1)))',
        pytest("tests/conformance/test_slips.py", k="single and left"),
    ),
)

_SCALES = (
    Fault(
        "the error on other texts leaves out that heads differ",
        f"{_PACKAGE}/calibration/held_out.py",
        "of_texts, of_heads = (shares(rng, count, _DRAWS) for count in (texts, heads))",
        "of_texts, of_heads = shares(rng, texts, _DRAWS), np.full((_DRAWS, heads), 1 / heads)",
        pytest("tests/calibrate/test_held_out.py"),
    ),
    Fault(
        "a training length has a derivative of the other sign",
        f"{_PACKAGE}/laws/_log_n.py",
        "np.where(beta > 1, -beta / (length * math.log(length)), 0.0)",
        "np.where(beta > 1, beta / (length * math.log(length)), 0.0)",
        pytest("tests/laws/test_laws_derivatives.py"),
    ),
    Fault(
        "the audit takes one weight of YaRN for the other",
        f"{_PACKAGE}/audit/_rules/rope.py",
        'mscale_all_dim=_weight(rope, "mscale_all_dim")',
        'mscale_all_dim=_weight(rope, "mscale")',
        pytest("tests/audit/test_audit_spellings.py"),
    ),
    Fault(
        "the audit reads an old spelling of Phi-3 as YaRN",
        f"{_PACKAGE}/audit/_rules/rope.py",
        'if kind == "su" or (kind == "yarn" and keys.kind in ("phi3", "phi4_multimodal")):',
        'if kind == "su":',
        pytest("tests/audit/test_audit_spellings.py", "tests/audit/test_audit.py"),
    ),
    Fault(
        "every piece of an experiment draws the rows of the first one",
        f"{_PACKAGE}/montecarlo/_run.py",
        "draws.rows(key=key, first=tally.rows, count=min(piece, goal - tally.rows))",
        "draws.rows(key=key, first=0, count=min(piece, goal - tally.rows))",
        pytest("tests/montecarlo/test_montecarlo_run.py"),
    ),
)

_SWEEPS = (
    Fault(
        "two processes write into one store",
        f"{_PACKAGE}/_grid/files.py",
        "else fcntl.LOCK_EX",
        "else fcntl.LOCK_SH",
        pytest("tests/sweep/test_sweep_store.py", "tests/sweep/test_sweep_identity.py"),
    ),
    Fault(
        "a sweep that goes on draws from another seed",
        f"{_PACKAGE}/_sweep/plan.py",
        'seed=self.seed and seed_from_json(identity["seed"])',
        "seed=self.seed",
        pytest("tests/sweep/test_sweep_store.py"),
    ),
    Fault(
        "a damaged result of a sweep is taken for whole",
        f"{_PACKAGE}/_grid/store.py",
        'if checksum != _checksum(text, arrays) or not about["case"].startswith(case):',
        'if not about["case"].startswith(case):',
        pytest("tests/sweep/test_sweep_store.py"),
    ),
    Fault(
        "two parts of a sweep have a case in common",
        f"{_PACKAGE}/_grid/part.py",
        "cases[self.number - 1 :: self.of]",
        "cases[self.number - 1 :: max(self.of - 1, 1)]",
        pytest("tests/grid/test_parts.py"),
    ),
    Fault(
        "a merge of stores keeps the tally with fewer samples",
        f"{_PACKAGE}/_grid/merge.py",
        "return rows[1] > rows[0]",
        "return rows[1] < rows[0]",
        pytest("tests/grid/test_parts.py"),
    ),
    Fault(
        "the page of a report shows the strongest keys of another row",
        f"{_PACKAGE}/_report/text.py",
        "keys = np.take_along_axis(largest, order, -1)",
        "keys = np.roll(np.take_along_axis(largest, order, -1), 1, axis=1)",
        pytest("tests/report/test_report.py"),
    ),
    Fault(
        "effective keys on the command line depend on the unit of entropy",
        f"{_PACKAGE}/cli/entropy.py",
        'f"{np.exp(mean):.1f}"))',
        'f"{np.exp(mean / nats):.1f}"))',
        pytest("tests/cli/test_cli_units.py"),
    ),
)

_TORCH = (
    Fault(
        "what PyTorch's compiler is told of an output forgets the order of its axes",
        f"{_PACKAGE}/torch/_ops.py",
        "output = new(shape_in(call.layout, shape), dtype=dtype)",
        "output = new(shape, dtype=dtype)",
        pytest("tests/tensors/test_torch_gradients.py", k="shapes_without_data"),
    ),
    Fault(
        "a block of queries sees the keys of the block before it",
        f"{_PACKAGE}/torch/_plain/scores.py",
        "return x if x.shape[-2] == 1 else x[..., start:stop, :]",
        "return x if x.shape[-2] == 1 else x[..., : stop - start, :]",
        pytest("tests/conformance/test_values.py", k="operations and float"),
    ),
    Fault(
        "a training that goes on has forgotten the moments of AdamW",
        f"{_PACKAGE}/experiments/_train.py",
        '        self.optimizer.load_state_dict(state["optimizer"])\n',
        "",
        pytest("tests/experiments/test_frame.py", k="killed_in_the_middle"),
    ),
    Fault(
        "few large clusters of texts count as as many of equal size",
        f"{_PACKAGE}/experiments/_verdict.py",
        "len(ids) ** 2 / np.square(sizes).sum()",
        "len(sizes)",
        pytest("tests/experiments/test_verdict.py", k="degrees_of_freedom"),
    ),
)

_PAGES = (
    Fault(
        "the README prints a number that the example does not",
        "README.md",
        "log_n          3.18 -> 4.30 nat",
        "log_n          3.18 -> 4.33 nat",
        pytest("tests/package/test_docs.py", k="first_look"),
    ),
    Fault(
        "a page prints a number that its command does not",
        "docs/i-have.md",
        "64  L0 H0     3.886   48.7",
        "64  L0 H0     3.868   48.7",
        pytest("tests/package/test_i_have.py", k="commands_print"),
    ),
    Fault(
        "the table of claims has another number than the details",
        "docs/claims.md",
        "| 0.5 at 64 keys, 0.057 at 1024 |",
        "| 0.5 at 64 keys, 0.075 at 1024 |",
        pytest("tests/package/test_docs.py", k="numbers_of_the_tables"),
    ),
    Fault(
        "the formula of a law is no longer the one that is typeset",
        "docs/_ext/_law_formulas.py",
        '"kappa * ln(n) / head_dim"',
        '"kappa * ln(n) / sqrt(head_dim)"',
        pytest("tests/package/test_docs.py", k="every_law_has_its_place"),
    ),
    Fault(
        "a public function is not in the reference",
        "docs/reference/attention.md",
        ".. autofunction:: entropy_curve\n",
        "",
        pytest("tests/package/test_docs.py", k="public_name"),
    ),
    Fault(
        "a page links to a section that does not exist",
        "docs/explanation/results.md",
        "(training-evidence.md#tasks-where-only-the-length-changes)",
        "(training-evidence.md#tasks-where-the-length-changes)",
        tool("sphinx"),
        target="check",
    ),
)

_PACKING = (
    Fault(
        "the sdist is without the tests",
        "pyproject.toml",
        'sdist.exclude = [".ci", ',
        'sdist.exclude = [".ci", "tests", ',
        pytest("tests/package/test_distributions.py", k="is_the_repository"),
        target="check",
    ),
    Fault(
        "a function is annotated with a type that it does not return",
        f"{_PACKAGE}/_base/checks.py",
        "def number(name: str, value: Any) -> float:",
        "def number(name: str, value: Any) -> int:",
        tool("mypy"),
        target="check",
    ),
    Fault(
        "a module is imported and not used",
        f"{_PACKAGE}/exact/curve.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport math\n",
        tool("ruff"),
        target="check",
    ),
    Fault(
        "the fuzzer's limit is a thousand times too wide",
        "tools/fuzz/compare.py",
        "(difference <= limit) & finite | overflow",
        "(difference <= 1000 * limit) & finite | overflow",
        pytest("tests/promises/test_fuzz.py", k="planted_fault and errors"),
    ),
)

PACKAGE_FAULTS = (*_CALLS, *_SCALES, *_SWEEPS, *_TORCH, *_PAGES, *_PACKING)
