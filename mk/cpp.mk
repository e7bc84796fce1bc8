# SPDX-License-Identifier: BSD-3-Clause
#
#: C++ tests

.PHONY: test-cpp test-clang test-asan test-tsan test-neon test-example test-shared

define build_and_ctest
	cmake --preset $(1) --log-level=WARNING
	cmake --build --preset $(1)
	ctest --preset $(1)
endef

test-cpp: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-test ## at every SIMD level, with g++ (in test)
	$(call say,C++ tests at every SIMD level: g++)
	$(call build_and_ctest,gcc)

# Every compiler and every xsimd; the sanitizers' build is clang++ with the installed xsimd. Each level costs a minute:
# beside the baseline, each of avx2 and avx512 has its turn in one of the two. Empty lists are all levels, as in a
# workflow; `make fuzz-asan` has all of them, too.
export CLANG_LEVELS ?= avx512;avx512_bf16;amx_bf16
export ASAN_LEVELS ?= avx2
test-clang: build/xsimd-newest $(STAMPS)/system-build $(STAMPS)/system-clang ## with clang++ and the newest xsimd (in check)
	$(call say,C++ tests: clang++ and the newest xsimd)
	$(call build_and_ctest,clang)

test-asan: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-clang ## address and undefined-behaviour sanitizers (in check)
	$(call say,C++ tests: address and undefined-behaviour sanitizers)
	$(call build_and_ctest,asan)

# One level is enough: all levels share the code of threads, and the sanitizer takes about ten times as long.
test-tsan: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-clang ## thread sanitizer: run it after a change of the pool
	$(call say,C++ tests: thread sanitizer)
	$(call build_and_ctest,tsan)

test-neon: $(STAMPS)/venv $(STAMPS)/system-build $(STAMPS)/system-neon build/headers ## on aarch64, under qemu (in check)
	$(call say,C++ tests: aarch64 under qemu)
	$(call build_and_ctest,neon)

# Stamp of passed C++ tests: `make test` skips them for unchanged sources; test-cpp and test-example do not.
$(STAMPS)/tested-cpp: $(STAMPS)/install $(CPP_SOURCES) CMakePresets.json
	@$(MAKE) --no-print-directory test-example
	@touch $@

test-example: test-cpp ## test-cpp, then a project that uses the installed package (in test)
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

# The package as a shared library: two examples, pkg-config, exported symbols, and use by a project compiled
# with -ffast-math.
test-shared: $(STAMPS)/system-build ## a project that uses the installed shared library (in check)
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
