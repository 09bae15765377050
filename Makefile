# Commands of this repository, for people and for CI. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

DEVICE ?= cpu
ENGINE ?= vllm
STUDY ?= horizon_textcraft
TESTS ?= test-envs test-unit test-training test-verl
RUN ?= runs/textcraft_quickstart
VENV ?= .venv
PYTHON ?= $(shell requirements/find_python.sh)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export CHAOS ENGINE TORCH_CPU_INDEX ROOT

BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-$(DEVICE)$(if $(filter gpu,$(DEVICE)),-$(ENGINE))
OTHER_STAMPS := $(filter-out $(STAMP),$(wildcard $(VENV)/.setup-*))
CODE := verl_agent env_adapters tests docs setup.py $(wildcard examples)
# Scripts that call `python` use the one of the virtual environment.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help
help: ## List the commands
	@echo "usage: make TARGET [DEVICE=cpu|gpu] [ENGINE=vllm|sglang|megatron] [VENV=.venv]"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(STAMP) ## Create the virtual environment and install everything (takes minutes the first time)
	@:

$(STAMP): setup.py requirements/install.sh $(wildcard requirements/*.txt)
	@[[ -z "$(OTHER_STAMPS)" ]] || { echo "$(VENV) holds other packages ($(patsubst .setup-%,%,$(notdir $(OTHER_STAMPS))))." \
	    "Each device and each engine needs an environment of its own:" \
	    "make $(MAKECMDGOALS) DEVICE=$(DEVICE) ENGINE=$(ENGINE) VENV=.venv-$(if $(filter gpu,$(DEVICE)),$(ENGINE),cpu)" >&2; exit 1; }
	@if [[ $(DEVICE) == cpu ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then \
	    echo "This machine has an NVIDIA GPU, but this command installs the CPU packages. To train on the GPU:"; \
	    echo "  make setup DEVICE=gpu VENV=.venv-gpu"; \
	fi
	@python="$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))"; \
	requirements/check_machine.sh "$$python" $(VENV) $(DEVICE); \
	if [[ $$python == uv || $$python == */uv ]]; then \
	    echo "[  0 s] create the virtual environment $(VENV) with Python 3.11 from uv"; \
	    "$$python" venv --quiet --managed-python --python 3.11 --seed $(VENV); \
	elif [[ ! -x $(BIN)/python ]]; then \
	    echo "[  0 s] create the virtual environment $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(VENV); \
	fi
	@requirements/install.sh $(DEVICE) $(VENV)
	@touch $@
	@echo "Ready. Activate the environment: source $(BIN)/activate"

SGLANG := .venv-sglang-cpu

.PHONY: setup-sglang
setup-sglang: $(SGLANG)/.setup ## Create .venv-sglang-cpu: the packages of the CPU, and SGLang (a minute, 1.2 GB)
	@:

