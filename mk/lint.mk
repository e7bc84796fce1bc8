# SPDX-License-Identifier: BSD-3-Clause
#
#: Linters

.PHONY: lint lint-python lint-workflows lint-cpp format

CPP_OWN := $(shell find cpp/include cpp/src cpp/bindings cpp/tests cpp/examples cpp/wasm -name '*.?pp')

lint: lint-python lint-workflows lint-cpp ## lint-python, lint-workflows, then lint-cpp

lint-python: $(STAMPS)/test-tools ## codespell, first lines, ruff, mypy --strict
	$(call say,codespell first lines ruff mypy)
	$(BIN)/codespell
	$(BIN)/python scripts/check-first-lines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Programs, outside the environment.
LINTERS := build/workflow-linters

$(LINTERS): packaging/workflow-linters.txt $(STAMPS)/venv
	$(call say,linters of workflows)
	@rm -rf $@
	@$(PIP_INSTALL) --no-deps --require-hashes --target $@ -r $<
	@touch $@

# The source archive has no workflows.
lint-workflows: $(LINTERS) ## actionlint and zizmor, without network (in check)
	$(call say,actionlint zizmor)
	$(if $(wildcard .github),PYTHONPATH=$(LINTERS) $(LINTERS)/bin/actionlint)
	$(if $(wildcard .github),$(LINTERS)/bin/zizmor --offline --quiet --persona pedantic .github)

lint-cpp: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-lint ## clang-format, each header alone, clang-tidy
	$(call say,clang-format$(comma) headers alone$(comma) clang-tidy)
	clang-format-14 --dry-run --Werror $(CPP_OWN)
	scripts/check-headers
	scripts/clang-tidy $(BIN)/python

format: $(STAMPS)/test-tools $(STAMPS)/system-lint ## apply the formatters
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .
	clang-format-14 -i $(CPP_OWN)
