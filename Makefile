# The commands of this repository, the same for people and CI. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

DEVICE ?= cpu
ENGINE ?= vllm
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export ENGINE TORCH_CPU_INDEX

BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-$(DEVICE)
OTHER_STAMP := $(VENV)/.setup-$(if $(filter gpu,$(DEVICE)),cpu,gpu)
CODE := verl_agent env_adapters tests setup.py $(wildcard examples)
# Scripts that call `python` find the environment's own.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help
help: ## List the targets
	@echo "usage: make TARGET [DEVICE=cpu|gpu] [ENGINE=vllm|sglang] [VENV=.venv]"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(STAMP) ## Create the virtual environment and install everything (first time: some minutes)
	@:

$(STAMP): setup.py requirements/install.sh $(wildcard requirements/*.txt)
	@[[ ! -e $(OTHER_STAMP) ]] || { echo "$(VENV) holds the other family of packages, and the two cannot share one environment." \
	    "Use another: make $(MAKECMDGOALS) DEVICE=$(DEVICE) VENV=.venv-$(DEVICE)" >&2; exit 1; }
	@if [[ $(DEVICE) == cpu ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then \
	    echo "This machine has an NVIDIA GPU. What follows installs the CPU family; to train on the GPU:"; \
	    echo "  make setup DEVICE=gpu VENV=.venv-gpu"; \
	fi
	@if [[ ! -x $(BIN)/python ]]; then \
	    [[ -n "$(PYTHON)" ]] || { echo "Python 3.11 was not found. Install it, or name one: make setup PYTHON=/path/to/python" >&2; exit 1; }; \
	    $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
	        || { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1). Needed: 3.11 or 3.12; 3.11 is tested. Name one: make setup PYTHON=/path/to/python" >&2; exit 1; }; \
	    echo "[  0 s] new virtual environment $(VENV) with $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv $(VENV); \
	fi
	@requirements/install.sh $(DEVICE) $(VENV)
	@touch $@
	@echo "Ready. Activate it with: source $(BIN)/activate"

.PHONY: chromium
chromium: ## Install Chromium for the web environments (needs root and apt)
	requirements/chromium.sh

.PHONY: test
test: setup ## Run the quick tests (minutes)
	pytest tests/unit tests/verl

.PHONY: test-unit
test-unit: setup ## Run the unit tests (seconds)
	pytest tests/unit

.PHONY: test-sites
test-sites: setup ## Run the tests of the embedded web sites, and solve a task of each (four minutes, one more at first)
	WEB_TASKS=sites pytest --timeout 900 tests/sites/test_sites.py tests/sites/test_oracles.py -k "test_sites or solves or at_once"

.PHONY: test-web
test-web: setup ## Solve a web task of each template in a browser; all with WEB_TASKS=all
	pytest --timeout 900 tests/sites

.PHONY: test-long
test-long: setup ## Run the slow tests: whole training runs on CPU
	pytest -s -m "slow and not gpu" tests/long --ignore tests/long/test_environments.py

.PHONY: test-gpu
test-gpu: setup ## Run the tests that need a GPU (DEVICE=gpu VENV=.venv-gpu)
	pytest -m gpu tests

.PHONY: check
check: setup ## Check style, types, import directions, shell scripts
	ruff check $(CODE)
	ruff format --check $(CODE)
	mypy
	lint-imports
	shellcheck $$(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)
	@for name in train eval; do \
	    [[ $$(cat recipes/*/$$name.sh | wc -c) -gt 0 ]] || { echo "no recipes/*/$$name.sh" >&2; exit 1; }; \
	    [[ $$(sha256sum recipes/*/$$name.sh | cut -d' ' -f1 | sort -u | wc -l) == 1 ]] \
	        || { echo "recipes/*/$$name.sh differ; they must be the same bytes" >&2; sha256sum recipes/*/$$name.sh >&2; exit 1; }; \
	done; echo "recipe scripts are the same in every folder"

.PHONY: format
format: setup ## Format the code and fix what ruff can fix
	ruff check --fix $(CODE)
	ruff format $(CODE)

.PHONY: doctor
doctor: setup ## Say what this machine can run and what is missing
	verl-agent doctor

.PHONY: quickstart
quickstart: setup ## Train a small model on this machine, and see what it learnt
	bash examples/quickstart.sh

.PHONY: bench
bench: setup ## Measure the rollout
	python -m tests.bench.rollout

.PHONY: bench-evolve
bench-evolve: setup ## Three rounds of AgentEvol and a DPO with a tiny model; goes on where they stopped
	python -m tests.bench.evolve

.PHONY: bench-envs
bench-envs: setup ## Measure the environments over HTTP beside a server of the reference's way
	python -m tests.bench.envs

.PHONY: soak
soak: setup ## Play thousands of episodes of each environment and see what is left of them (an hour)
	pytest -s -m slow tests/long/test_environments.py

.PHONY: bench-learning
bench-learning: setup ## Measure what each algorithm and each horizon learns: hours, in pieces
	python -m tests.bench.learning

.PHONY: clean
clean: ## Remove caches and build files; keeps the environment and what runs wrote
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find verl_agent env_adapters tests -name __pycache__ -type d -prune -exec rm -rf {} +
