# Everything a fresh Debian or Ubuntu machine needs: `make run` and `make test`.
BUILD ?= build
# AUTO compiles the CUDA code where nvcc and a GPU are, ON where there is no GPU, too.
CUDA ?= AUTO
PACKAGES := g++ cmake ninja-build python3-dev python3-venv libcli11-dev nlohmann-json3-dev \
            libfmt-dev libgtest-dev python3-numpy python3-pytest python3-jsonschema \
            libopenmpi-dev openmpi-bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# About 8 documents of real lengths, 4 query heads per KV head, bf16: seconds on two cores.
EXAMPLE := --mask causal_document --doc-lengths 380,147,561,433,1606,216,394,359 \
           --q-heads 8 --kv-heads 2 --head-dim 64 --dtype bf16

.PHONY: run test test-torch test-jax test-tl test-gpu test-gpu-sanitize wheel build configure packages setup clean
run: configure
	cmake --build $(BUILD) --target verbatim_tool
	$(BUILD)/verbatim run $(EXAMPLE) --report $(BUILD)/report.html --json $(BUILD)/run.json
	@! $(BUILD)/verbatim info | grep -q '^cuda *ready' || $(BUILD)/verbatim run $(EXAMPLE) \
	  --device cuda --report $(BUILD)/report-gpu.html --json $(BUILD)/run-gpu.json
	@echo "The pages of this run: $$(ls $(BUILD)/report*.html | xargs)"

test: build
	ctest --test-dir $(BUILD) --output-on-failure -LE 'torch|jax'

# The Python tests with PyTorch and transformers, in the versions of tools/environments/torch.txt.
test-torch: configure .cache/torch/packages.txt
	cmake --build $(BUILD) --target verbatim_c verbatim_tool
	ctest --test-dir $(BUILD) --output-on-failure -L torch

# Those of JAX arrays, in the versions of tools/environments/jax.txt.
test-jax: configure .cache/jax/packages.txt
	cmake --build $(BUILD) --target verbatim_c
	ctest --test-dir $(BUILD) --output-on-failure -L jax

# Every sketch of kernels/tl for every target, by nvcc: 17 minutes on two busy cores, no GPU.
test-tl: CUDA := ON
test-tl: configure
	cmake --build $(BUILD) --target tl_compile_all

# Skips, and says so, where there is no GPU.
test-gpu: build
	@if [ -x $(BUILD)/tests/gpu_test ]; then $(BUILD)/tests/gpu_test; \
	 else echo "skipped: built without CUDA, so there are no GPU tests"; fi

# Every kernel under compute-sanitizer: docs/kernels/sanitizers.md says what to expect.
test-gpu-sanitize: build
	tests/backend/cuda/sanitize.sh $(BUILD)/tests/gpu_test

# A manylinux wheel with kernels for 8.0 and 9.0 and PTX: ten minutes on two cores.
# `make wheel CUDA=OFF`: for CPUs alone.
wheel: CUDA := ON
wheel: .cache/wheel/packages.txt
	rm -rf $(BUILD)/wheel
	PATH=$(CURDIR)/.cache/wheel/bin:$$PATH SKBUILD_BUILD_DIR=$(BUILD)-wheel \
	  CMAKE_ARGS="-DVERBATIM_CUDA=$(CUDA) -DPython3_EXECUTABLE=/usr/bin/python3" \
	  pip wheel --no-deps --no-build-isolation --wheel-dir $(BUILD)/wheel/linux .
	PATH=$(CURDIR)/.cache/wheel/bin:$$PATH \
	  auditwheel repair --wheel-dir $(BUILD)/wheel $(BUILD)/wheel/linux/*.whl
	tools/test_wheel.sh $(BUILD)/wheel/*.whl

build: setup configure
	cmake --build $(BUILD)

configure: packages
	cmake -S . -B $(BUILD) -G Ninja -DPython3_EXECUTABLE=/usr/bin/python3 -DVERBATIM_CUDA=$(CUDA)

# What checks formatting and types; without it those tests skip.
setup: packages
	@$(MAKE) -s .cache/checks/packages.txt || echo "No environment of checks: ctest skips them."

# An environment of Python for a list of packages, kept until the list changes.
.cache/%/packages.txt: tools/environments/%.txt | packages
	rm -rf .cache/$*
	/usr/bin/python3 -m venv .cache/$*
	.cache/$*/bin/pip install --quiet --requirement $<
	cp $< $@

# Asks the package manager only when something is missing.
packages:
	@dpkg-query -W -f '$${db:Status-Status}\n' $(PACKAGES) 2>/dev/null \
	  | grep -c '^installed$$' | grep -qx '$(words $(PACKAGES))' \
	  || { $(SUDO) apt-get update -q && \
	       DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -q -y --no-install-recommends \
	         $(PACKAGES); }

clean:
	cmake -E rm -rf $(BUILD) $(BUILD)-wheel
