# SPDX-License-Identifier: BSD-3-Clause
#
#: Python tests

.PHONY: test-quick test-python test-levels test-rest test-threads test-threads-tsan

test-quick: $(STAMPS)/test-tools ## all but slow ones and those of PyTorch and JAX
	$(call say,pytest without the slow tests and those of torch and jax)
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile -m "not slow and not torch and not jax"

PYTEST := $(BIN)/pytest --durations=25 --durations-min=1
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-python: $(STAMPS)/tools ## at the SIMD level that this machine chooses (in test)
	$(call say,pytest)
	$(PYTEST) $(SIDE_BY_SIDE) $(if $(ALL),--all) -m "not maintainer"

# Tests that depend on the kernels, at the other levels of this machine. The files are named so that pytest
# does not read others, which import PyTorch. One process runs few tests: three would read all files.
test-levels: $(STAMPS)/test-tools ## at the other SIMD levels (in check)
	$(call say,pytest at the other SIMD levels)
	@levels=$$($(BIN)/python scripts/other_levels.py) && \
	files=$$(grep -rlE 'pytest\.mark\.levels' tests --include='test_*.py') && \
	for level in $$levels; do \
	  echo "-- $$level"; \
	  some=$${level#*:}; beside="$(SIDE_BY_SIDE)"; [ -z "$$some" ] || beside="-p no:xdist"; \
	  ATTNSCALE_SIMD=$${level%:*} $(PYTEST) -q $$beside -m levels -k "$$some" $$files || exit 1; \
	done

# Wheel and source archive, the documentation in a browser, reduced trainings, the audit's samples, the
# WebAssembly module. The files are named so that pytest does not read others.
test-rest: $(STAMPS)/tools $(STAMPS)/system-browser build/vision ## those with the mark maintainer (in check)
	$(call say,pytest: what a maintainer adds)
	@files=$$(grep -rlE 'mark\.maintainer' tests --include='*.py' | sed 's|/pairs.py||') && \
	$(PYTEST) $(SIDE_BY_SIDE) -m maintainer $$files

# For a free-threaded Python (3.14t with PYTHON_GIL=0).
test-threads: $(STAMPS)/test-tools ## calls from many threads
	$(call say,pytest: many Python threads)
	$(BIN)/pytest -q tests/runtime/test_many_threads.py

# With the GIL, which each long call releases.
test-threads-tsan: $(STAMPS)/test-tools ## calls from many threads, under the thread sanitizer
	$(call say,pytest: many Python threads under the thread sanitizer)
	scripts/sanitized $(CURDIR)/$(BIN)/python tsan -m pytest -q -p no:xdist tests/runtime/test_many_threads.py