# It reads the packages of $(VENV), so nothing is downloaded twice. The stand-ins start with Python itself, because SGLang
# starts processes that import it before anything else.
$(SGLANG)/.setup: requirements/cpu-sglang.txt $(STAMP)
	@[[ $(DEVICE) == cpu ]] || { echo "This is for a CPU. For GPUs: make setup DEVICE=gpu ENGINE=sglang VENV=.venv-sglang" >&2; exit 1; }
	[[ -x $(SGLANG)/bin/python ]] || $(BIN)/python -m venv --without-pip $(SGLANG)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$($(SGLANG)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	$(BIN)/python -m pip --disable-pip-version-check --python $(SGLANG)/bin/python install -q --no-deps -r requirements/cpu-sglang.txt
	echo 'import verl_agent.platform.sglang.stand_ins as stand_ins; stand_ins.install()' \
	    > "$$($(SGLANG)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sglang_stand_ins.pth"
	sed '1s|.*|#!$(abspath $(SGLANG))/bin/python|' $(BIN)/verl-agent > $(SGLANG)/bin/verl-agent
	chmod +x $(SGLANG)/bin/verl-agent
	@touch $@
	@echo "Ready. Activate the environment: source $(SGLANG)/bin/activate"

MEGATRON := .venv-megatron-cpu

.PHONY: setup-megatron
setup-megatron: $(MEGATRON)/.setup ## Create .venv-megatron-cpu: the packages of the CPU, and Megatron (seconds, 19 MB)
	@:

# It reads the packages of $(VENV), so nothing is downloaded twice.
$(MEGATRON)/.setup: requirements/cpu-megatron.txt $(STAMP)
	@[[ $(DEVICE) == cpu ]] || { echo "This is for a CPU. For GPUs: make setup DEVICE=gpu ENGINE=megatron VENV=.venv-megatron" >&2; exit 1; }
	[[ -x $(MEGATRON)/bin/python ]] || $(BIN)/python -m venv --without-pip $(MEGATRON)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$($(MEGATRON)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	$(BIN)/python -m pip --disable-pip-version-check --python $(MEGATRON)/bin/python install -q --no-deps -r requirements/cpu-megatron.txt
	sed '1s|.*|#!$(abspath $(MEGATRON))/bin/python|' $(BIN)/verl-agent > $(MEGATRON)/bin/verl-agent
	chmod +x $(MEGATRON)/bin/verl-agent
	@touch $@
	@echo "Ready. Activate the environment: source $(MEGATRON)/bin/activate"

VERIFIERS := .venv-verifiers

.PHONY: setup-verifiers
setup-verifiers: $(VERIFIERS)/.setup ## Create .venv-verifiers: verifiers and what plays environments (a minute, 700 MB)
	@:

# verifiers and verl need other versions of the same packages.
$(VERIFIERS)/.setup: setup.py $(STAMP)
	$(BIN)/python -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/pip --disable-pip-version-check install -q 'verifiers==0.4.0' -e '.[program,textcraft]'
	@touch $@

HARNESSES ?=

.PHONY: setup-harnesses
setup-harnesses: ## Install agents of others into .harnesses, each alone: HARNESSES="codex langgraph" (all: minutes, 1.7 GB)
	requirements/harnesses.sh $(HARNESSES)

.PHONY: test-harnesses
test-harnesses: setup ## Play, grade and kill the agents that setup-harnesses installed, with scripted replies (minutes)
	pytest -m harnesses tests/harnesses

.PHONY: chromium
chromium: ## Install Chromium for web environments (needs root and apt)
	requirements/chromium.sh

.PHONY: test
test: setup ## Run the unit tests and those with verl, two targets at a time; TESTS has the targets
	@printf '%s\n' $(TESTS) | xargs -P 2 -I TARGET $(MAKE) --no-print-directory --jobs 2 --output-sync TARGET

# The longest come first, so that two cores are busy to the end.
.PHONY: test-training
test-training: setup ## Run the tests of training with verl, Ray and tiny models
	pytest -o cache_dir=.pytest_cache/training tests/verl/training --ignore tests/verl/training/preflight

.PHONY: test-unit
test-unit: setup ## Run the unit tests of the library; test-envs has those of the environments
	pytest -o cache_dir=.pytest_cache/unit tests/unit --ignore tests/unit/env_adapters --ignore tests/unit/envs

.PHONY: test-verl
test-verl: setup ## Run the other tests with verl; those of a run's checks share their composed recipes
	pytest -o cache_dir=.pytest_cache/verl tests/verl --ignore-glob 'tests/verl/training/test_*' \
	    --ignore tests/verl/training/offline

.PHONY: test-envs
test-envs: setup ## Run the unit tests of the environments and of their hosts and servers
	pytest -o cache_dir=.pytest_cache/envs tests/unit/env_adapters tests/unit/envs

.PHONY: test-sites
test-sites: setup ## Test the embedded web sites and solve a task on each (four minutes, five the first time)
	WEB_TASKS=sites pytest --timeout 900 tests/sites/test_sites.py tests/sites/test_rewards.py tests/sites/test_oracles.py \
	    tests/sites/test_random_walks.py tests/sites/test_demonstrations.py \
	    -k "test_sites or test_rewards or test_random_walks or solves or at_once or fit"

.PHONY: test-web
test-web: setup ## Solve a web task of each template in a browser; all tasks with WEB_TASKS=all
	pytest --timeout 900 tests/sites

.PHONY: test-long
test-long: setup ## Run the slow tests: whole training runs on the CPU
	pytest -s -m "slow and not gpu" tests/long tests/verl --ignore tests/long/test_environments.py

.PHONY: test-engines
test-engines: setup-sglang setup-megatron ## Test other engines and layouts on the CPU: SGLang, Megatron
	$(SGLANG)/bin/python -m pytest -s -m engines tests/engines/test_sglang*.py
	$(MEGATRON)/bin/python -m pytest -s -m engines tests/engines/test_megatron*.py

.PHONY: test-engines-quick
test-engines-quick: setup-sglang setup-megatron ## The same without whole training runs (some minutes)
	$(SGLANG)/bin/python -m pytest -m "engines and not slow" tests/engines/test_sglang*.py
	$(MEGATRON)/bin/python -m pytest -m "engines and not slow" tests/engines/test_megatron*.py

TRANSFORMERS4 := .venv-transformers4

# It reads the other packages of $(VENV), so nothing is downloaded twice.
$(TRANSFORMERS4)/.setup: requirements/transformers4.txt $(STAMP)
	[[ -x $(TRANSFORMERS4)/bin/python ]] || $(BIN)/python -m venv --without-pip $(TRANSFORMERS4)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$($(TRANSFORMERS4)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	$(BIN)/python -m pip --disable-pip-version-check --python $(TRANSFORMERS4)/bin/python install -q --no-deps -r requirements/transformers4.txt
	@touch $@

.PHONY: test-exports
test-exports: setup $(TRANSFORMERS4)/.setup ## Read exported models with transformers 4.57 and compare log-probs, tokens and chat templates (minutes)
	TRANSFORMERS4=$(abspath $(TRANSFORMERS4))/bin/python pytest --timeout 3600 -m exports tests/exports

.PHONY: test-chaos
test-chaos: setup-sglang setup-megatron ## Kill and stop each process of a run in each layout, and print a table (hours); CHAOS=fsdp2
	@chaos() { CHAOS=$$1 "$$2/bin/python" -m pytest -s -m slow tests/long/test_deaths.py | tee -a "$${TMPDIR:-/tmp}/chaos.txt"; }; \
	for layout in $${CHAOS:-fsdp2 two_ranks partial megatron sglang}; do \
	    case $$layout in megatron) venv=$(MEGATRON) ;; sglang) venv=$(SGLANG) ;; *) venv=$(VENV) ;; esac; \
	    chaos $$layout $$venv || failed=1; \
	done; grep '^| ' "$${TMPDIR:-/tmp}/chaos.txt"; exit $${failed:-0}

