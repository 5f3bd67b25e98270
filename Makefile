# The commands of this repository; `make help` lists them.

PYTHON ?= python3
ARGS ?=
# Seeds of `make simulate`, and the first of them.
SEEDS ?= 100
START ?= 1
# Settings of `make serve`: unrewind.toml where there is one, else those of the examples.
CONFIG ?= $(or $(wildcard unrewind.toml),examples/unrewind.toml)
# Without bytecode every process that a test starts would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE
# Seconds after which a hung test or soak run is ended.
TEST_SECONDS ?= 2400
SOAK_SECONDS ?= 14400
# Processes that run tests: many of these wait for servers, so there are more than cores.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2)
# Minutes of each load of `make load`.
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

check_python = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "unrewind needs Python 3.11 or later, and '$(PYTHON)' is not: name one with make PYTHON=..." >&2; \
	exit 1; }

# GNU timeout, by either of its names. It interrupts, so that fixtures clean up, and kills later.
TIMEOUT := $(shell command -v timeout || command -v gtimeout)
bounded = $(if $(TIMEOUT),$(TIMEOUT) --foreground --signal=INT --kill-after=30 $(1))

# Hashes have to be those of the public index: local wheels and constraints are left out.
PIP_TOOLS := pip-tools==7.6.2
LOCK_VENV := .venv-lock
LOCK_ENV := env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL -u PIP_CONSTRAINT \
	PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock"
COMPILE := $(LOCK_ENV) $(LOCK_VENV)/bin/pip-compile --quiet --upgrade --generate-hashes \
	--allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links \
	--no-emit-trusted-host --no-emit-options --resolver=backtracking
# The drivers of every engine are locked: who installs the lock file may choose any of them.
ENGINES := --extra postgres --extra nats

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-engines lint format bench soak simulate load report lock clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

setup: $(STAMP) ## create .venv from the lock file

$(STAMP): pyproject.toml requirements-dev.lock
	@$(check_python)
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "setup: installing the locked packages (about a minute)"
	@$(PIP) install --require-hashes --requirement requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "setup: done"

serve: setup ## run the server; more flags in ARGS
	@UNREWIND_CONFIG="$${UNREWIND_CONFIG:-$(CONFIG)}" exec $(BIN)/unrewind serve $(ARGS)

test: setup lint ## lint, then run the tests, on every core; pytest flags in ARGS
	@$(call bounded,$(TEST_SECONDS)) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

test-engines: setup ## run only the tests that need PostgreSQL or NATS; pytest flags in ARGS
	@$(call bounded,$(TEST_SECONDS)) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m 'engines and not soak' $(ARGS)

lint: setup ## check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## format, and fix what can be fixed
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: setup ## measure side by side with peers; flags in ARGS
	@$(BIN)/python -m benchmarks $(ARGS)

soak: setup ## run the long rounds; pytest flags in ARGS
	@UNREWIND_SOAK=1 $(call bounded,$(SOAK_SECONDS)) $(BIN)/python -m pytest -m soak --capture=no -o faulthandler_timeout=0 $(ARGS)

simulate: setup ## deterministic simulation: SEEDS=100 of them from START=1 on; flags in ARGS
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(START) $(ARGS)

load: setup ## a service under load and overload, for MINUTES=10
	@UNREWIND_SOAK=1 MINUTES=$(MINUTES) $(call bounded,$(SOAK_SECONDS)) $(BIN)/python -m pytest tests/load -m soak --capture=no -o faulthandler_timeout=0 $(ARGS)

report: setup ## write docs/proof.md from what long runs and benchmarks have left
	@$(BIN)/python -m benchmarks.proof $(ARGS)

lock: ## choose new versions for both lock files
	@$(check_python)
	@$(PYTHON) -m venv --clear $(LOCK_VENV)
	@$(LOCK_ENV) $(LOCK_VENV)/bin/python -m pip --quiet --quiet install $(PIP_TOOLS)
	@echo "lock: requirements.lock"
	@$(COMPILE) $(ENGINES) --output-file requirements.lock pyproject.toml
	@echo "lock: requirements-dev.lock"
	@$(COMPILE) $(ENGINES) --extra dev --extra bench --output-file requirements-dev.lock \
		--constraint requirements.lock pyproject.toml
	@rm -rf $(LOCK_VENV)

clean: ## remove the environment and every cache
	@rm -rf $(VENV) $(LOCK_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
