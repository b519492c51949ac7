# Every target that needs Python makes its own environment first; nothing else has to be set up.
PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
GROUPS  := --dist loadgroup --no-loadscope-reorder
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
SCRATCH := .scratch
DEMO    := runs/demo
DOCKER  ?= docker
COMPOSE ?= $(DOCKER) compose -f docker/compose.yaml
DOCKER_OUT ?= runs/docker-demo
# Tests that run the C kernels on many shapes.
KERNELS := $(wildcard $(patsubst %,tests/test_%.py,dense coupled joint recurrent known_losses small_convolutions \
	pooled between features weighed seeds saga params together local step steps))
SOURCES := fedpers strategies clients datasets conf tests benchmarks

# One thread a process: small models are slower, not faster, when threads wait for each other.
export OMP_NUM_THREADS ?= 1
# Nothing here reports to anybody, or installs while it runs.
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
# Else each process that the tests start compiles all our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo constraints docker-image docker-demo smoke test test-slow test-all canary sanitize faults fuzz fmt lint types editor docs site check tables bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## Make .venv with the package (editable) and the tools to work on it

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --editable ".[dev]"
	touch $@

demo: $(STAMP)  ## Four methods on handwritten digits, then a report: under a minute
	rm -rf $(DEMO)
	$(BIN)/fedpers run -m +experiment=demo out=$(DEMO)
	$(BIN)/fedpers report $(DEMO)

smoke: $(STAMP)  ## A minute of tests: every method for three rounds, the command line, the rules of the house
	$(BIN)/python -m pytest -q -n $(WORKERS) tests/test_golden.py tests/test_cli.py tests/test_house_rules.py

test: $(STAMP)  ## The fast tests: some twenty minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS) $(GROUPS) -m "not ray and not slow and not faults"

test-slow: $(STAMP)  ## The slow tests alone: Ray, deployments, the documentation site; what `make test` leaves out
	$(BIN)/python -m pytest -n $(WORKERS) $(GROUPS) -m "(ray or slow) and not faults"

test-all: $(STAMP)  ## All tests, those with Ray and the slow ones too; not those of `make faults`
	$(BIN)/python -m pytest -n $(WORKERS) $(GROUPS) -m "not faults"

CANARY := $(SCRATCH)/canary
canary:  ## The fast tests with what comes next: Flower's nightly, Hydra's release candidate, the newest torch
	$(PYTHON) -m venv --clear $(CANARY)
	$(CANARY)/bin/python -m pip install --quiet --editable ".[dev]"
	$(CANARY)/bin/python -m pip uninstall --quiet --yes flwr
	$(CANARY)/bin/python -m pip install --quiet --pre --upgrade flwr-nightly hydra-core omegaconf torch torchvision
	$(CANARY)/bin/python -m pip list | grep -iE '^(flwr|hydra|omegaconf|torch|ray)'
	$(CANARY)/bin/python -m pytest -n $(WORKERS) $(GROUPS) -m "not ray and not slow and not faults and not gpu" $(CANARY_TESTS)

sanitize: $(STAMP)  ## The tests of the C kernels with AddressSanitizer and UndefinedBehaviorSanitizer (gcc): ten minutes
	FEDPERS_CFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 $(BIN)/python -m pytest -q -p no:cacheprovider -m "not ray and not slow" $(KERNELS)

faults: $(STAMP)  ## Kill and cut off real SuperLinks, SuperNodes and server apps: minutes on an idle machine, as root
	$(BIN)/python -m pytest -m faults

SEED ?= 0
fuzz: $(STAMP)  ## Random methods, models and data: every runner gives the same answers; ten minutes, SEED=0
	$(BIN)/python -m tests.fuzz --minutes 10 --seed $(SEED)

constraints: $(STAMP)  ## Renew docker/constraints.txt: the newest versions that pyproject.toml allows
	$(BIN)/python docker/constraints.py

docker-image:  ## Build the images fedpers and fedpers-proxy
	$(DOCKER) build -f docker/Dockerfile --target app -t fedpers $(DOCKER_OPTIONS) .
	$(DOCKER) build -f docker/Dockerfile --target proxy -t fedpers-proxy $(DOCKER_OPTIONS) .

docker-demo:  ## A federated run in containers on this machine; its pictures in runs/docker-demo/plots
	$(COMPOSE) down --volumes
	$(COMPOSE) up --detach superlink proxy
	$(COMPOSE) --profile run run --rm admit
	$(COMPOSE) up --detach
	$(COMPOSE) --profile run run --rm run
	mkdir -p $(DOCKER_OUT)
	$(COMPOSE) exec -T superlink tar -C /runs/demo -cf - . | tar -C $(DOCKER_OUT) -xf -
	$(COMPOSE) down --volumes

fmt: $(STAMP)  ## Format, and repair the style where it can be repaired
	$(BIN)/ruff format --quiet $(wildcard $(SOURCES))
	$(BIN)/ruff check --fix-only --quiet $(wildcard $(SOURCES))

lint: $(STAMP)  ## Check style
	$(BIN)/ruff check $(wildcard $(SOURCES))
	$(BIN)/ruff format --check --quiet $(wildcard $(SOURCES))

# mypy does not follow setuptools' package-dir, so the package is laid out as it is once installed;
# sed turns the paths in its messages back into those of this tree.
types: $(STAMP)  ## Check types
	rm -rf $(SCRATCH)/fedpers
	mkdir -p $(SCRATCH)
	cp -R fedpers $(SCRATCH)/fedpers
	cp -R $(wildcard strategies clients datasets conf) $(SCRATCH)/fedpers
	cd $(SCRATCH) && set -o pipefail && $(abspath $(BIN))/mypy --config-file ../pyproject.toml \
		-p fedpers | sed -E 's#^fedpers/(strategies|clients|datasets|conf)/#\1/#'
types: SHELL := bash

editor: $(STAMP)  ## Check that go-to-definition works in an editor (installs a language server)
	$(BIN)/python -m pip install --quiet --editable ".[editor]"
	$(BIN)/python -m pytest tests/test_editor.py

docs: $(STAMP) site  ## Run the examples in docstrings and check the commands in the documentation
	$(BIN)/python -m pytest tests/test_docstrings.py tests/test_docs.py

site: $(STAMP)  ## Build the documentation site in site/; warnings are errors, no network is needed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

check: lint types docs test  ## What should pass before a commit

tables: $(STAMP)  ## Fill the tables of README and docs/ from benchmarks/results
	$(BIN)/python -m fedpers.results.pages

bench: $(STAMP)  ## Speed and memory
	$(BIN)/fedpers bench

clean:  ## Remove what the targets above made, runs/ excepted
	rm -rf $(VENV) $(SCRATCH) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
