# SPDX-License-Identifier: BSD-3-Clause
#
#: Distributions

.PHONY: wasm test-wasm wheels wheels-again check-wheels check-sdist check-ports rehearse release

# Not part of `make check`: the compiler has 411 MB, and all targets take a quarter of an hour.
WHEEL_TOOLS := build/wheel-tools

$(WHEEL_TOOLS)/ready: packaging/wheel-tools.txt scripts/make-venv scripts/system-packages
	$(call say,what builds wheels: zig$(comma) auditwheel)
	@scripts/system-packages build
	@scripts/make-venv $(PYTHON) $(WHEEL_TOOLS)
	@$(WHEEL_TOOLS)/bin/pip install -q --no-compile --disable-pip-version-check -r packaging/wheel-tools.txt
	@touch $@

# Built only if missing; `make wasm` always builds it, and the program of tests/conformance.
$(WASM): | $(WHEEL_TOOLS)/ready build/xsimd-newest build/headers
	$(call say,the core in WebAssembly)
	$(WHEEL_TOOLS)/bin/python packaging/build_wasm.py

wasm: $(WHEEL_TOOLS)/ready build/xsimd-newest build/headers ## the core as a WebAssembly module (in check)
	$(call say,the core in WebAssembly)
	$(WHEEL_TOOLS)/bin/python packaging/build_wasm.py --conformance

# They compile for three minutes; check compares the module and the program with Python.
test-wasm: $(WHEEL_TOOLS)/ready build/xsimd-newest build/headers $(STAMPS)/tools ## the C++ tests as WebAssembly, in wasmtime
	$(call say,C++ tests: WebAssembly)
	$(WHEEL_TOOLS)/bin/python packaging/build_wasm.py --tests
	$(BIN)/pytest -q -m maintainer tests/wasm/test_wasm_cpp.py

# Headers of later versions of Python, and these Pythons to run.
LATER := $(addprefix build/python3.,13 14 15)

wheels: wasm $(LATER) ## Linux wheels (manylinux, musllinux) and the source archive, in dist
	$(call say,wheels and source archive)
	$(WHEEL_TOOLS)/bin/python packaging/build_wheels.py dist

# The second build is in another folder, without a compiler cache.
wheels-again: wasm $(LATER) ## build them twice: the bytes must be the same
	$(call say,wheels and source archive$(comma) twice)
	$(WHEEL_TOOLS)/bin/python packaging/build_wheels.py dist --again

check-wheels: $(WHEEL_TOOLS)/ready build/arm64 build/musl $(STAMPS)/system-neon ## contents of the wheels; one on aarch64 under qemu, parts of one with musl
	$(call say,contents of the wheels$(comma) on aarch64 under qemu$(comma) with musl)
	$(WHEEL_TOOLS)/bin/python packaging/check_wheels.py dist --arm64 build/arm64 --musl build/musl

check-sdist: $(STAMPS)/venv ## pip installs the source archive without header libraries of the system
	$(call say,the source archive where the system has no xsimd$(comma) xtl and xtensor)
	packaging/check-sdist $(PYTHON) dist/attnscale-*.tar.gz build/sdist-check

check-ports: $(WHEEL_TOOLS)/ready $(STAMPS)/system-ports ## link the library for macOS and Windows; run the latter under Wine
	$(call say,the library for macOS on arm64 and Windows on x86-64: compiled and linked$(comma) and what can run is run)
	$(WHEEL_TOOLS)/bin/python packaging/check_ports.py

build/arm64 build/musl build/xsimd-newest $(LATER): build/%: packaging/unpack-packages
	packaging/unpack-packages $* $@

# Nothing but the files of dist is used, and what was downloaded before the network is gone.
rehearse: $(LATER) ## what a first user types, in empty environments without network, from dist alone
	$(call say,what a first user types$(comma) in empty environments without network)
	$(PYTHON) packaging/rehearse.py dist $(addprefix --unpacked ,$(LATER)) --cpp

# All files of a release, from a clean commit. What is done for that commit is not repeated.
RELEASE := dist/.made-$(shell git rev-parse HEAD 2>/dev/null || echo none)

release: ## all files of a release, checked and rehearsed; publishes nothing (FINAL=1: dated)
	@scripts/step --begin
	$(call say,version$(comma) changes$(comma) citation$(comma) clean tree)
	$(PYTHON) packaging/release.py check $(if $(FINAL),--final)
	@$(MAKE) --no-print-directory $(addprefix $(RELEASE)/,wheels check-wheels check-sdist docs)
	$(call say,documentation$(comma) bill of materials$(comma) sums)
	$(PYTHON) packaging/release.py beside dist
	cd dist && sha256sum attnscale-* > SHA256SUMS
	@$(MAKE) --no-print-directory rehearse
	@scripts/step --end

# The pages are built from nothing: one that was removed stays in a folder that was there.
$(RELEASE)/%:
	@$(if $(filter docs,$*),rm -rf docs/_build)
	@$(MAKE) --no-print-directory $*
	@mkdir -p $(@D)
	@touch $@
