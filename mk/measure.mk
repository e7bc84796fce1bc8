# SPDX-License-Identifier: BSD-3-Clause
#
#: Speed

.PHONY: bench peers probe-engines engines

BENCH := --full
# A line for each run; commit informative ones.
HISTORY := benchmarks/history.jsonl

bench: $(STAMPS)/install ## measure the package on this machine; history.jsonl, a table of growth
	$(BIN)/python benchmarks/bench.py --history $(HISTORY) $(BENCH)
	$(if $(filter --full,$(BENCH)),$(BIN)/python benchmarks/growth.py docs/_measured)

# Other packages, installed outside the environment; not part of CI. ggml is compiled for this CPU, without a
# cache.
PEERS := onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1 ncnn==1.0.20261020 \
  ggml-python==0.0.45 protobuf==7.36.2

build/peers: $(STAMPS)/tools
	$(call say,attention of other packages)
	@rm -rf $@
	@CMAKE_CXX_COMPILER_LAUNCHER= $(PIP_INSTALL) --no-cache-dir --no-deps --target $@ $(PEERS)

peers: build/peers ## measure it beside the attention of other packages, for the documentation
	$(call say,attention beside other packages)
	PYTHONPATH=build/peers $(BIN)/pytest -q tests/bench/test_peers.py tests/conformance/test_engines.py -k "engine_computes or for_inference"
	PYTHONPATH=build/peers $(BIN)/python benchmarks/bench.py --report docs/_measured $(BENCH_PEERS)

# Engines of other packages that load a probe's checkpoints, installed outside the environment.
ENGINES := mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2 xllamacpp==2026.10.11549

build/engines: $(STAMPS)/tools
	$(call say,engines that load checkpoints)
	@rm -rf $@
	@$(PIP_INSTALL) --no-deps --target $@ $(ENGINES)
	@rm -f build/probe-engines.jsonl

# Answers are kept in build/probe-engines.jsonl.
probe-engines: build/engines ## what engines do with each family's scalings; goes on where it stopped
	$(call say,transformers$(comma) mlx-lm and llama.cpp beside the configs)
	PYTHONPATH=build/engines $(BIN)/python -m tools.probe.engines --json build/probe-engines.json \
	  --table docs/_measured/engines.txt $(PROBE_ENGINES)

# Each engine has a folder with its packages below build/attention-engines, a process and a limit of time.
engines: $(STAMPS)/install $(STAMPS)/tools ## ask the attention of other packages, for the documentation; ASKED="NAME ..."
	$(call say,questions to the attention of other packages)
	$(BIN)/python -m tools.engines.run $(ASKED)
