# On a fresh machine: `make demo`, `make test`, `make test-all`. Needs Python 3.11 to 3.13.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=$(CURDIR)/build-constraints.txt $(BIN)/python -m pip install \
	--disable-pip-version-check --progress-bar off -q --no-compile
# uv takes half of pip's time. It reads UV_* variables, not pip's configuration.
INSTALL := UV_HTTP_TIMEOUT=180 $(BIN)/uv pip install -q --python $(BIN)/python \
	-b build-constraints.txt -c constraints.txt
# One process more than cores, as some tests wait; four at most, as each takes 2 GB.
WORKERS = $(shell $(PYTHON) -c "import os; print(min((os.cpu_count() or 1) + 1, 4))")
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) $(COVERAGE)
# Python compiles what is imported, once: a quarter of what is installed.
export PYTHONDONTWRITEBYTECODE =
# Quiet: TensorFlow's start-up lines say nothing about this project.
export TF_CPP_MIN_LOG_LEVEL ?= 3
export TF_ENABLE_ONEDNN_OPTS ?= 1

.PHONY: demo docs mutants no-coverage notebooks protos client test test-all test-matrix test-own test-tpu lint parity orphans peers bench docker-check docker-test constraints clean

demo: $(VENV)/.demo
	KEEP=$(KEEP) $(BIN)/python demo.py

# Every behavior once, within minutes.
test: $(VENV)/.test
	$(PYTEST) --dist worksteal -m "not slow and not parity and not engine"

# Everything: linters, the long tests (kills, replicas, launch, JAX, soak), compilation
# for TPUs, and the comparison with other libraries; then the coverage of lines and
# branches.
test-all: COVERAGE = --cov --cov-append --cov-report=
test-all: no-coverage test-own parity
	$(BIN)/python -m coverage report

# What an earlier run measured would be added to.
no-coverage:
	rm -f .coverage .coverage.*

# All but that comparison. Of the long tests whole files run side by side, because setting
# up their fixtures takes most of the time.
test-own: lint test
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m "slow and not parity"
	$(MAKE) test-tpu

# Breaks the code in a place of each of many modules, and sees their tests fail.
mutants: $(VENV)/.test
	$(BIN)/python tests/support/mutants.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin

# Compiles training steps for TPUs with XLA's own compiler, a download of 0.7 GB. It lies
# apart, because JAX looks for a TPU where it is installed.
test-tpu: $(VENV)/.test
	$(INSTALL) --no-deps --target $(VENV)/tpu libtpu
	PYTHONPATH=$(abspath $(VENV)/tpu) $(BIN)/python -m pytest -m slow \
		tests/training/tpu/test_tpu_check.py tests/training/tpu/test_tpu_program.py

# The fast tests at the ends of every dependency's range, in random order; `make -k
# test-matrix` goes on after a failure. Each has an environment of its own,
# .venv-PYTHON-RESOLUTION. The newest do without tf-models-official, which holds
# TensorFlow at 2.20.
COMMA := ,
MATRIX := 3.11-lowest-direct 3.12-highest 3.13-highest

test-matrix: $(MATRIX:%=test-on-%)

test-on-%: $(VENV)/.python
	$(BIN)/uv venv -q --clear --python $(firstword $(subst -, ,$*)) .venv-$*
	UV_HTTP_TIMEOUT=180 $(BIN)/uv pip install -q --python .venv-$*/bin/python \
		-b build-constraints.txt --resolution $(*:$(firstword $(subst -, ,$*))-%=%) \
		-e ".[train,serve$(if $(findstring lowest,$*),$(COMMA)models),viz,convert,formats,dev]" \
		-e serving/client
	.venv-$*/bin/python -m pytest -p randomly -n $(WORKERS) --dist worksteal \
		-m "not slow and not parity and not engine"

# Compares with timm, transformers and keras-hub; brings PyTorch (CONTRIBUTING.md).
parity: peers
	$(PYTEST) --dist worksteal -m parity

# Opens what archived projects write themselves, in environments of their own, of 2 GB
# each: what is left of transformers' TensorFlow, vit-keras and keras-cv.
ORPHANS := keras2 keras3

orphans: $(VENV)/.test $(ORPHANS:%=.venv-orphans-%/.installed)
	$(BIN)/python -m pytest -rs tests/keras_vit/weights/test_parity_orphans.py

