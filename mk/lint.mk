# SPDX-License-Identifier: BSD-3-Clause
#
#: Linters

.PHONY: lint lint-python lint-cpp format

CPP_OWN := $(shell find cpp/include cpp/src cpp/bindings cpp/tests cpp/examples cpp/wasm -name '*.?pp')

lint: lint-python lint-cpp ## lint-python, then lint-cpp

lint-python: $(STAMPS)/test-tools ## codespell, first lines, ruff, mypy --strict
	$(call say,codespell first lines ruff mypy)
	$(BIN)/codespell
	$(BIN)/python scripts/check-first-lines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-cpp: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-lint ## clang-format, each header alone, clang-tidy
	$(call say,clang-format$(comma) headers alone$(comma) clang-tidy)
	clang-format-14 --dry-run --Werror $(CPP_OWN)
	scripts/check-headers
	scripts/clang-tidy $(BIN)/python

format: $(STAMPS)/test-tools $(STAMPS)/system-lint ## apply the formatters
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .
	clang-format-14 -i $(CPP_OWN)
