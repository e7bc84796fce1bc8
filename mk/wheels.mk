# SPDX-License-Identifier: BSD-3-Clause
#
#: Distributions

.PHONY: wasm wheels wheels-again check-wheels check-sdist check-ports

# Not part of `make check`: the compiler has 411 MB, and all targets take a quarter of an hour.
WHEEL_TOOLS := build/wheel-tools

$(WHEEL_TOOLS)/ready: packaging/wheel-tools.txt scripts/make-venv scripts/system-packages
	$(call say,what builds wheels: zig$(comma) auditwheel)
	@scripts/system-packages build
	@scripts/make-venv $(PYTHON) $(WHEEL_TOOLS)
	@$(WHEEL_TOOLS)/bin/pip install -q --no-compile --disable-pip-version-check -r packaging/wheel-tools.txt
	@touch $@

# Built only if missing; `make wasm` always builds it, and its tests.
$(WASM): | $(WHEEL_TOOLS)/ready build/xsimd-newest build/headers
	$(call say,the core in WebAssembly)
	$(WHEEL_TOOLS)/bin/python packaging/build_wasm.py

wasm: $(WHEEL_TOOLS)/ready build/xsimd-newest build/headers ## the core as a WebAssembly module (in check)
	$(call say,the core in WebAssembly)
	$(WHEEL_TOOLS)/bin/python packaging/build_wasm.py --tests

wheels: wasm ## Linux wheels (manylinux, musllinux) and the source archive, in dist
	$(call say,wheels and source archive)
	$(WHEEL_TOOLS)/bin/python packaging/build_wheels.py dist

# The second build is in another folder, without a compiler cache.
wheels-again: wasm ## build them twice: the bytes must be the same
	$(call say,wheels and source archive$(comma) twice)
	$(WHEEL_TOOLS)/bin/python packaging/build_wheels.py dist --again

check-wheels: $(WHEEL_TOOLS)/ready build/arm64 build/musl $(STAMPS)/system-neon ## contents of the wheels, and whether they run in empty environments
	$(call say,the wheels in empty environments$(comma) on aarch64 under qemu)
	$(WHEEL_TOOLS)/bin/python packaging/check_wheels.py dist --arm64 build/arm64 --musl build/musl

check-sdist: $(STAMPS)/venv ## pip installs the source archive without header libraries of the system
	$(call say,the source archive where the system has no xsimd$(comma) xtl and xtensor)
	packaging/check-sdist $(PYTHON) dist/attnscale-*.tar.gz build/sdist-check

check-ports: $(WHEEL_TOOLS)/ready $(STAMPS)/system-ports ## link the library for macOS and Windows; run the latter under Wine
	$(call say,the library for macOS on arm64 and Windows on x86-64: compiled and linked$(comma) and what can run is run)
	$(WHEEL_TOOLS)/bin/python packaging/check_ports.py

build/arm64 build/musl build/xsimd-newest: build/%: packaging/unpack-packages
	packaging/unpack-packages $* $@