.venv-orphans-%/.installed: tests/support/orphans-%.txt | $(VENV)/.python
	$(BIN)/uv venv -q --clear --python 3.11 .venv-orphans-$*
	UV_HTTP_TIMEOUT=180 $(BIN)/uv pip install -q --python .venv-orphans-$*/bin/python -r $<
	@touch $@

# Measures speed and memory beside the same, for half an hour: benchmarks/*.json. The
# most important come first, some with fewer cases or rounds than by themselves. Then says
# which rows got slower than the figures of the last commit, and fails if any did.
bench: peers
	for run in "forward --quick --rounds 4" "train_step --quick --rounds 4" \
		"attention --quick" data comparison; do \
		$(BIN)/python -m benchmarks.$$run || exit 1; done

peers: $(VENV)/.test
	@$(BIN)/python -c "import torch" 2>/dev/null || echo "Installing PyTorch and others \
	into $(VENV), once: on Linux a download of 2.7 GB, 4.5 GB on disk."
	$(PIP) -c constraints.txt -e ".[parity]"
	@ls $(VENV)/pillow-source/*.gz >/dev/null 2>&1 || \
		PIP_CONSTRAINT=$(CURDIR)/build-constraints.txt $(BIN)/python -m pip download -q \
		--disable-pip-version-check --no-deps --no-binary pillow -c constraints.txt \
		-d $(VENV)/pillow-source pillow

# The site of docs/, in docs/_build/html; warnings are errors.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Runs docs/notebooks/ and keeps their outputs.
notebooks: $(VENV)/.test
	$(BIN)/python docs/run_notebooks.py

# docker/: install the tools that CONTRIBUTING.md names; tests without theirs are skipped.
docker-check: $(VENV)/.test
	$(BIN)/python -m pytest -rs tests/docker/test_docker.py tests/docker/test_docker_running.py \
		tests/docker/test_docker_gateway.py tests/docker/test_docker_gateway_limits.py \
		tests/docker/test_docker_monitoring.py tests/docker/test_kubernetes.py

# Builds the images of docker/ and runs them on a container engine: with Docker, compose
# and buildx, and 10 GB of disk. DOCKER_BUILD_FLAGS are of `docker build`.
docker-test: $(VENV)/.test
	$(BIN)/python -m pytest -v -rs -m engine tests/docker/test_engine.py

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
		sys.exit(None if (3, 11) <= v <= (3, 13) else \
		"keras-vit needs Python 3.11 to 3.13, $(PYTHON) is %d.%d: make PYTHON=python3.11 ..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt uv
	@touch $@

$(VENV)/.demo: $(VENV)/.python setup.cfg constraints.txt
	@echo "Installing into $(VENV): about a minute, once."
	$(INSTALL) -e ".[train,serve,viz]" -e serving/client
	@touch $@

$(VENV)/.test: $(VENV)/.python setup.cfg constraints.txt build-constraints.txt
	@echo "Installing into $(VENV): about a minute, once."
	$(INSTALL) -e ".[train,models,serve,viz,convert,formats,dev]" -e serving/client
	@touch $@

$(VENV)/.docs: $(VENV)/.python setup.cfg constraints.txt build-constraints.txt
	@echo "Installing into $(VENV): about a minute, once."
	$(INSTALL) -e ".[train,serve,viz,docs]"
	@touch $@

# The clients' messages, compiled from serving/client/protos.
protos: $(VENV)/.test
	cd serving/client/protos && $(abspath $(BIN))/python -m grpc_tools.protoc -I . \
		--include_imports --descriptor_set_out=../messages.binpb serving.proto

# The blocking clients' methods, from those of the asyncio clients.
client: $(VENV)/.test
	$(BIN)/python tests/support/blocking_form.py

# Resolves every extra, and JAX for GPUs and TPUs, for all platforms; run after editing setup.cfg.
constraints: $(VENV)/.python
	echo "jax[cuda12,cuda13,tpu]" | \
	$(BIN)/uv pip compile -q setup.cfg - --universal --python-version 3.11 --all-extras \
		--custom-compile-command "make constraints" -o constraints.txt

clean:
	rm -rf $(VENV) .coverage .coverage.* build dist *.egg-info docs/_build docs/generated
