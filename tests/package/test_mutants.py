# SPDX-License-Identifier: BSD-3-Clause
"""`make mutants` takes half an hour: that its faults can still be planted is seen here."""

from __future__ import annotations

import re
from fnmatch import filter

from cases import case

from tools.mutants.__main__ import FAULTS
from tools.mutants.tree import ROOT


def test_every_fault_has_one_place():
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) >= 40
    for fault in FAULTS:
        with case(fault.name):
            assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
            assert fault.old != fault.new


def test_every_step_names_tests_that_are_there():
    for fault in FAULTS:
        for step in fault.steps:
            with case(fault.name):
                assert step.kind in ("pytest", "cpp", "asan", "tool")
                for word in step.words:
                    if step.kind == "pytest" and word.endswith(".py"):
                        assert (ROOT / word).is_file()
                if step.kind in ("cpp", "asan"):
                    source = (ROOT / "cpp" / "tests" / f"{step.words[0]}.cpp").read_text(encoding="utf-8")
                    cases = re.findall(r'TEST_CASE\("([^"]*)"', source)
                    for name in step.words[1:]:
                        assert filter(cases, name), name
