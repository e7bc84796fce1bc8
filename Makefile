# SPDX-License-Identifier: BSD-3-Clause
#
# `make help` lists the targets. The rules are in mk/, a file a subject.
#
# You need python3 (>= 3.11), make and g++. Finished steps are not repeated: their stamps are in .venv/stamps, and go
# with it. WARNINGS_ARE_ERRORS=ON holds for the build of the package and for g++, and is what .ci/run sets; the other
# compilers of `make check` always treat warnings as errors.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
WASM := python/attnscale/_wasm/attnscale.wasm.gz
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
# The installed package, the wheel that a test builds and the library of the C++ tests share compiled objects. The base
# is cpp/ and no folder above it, or paths of system headers depend on the depth of the build folder.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CCACHE_BASEDIR ?= $(CURDIR)/cpp
export CCACHE_NOHASHDIR ?= 1
# The compiler's list of headers is enough for ccache: no file is preprocessed a second time.
export CCACHE_DEPEND ?= 1
export WARNINGS_ARE_ERRORS ?= OFF
export SKBUILD_CMAKE_DEFINE ?= CMAKE_COMPILE_WARNING_AS_ERROR=$(WARNINGS_ARE_ERRORS)
# The search path of the shell that runs make; commands here find the environment's programs, too.
CALLERS_PATH := $(PATH)
export PATH := $(PATH):$(CURDIR)/$(BIN)
# pip leaves bytecode to the first import (see scripts/pip-install), which must keep it whatever the caller's shell says:
# without bytecode, each process of a test takes three times as long to import NumPy.
unexport PYTHONDONTWRITEBYTECODE

CPP_SOURCES := $(shell find cpp cmake CMakeLists.txt -type f)
say = @scripts/step "$(1)"
comma := ,

# The steps use all cores themselves.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo test check docs clean

#: Main targets

# Where all levels are built already, they stay.
demo: $(STAMPS)/$(if $(wildcard $(STAMPS)/install),install,demo) ## build, install into .venv, and show the entropy of real attention heads
	@PATH='$(CALLERS_PATH)' $(BIN)/attnscale demo

# pip waits and unpacks on one core while C++ compiles on the others. In CI, whose next command is check, its tools, too.
test: ## before each commit: C++ tests at every SIMD level, then pytest; ALL=1 runs all files
	@scripts/step --begin
	@$(MAKE) --no-print-directory $(STAMPS)/install
	@STEPS=/dev/null $(MAKE) --no-print-directory $(STAMPS)/tools $(if $(CI),$(CHECK_TOOLS)) & tools=$$!; \
	$(MAKE) --no-print-directory $(STAMPS)/tested-cpp && wait $$tools || { kill $$tools 2>/dev/null; exit 1; }
	@$(MAKE) --no-print-directory test-python
	@scripts/step --end

# C++ steps run beside Python steps: alone, each leaves a core idle for a fifth of the time. Tools that both need are
# installed before. The log of the C++ steps is printed at the end.
CHECK_TOOLS = $(STAMPS)/tools $(addprefix $(STAMPS)/system-,build test clang lint neon browser) build/xsimd-newest \
  build/headers build/vision $(LINTERS) $(WHEEL_TOOLS)/ready
CHECK_CPP := lint-cpp test-clang test-shared test-asan test-neon
CHECK_PYTHON := lint-python lint-workflows test-levels wasm test-rest
BESIDE := STEPS=build/steps-cpp

check: ## what CI adds: linters, other levels and compilers, sanitizers, wheel, documentation
	@scripts/step --begin
	@$(BESIDE) scripts/step --begin
	@$(MAKE) --no-print-directory $(CHECK_TOOLS)
	@$(BESIDE) $(MAKE) --no-print-directory $(CHECK_CPP) > build/check-cpp.log 2>&1 & cpp=$$!; \
	trap "kill $$cpp" INT TERM; \
	$(MAKE) --no-print-directory $(CHECK_PYTHON); python=$$?; \
	wait $$cpp; cpp=$$?; cat build/check-cpp.log; [ $$python -eq 0 ] && [ $$cpp -eq 0 ]
	@$(BESIDE) scripts/step --end
	@scripts/step --end

docs: $(STAMPS)/tools | $(WASM) ## the documentation, in docs/_build/html; warnings are errors
	$(call say,documentation)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

help: ## this list; make alone prints it, too
	@scripts/make-help $(MAKEFILE_LIST)

clean: ## remove everything that make made
	rm -rf build dist third_party $(VENV) docs/_build attnscale-demo.png
	find . -name __pycache__ -prune -exec rm -rf {} +

include $(addprefix mk/,tools.mk lint.mk cpp.mk python.mk search.mk measure.mk wheels.mk)