.PHONY: check-gradients
check-gradients: setup ## Compare the exact expectation of each estimator with the policy gradient (a minute)
	python -m tests.bench.exact_gradients
	python -m tests.bench.deepened_gradients

.PHONY: trace-settings
trace-settings: setup ## Print how each setting that reaches model or loss is tested, and compare it (a minute)
	python -m tests.support.traced_settings
	pytest -q tests/verl/training/test_traced_settings.py

.PHONY: test-gpu
test-gpu: setup ## Test a machine with a GPU and write gpu_report.json (DEVICE=gpu VENV=.venv-gpu)
	pytest -m gpu tests/gpu

.PHONY: test-fresh
test-fresh: ## Follow the README in new Debian 12 and 13 (hours; needs root, debootstrap and a mirror); SHORT=yes trains a step
	tests/fresh.sh bookworm
	tests/fresh.sh trixie bare light

.PHONY: check
check: setup ## Check style, types, import directions and shell scripts
	ruff check $(CODE)
	ruff format --check $(CODE)
	mypy
	lint-imports
	shellcheck $$(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)
	@for name in train eval; do \
	    [[ $$(cat recipes/*/$$name.sh | wc -c) -gt 0 ]] || { echo "no recipes/*/$$name.sh" >&2; exit 1; }; \
	    [[ $$(sha256sum recipes/*/$$name.sh | cut -d' ' -f1 | sort -u | wc -l) == 1 ]] \
	        || { echo "recipes/*/$$name.sh differ, but must be identical" >&2; sha256sum recipes/*/$$name.sh >&2; exit 1; }; \
	done; echo "recipe scripts are identical in all folders"

.PHONY: check-locks
check-locks: setup ## Resolve each lock of requirements/ for Python 3.11 and 3.12; needs a package index
	requirements/lock.sh --check

.PHONY: lock
lock: setup ## Write the locks of requirements/ after a change of requirements/in/
	requirements/lock.sh

.PHONY: format
format: setup ## Format the code and apply ruff's fixes
	ruff check --fix $(CODE)
	ruff format $(CODE)

DOCS := .venv-docs

.PHONY: docs
docs: $(DOCS)/.setup ## Build the documentation into build/site; python -m http.server -d build/site shows it
	PATH="$(abspath $(DOCS))/bin:$$PATH" $(DOCS)/bin/python docs/build.py
	@[[ -x $(DOCS)/bin/zensical ]] || { echo "$(DOCS) has no zensical, the site's generator. Remove the folder, and run make docs again." >&2; exit 1; }
	$(DOCS)/bin/zensical build --clean --strict --config-file build/mkdocs.yml

# It needs neither torch nor an engine: what plays and shows episodes, and verl for its YAML alone (a minute, 300 MB).
$(DOCS)/.setup: requirements/docs.txt setup.py
	@python="$(PYTHON)"; if [[ -x $(DOCS)/bin/python ]]; then :; \
	elif [[ $$python == uv || $$python == */uv ]]; then \
	    "$$python" venv --quiet --managed-python --python 3.11 --seed $(DOCS); \
	else "$$python" -m venv $(DOCS); fi
	$(DOCS)/bin/python -m pip --disable-pip-version-check install -q -e '.[textcraft,viewer]'
	$(DOCS)/bin/python -m pip --disable-pip-version-check install -q --no-deps -r requirements/docs.txt \
	    "verl==$$(sed -n 's/^VERL = "\([^"]*\)".*/\1/p' setup.py)"
	@touch $@

.PHONY: doctor
doctor: setup ## Show what this machine can run and the command that installs what is missing
	verl-agent doctor

.PHONY: quickstart
quickstart: setup ## Train a small model on this machine and compare it before and after
	verl-agent quickstart

.PHONY: bench-viewer
bench-viewer: setup ## Measure the viewer on a run of 100,000 episodes (2 GB in the temporary folder)
	python -m tests.bench.viewer

.PHONY: bench-reports
bench-reports: setup ## Measure leaderboard and failures on 100,000 episodes, and check-env --attack (minutes)
	python -m tests.bench.reports

.PHONY: screenshots
screenshots: setup ## Take pictures of the viewer's pages: RUN=runs/textcraft_quickstart
	python -m tests.support.screenshots $(RUN) docs/pictures/viewer

.PHONY: bench-update
bench-update: setup ## Measure the update of a step on a CPU, compared with verl's engine (ten minutes)
	python -m tests.bench.update

.PHONY: bench-parts
bench-parts: setup ## The same with variants of the engine that lack one part each (half an hour)
	python -m tests.bench.update --parts

.PHONY: bench-shares
bench-shares: setup ## Measure the update of rows that share a prompt, as single rows and as trees (six minutes)
	python -m tests.bench.update_shares

.PHONY: bench-threads
bench-threads: setup ## Measure how threads wait on a CPU, alone and beside busy processes (15 minutes)
	python -m tests.bench.threads

ROOFLINE := runs/textcraft_roofline

# Without RUN it trains a run of its own, whose file of tokens has all rows of the last step.
bench-roofline: RUN = $(ROOFLINE)
.PHONY: bench-roofline
bench-roofline: setup ## Compare a step of a CPU run with the machine, vLLM alone and verl's engine (15 minutes; RUN=runs/NAME)
	@[[ "$(RUN)" == $(ROOFLINE) || -f "$(RUN)/run.json" ]] || { echo "RUN=$(RUN) is no folder of a training run." \
	    "RUN must have run.json and the tokens of all rows of a step. Without RUN, make trains $(ROOFLINE)." >&2; exit 1; }
	[[ "$(RUN)" != $(ROOFLINE) || -d runs/textcraft_sft_cpu ]] || VERL_PLATFORM=cpu verl-agent sft recipes/textcraft/sft_cpu.yaml
	[[ "$(RUN)" != $(ROOFLINE) || -d $(ROOFLINE)/global_step_3 ]] \
	    || VERL_PLATFORM=cpu verl-agent train recipes/textcraft/grpo_cpu.yaml trainer.default_local_dir=$(ROOFLINE) \
	    trainer.v1.sampler.sampler_kwargs.skip_uniform=false episode.record_tokens.every=1 episode.record_tokens.groups=16 \
	    trainer.total_training_steps=3 trainer.save_freq=3 trainer.val_before_train=false trainer.test_freq=-1
	VERL_PLATFORM=cpu python -m tests.bench.roofline "$(RUN)" --bare --theirs

.PHONY: bench-peers
bench-peers: setup ## Train TextCraft here and on TRL in turn, and compare (25 minutes)
	[[ -x .venv-trl/bin/python ]] || $(BIN)/python -m venv --without-pip .venv-trl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > "$$(.venv-trl/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	$(BIN)/python -m pip --disable-pip-version-check --python .venv-trl/bin/python install -q --no-deps -r requirements/peers.txt
	[[ -d runs/textcraft_sft_cpu ]] || VERL_PLATFORM=cpu verl-agent sft recipes/textcraft/sft_cpu.yaml
	VERL_PLATFORM=cpu python -m tests.bench.peers $(ARGS)

.PHONY: bench-gateway
bench-gateway: setup ## Measure what the endpoint of programs adds to a turn, at 64 sessions (a minute)
	python -m tests.bench.gateway

.PHONY: bench-evolve
bench-evolve: setup ## Measure three rounds of AgentEvol and DPO with a tiny model; resumes if interrupted
	python -m tests.bench.evolve

.PHONY: soak
soak: setup ## Play thousands of episodes of each environment and check for leaks (an hour)
	pytest -s -m slow tests/long/test_environments.py

.PHONY: bench-partial
bench-partial: setup ## Compare asynchronous with synchronous rollout on an environment that waits (15 minutes)
	python -m tests.bench.partial

.PHONY: study
study: setup ## Play or resume a study and write its report: STUDY=horizon_textcraft
	verl-agent study run recipes/studies/$(STUDY).yaml

.PHONY: webarena-verdicts
webarena-verdicts: setup ## Run WebArena's own evaluators on the cases that the tests compare with them
	[[ -x .venv-webarena/bin/python ]] || $(BIN)/python -m venv .venv-webarena
	.venv-webarena/bin/pip install -q -r requirements/webarena-code-deps.txt
	.venv-webarena/bin/pip install -q --no-deps -r requirements/webarena-code.txt
	cases=$$(mktemp); python -m tests.support.grading_cases > "$$cases"; \
	    .venv-webarena/bin/python -W ignore tests/support/real_webarena.py < "$$cases" > tests/data/webarena_verdicts.json.new; \
	    rm "$$cases"; mv tests/data/webarena_verdicts.json.new tests/data/webarena_verdicts.json

.PHONY: release
release: setup ## Build sdist and wheel into dist/, check version, contents and licences, install the wheel; uploads nothing
	status=0; python -m tests.support.release || status=1; pytest -s -m slow tests/long/test_wheel.py || status=1; exit $$status

.PHONY: clean
clean: ## Remove caches and build files; keep the environment and runs/
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find verl_agent env_adapters tests -name __pycache__ -type d -prune -exec rm -rf {} +
