# SPDX-License-Identifier: BSD-3-Clause
#
#: Searches for errors, not part of test or check

.PHONY: tomorrow yesterday mutants kills fuzz fuzz-asan fuzz-tsan audit-scan audit-fuzz audit-frameworks probe-planted

# In a folder of their own, build/tomorrow and build/yesterday: remove it to look for newer versions. VERSIONS=--only=--lf
# or VERSIONS='--only "tests/laws -x"' runs less, VERSIONS=--write stores the table "tested with" of docs/installation.md.
tomorrow: $(STAMPS)/venv ## the tests with the newest Python, NumPy, PyTorch ... of the index
	$(call say,the newest versions)
	JOBS=$(JOBS) $(BIN)/python -m tools.versions tomorrow $(VERSIONS)

yesterday: $(STAMPS)/venv $(STAMPS)/system-build ## the tests with the oldest versions that pyproject.toml names
	$(call say,the oldest versions)
	JOBS=$(JOBS) $(BIN)/python -m tools.versions yesterday $(VERSIONS)

mutants: $(STAMPS)/tools $(STAMPS)/system-test ## plant faults in a copy, and name the test that catches each: half an hour
	$(call say,faults planted one after the other)
	$(BIN)/python -m tools.mutants $(MUTANTS)

kills: $(STAMPS)/tools ## commands killed a thousand times, and stores begun by two at once: half an hour
	$(call say,what stores keep)
	$(BIN)/python -m tools.faults.pairs
	$(BIN)/python -m tools.faults.kills $(KILLS)

FUZZ_SECONDS ?= 3600
FUZZ_SEED ?= 1
FUZZ := --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) --jobs $(JOBS)

fuzz: $(STAMPS)/test-tools ## random calls against extended precision (FUZZ_SECONDS=3600 FUZZ_SEED=1)
	$(call say,random calls against extended precision)
	$(BIN)/python -m tools.fuzz $(FUZZ)

fuzz-asan fuzz-tsan: fuzz-%: $(STAMPS)/test-tools ## random calls under a sanitizer
	$(call say,random calls under the $* sanitizer)
	scripts/sanitized $(CURDIR)/$(BIN)/python $* -m tools.fuzz $(FUZZ)

# Measurements are kept in build/audit-scan, by version of transformers.
audit-scan: $(STAMPS)/tools ## every config class of transformers, key by key; goes on where it stopped
	$(call say,the audit against the code of transformers)
	$(BIN)/python -m tools.audit.scan --processes $(JOBS) $(SCAN)

audit-fuzz: $(STAMPS)/test-tools ## 100 000 broken configs
	$(call say,the audit on broken configs)
	$(BIN)/python -m tools.audit.fuzz --count 100000 --seed $(FUZZ_SEED)

# It needs pip's index. PACKAGES="vllm sglang" looks at these alone; PACKAGES=--write stores what was read.
audit-frameworks: $(STAMPS)/tools ## whether vLLM, SGLang and mlx-lm of today are as on record
	$(call say,the record of frameworks against their newest packages)
	$(BIN)/python -m tools.audit.frameworks $(PACKAGES)

probe-planted: $(STAMPS)/tools ## engines with one fault each, and whether a probe names it: a quarter of an hour
	$(call say,faults planted into transformers)
	$(BIN)/python -m tools.probe.run_planted $(PLANTED)
