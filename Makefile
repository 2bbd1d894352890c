# One command each; all of them work on a fresh clone with only Python >= 3.10.
#   make demo       set up, export the demo checkpoint, answer with self-speculation
#   make test       quick tests (every commit)          make test-full   all of them
#   make test-arm64 the runtime in an emulated arm64: as root
#   make lint       ruff and mypy --strict              make bench       benchmarks/README.md
PYTHON ?= python3
VENV ?= .venv
# Where the default index serves only CUDA builds of torch:
#   make demo PIP_FLAGS="--extra-index-url <index with CPU builds>"
PIP_FLAGS ?=
# Types of TensorRT for a test; the package asks for TensorRT itself, so without what it asks for.
STUBS := tensorrt-stubs==10.13.0.35.1
RUN := $(VENV)/bin/python -m
# TensorRT's headers inside another package, which needs CUDA builds of torch for what else it does.
TENSORRT_HEADERS := kernel-lens==2.0.1
TENSORRT_RTX := tensorrt-rtx-cu13-libs==1.7.1.116 tensorrt-rtx-cu13-bindings==1.7.1.116
INSTALL = $(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_FLAGS)

.PHONY: demo test test-full test-arm64 lint bench clean

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "selfdraft needs Python >= 3.10; $(PYTHON) is older. Next: make PYTHON=python3.12"; exit 2; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing selfdraft with its exporter (torch included: about a minute)"
	@$(INSTALL) -e '.[cpu,export]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "installing test tools"
	@$(INSTALL) -e '.[cpu,export,dev,kernels,grammar,metrics,serve]'
	@$(INSTALL) --no-deps $(TENSORRT_HEADERS)
	@$(INSTALL) --no-deps --target $(VENV)/stubs --upgrade $(STUBS)
	@touch $@

# NVIDIA's parser and builder on a CPU, for the slow tests; x86-64 Linux alone has them.
$(VENV)/.trt: $(VENV)/.dev
	@$(INSTALL) --no-deps $(TENSORRT_RTX) || \
	  echo "$(TENSORRT_RTX): not to be had here, so the tests of NVIDIA's parser are skipped"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@$(INSTALL) -e '.[cpu,export,dev,bench]'
	@touch $@

demo: $(VENV)/.demo
	@$(VENV)/bin/selfdraft demo

test: $(VENV)/.dev
	$(RUN) pytest -n 2 --dist loadfile -m "not slow"

test-full: $(VENV)/.dev $(VENV)/.trt $(VENV)/.bench
	$(RUN) pytest -n 2 --dist loadfile

# As root, on Debian: an emulated arm64 from nothing (about 15 minutes, kept in build/arm64).
test-arm64: $(VENV)/.demo
	PYTHON=$(abspath $(VENV))/bin/python tests/arm64/emulate.sh

lint: $(VENV)/.dev
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

bench: $(VENV)/.bench
	$(RUN) benchmarks.run_all

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
