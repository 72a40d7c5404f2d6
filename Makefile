PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
HOSTS := $(VENV)/.hosts

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-gpu test-browser check format bench bench-gpu docs wheel soak clean

help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install the package with its pinned tools

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $(STAMP)

demo: $(STAMP) ## show what a small batch hides, then train on real images; under 4 minutes on 2 cores
	$(BIN)/python examples/demo.py

# a test that hangs fails by its name, and its process is not started again, instead of keeping everybody waiting
NO_HANG := --timeout-method thread --timeout

test: $(STAMP) ## run the test suite
	$(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses 2 --dist loadfile --max-worker-restart 0 $(NO_HANG) 600

test-slow: $(HOSTS) ## run the tests that take minutes, with the libraries that integrations are for
	$(BIN)/python -m pytest -m slow $(NO_HANG) 3600

# without what lightly and open_clip depend on: torchvision from PyPI breaks transformers where torch has no CUDA
$(HOSTS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[integrations,ray]" albumentations kornia
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps lightly open_clip_torch
	@touch $(HOSTS)

test-gpu: ## run the tests that need a CUDA device, with the python at hand, in processes side by side
	PYTHONPATH=src:. OMP_NUM_THREADS=1 python3 -m scripts.gpu_tests

test-browser: $(STAMP) ## run the tests of pages in headless Chromium
	@$(BIN)/python -m tests.support.browser
	$(BIN)/python -m pytest -m browser tests/report

check: $(STAMP) ## lint, formatting, types, import layers; writes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP) ## measure against plain PyTorch and append to results/
	$(BIN)/python -m benchmarks.loss_cpu

bench-gpu: ## measure on a CUDA device, with the python at hand, and append to results/
	PYTHONPATH=src:. python3 -m benchmarks.loss_gpu

docs: $(STAMP) ## write docs/reference from the code, then run the code blocks of README and docs
	$(BIN)/python -m scripts.reference
	$(BIN)/python -m pytest tests/docs

wheel: $(STAMP) ## build wheel and sdist into dist/, and try the wheel in a clean environment
	$(BIN)/python -m scripts.wheel

soak: $(STAMP) ## train for 30 minutes under seeded faults and append to results/
	$(BIN)/python -m scripts.soak --record

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
