# Everything starts here and needs only Python (3.11 or newer) and make. `make` alone says what there is.

VENV := .venv
BIN  := $(VENV)/bin
PY   := $(BIN)/python
# uv only resolves; nothing else uses it.
UV   := build/uv/bin/uv

MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The programs of the environment first, so that buf finds its plugins.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

##@ Everyday

.PHONY: setup
setup: $(VENV)/.project ## make .venv with everything the lock file names
	@:

.PHONY: gen
gen: setup ## build gen/ from proto/, if something changed
	@$(PY) -m build_tools.generate
	@$(PY) -m adapters.betterproto.generate

.PHONY: run
run: gen ## start the mesh here and show the example agent's turn (ARGS="--port 8020")
	@$(BIN)/harness up --demo $(ARGS)

.PHONY: test
test: gen ## run every test (TESTS=path and ARGS=... narrow it)
	@$(PY) -m pytest -n auto -q $(ARGS) $(TESTS)

# A MongoDB-compatible server for the tests of the second store, where there is no mongod. It is built once, in minutes.
FERRETDB := build/ferretdb/ferretdb

.PHONY: ferretdb
ferretdb: $(FERRETDB) ## build the MongoDB-compatible server of the tests (needs Go)
	@:

$(FERRETDB): $(wildcard tests/support/ferretdb/*.* tests/support/ferretdb/*/*.go)
	@command -v go >/dev/null || { echo "ferretdb: this needs Go 1.24 or newer; or name a MongoDB in MONGO_TEST_URI" >&2; exit 1; }
	@echo "ferretdb: building (a few minutes the first time)"
	@mkdir -p $(@D)
	@cd tests/support/ferretdb && go run ./indexed $(CURDIR)/$(@D)/indexed && \
		go build -modfile $(CURDIR)/$(@D)/indexed/go.mod -trimpath -buildvcs=false -o $(CURDIR)/$@ .

CHECKS := check-format check-lint check-types check-imports check-contracts check-yaml check-images

# All of them are run, so that one failure does not hide the next.
.PHONY: check
check: gen ## format, lint, types, architecture, contracts, YAML, images
	@$(MAKE) --keep-going $(CHECKS)
	@echo "check: all clean"

.PHONY: $(CHECKS)
check-format: gen
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check . || true; echo "check: run 'make format'" >&2; exit 1; }
	@$(BIN)/buf format proto --diff --exit-code || { echo "check: run 'make format'" >&2; exit 1; }

check-lint: gen
	@$(BIN)/ruff check --quiet .

check-types: gen
	@$(BIN)/pyright

check-imports: gen
	@$(BIN)/lint-imports --no-logo

check-contracts: gen
	@$(BIN)/buf lint
	@$(PY) -m build_tools.breaking

check-yaml: gen
	@$(BIN)/yamllint --strict .

# The linter comes for Linux on x86_64 and aarch64 only.
check-images: gen
	@if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint deploy/Dockerfile; \
		else echo "check: deploy/Dockerfile was not linted: there is no hadolint for this machine" >&2; fi

.PHONY: format
format: gen ## format Python and contracts in place
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix --select I .
	@$(BIN)/buf format proto --write

# Seeds 1 to N, as `python -m tests.simulation` plays them; ARGS="--level storm" and more as it says with --help.
.PHONY: simulate
simulate: gen ## play N seeded schedules of the whole mesh (N=10000)
	@$(PY) -m tests.simulation --seeds 1..$(or $(N),10000) --jobs $$(nproc) $(ARGS)

# What an adapter's endpoint is worth; the other languages' are built by their own tests, or by hand as their README says.
.PHONY: certify
certify: gen ## certify an adapter: make certify TARGET=unix:/path (ARGS="--report DIR" and more)
	@$(BIN)/harness certify --target $(or $(TARGET),$(error say which: make certify TARGET=unix:/path or host:port)) $(ARGS)

.PHONY: bench
bench: gen ## measure against the ceiling (never part of the tests)
	@$(PY) -m bench $(ARGS)

# N points, of which each is a fault or two; FIRST, MESHES, REPLICAS, TTL (seconds of a lease) and JSON=file as `ARGS=--help` says.
.PHONY: chaos
chaos: gen ## N faults at chosen moments of real runs, judged (N=1000 SEED=7; never part of the tests)
	@$(PY) -m tests.chaos $(if $(N),--points $(N)) $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) \
		$(if $(STORE),--store $(STORE)) $(if $(REPLICAS),--replicas $(REPLICAS)) $(if $(MESHES),--meshes $(MESHES)) \
		$(if $(TTL),--ttl $(TTL)) $(if $(JSON),--json $(JSON)) $(ARGS)

.PHONY: docs
docs: gen ## write the generated pages of docs/reference anew
	@$(PY) -m build_tools.reference

##@ Upkeep

.PHONY: lock
lock: $(UV) ## resolve requirements*.lock anew from pyproject.toml (needs a package index)
	@echo "lock: resolving" >&2
	@rm -f build/requirements.lock build/requirements-dev.lock
	@$(UV) pip compile $(LOCK_OPTIONS) --extra all --output-file build/requirements.lock pyproject.toml
	@$(UV) pip compile $(LOCK_OPTIONS) --extra all --extra dev --constraint build/requirements.lock --output-file build/requirements-dev.lock pyproject.toml
	@mv build/requirements.lock build/requirements-dev.lock .

# No header, index or link in the file: it must say what is installed, not where from.
LOCK_OPTIONS := --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links

$(UV):
	@python3 -m venv build/uv
	@build/uv/bin/pip install --quiet uv

.PHONY: clean
clean: ## remove all that make built, .venv too
	@rm -rf $(VENV) build gen dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# --- .venv, in three steps that are each done again only when their input changed ---

# PYTHON=/path/to/python chooses another one.
PYTHON ?=

$(VENV)/.created:
	@python=$$(PYTHON='$(PYTHON)' bash build_tools/find_python.sh); \
		echo "setup: making $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV) || { \
			echo "setup: '$$python -m venv' failed. On Debian or Ubuntu install the package python3-venv, then run make again." >&2; \
			exit 1; }
	@touch $@

$(VENV)/.packages: $(VENV)/.created requirements-dev.lock
	@echo "setup: installing the packages of requirements-dev.lock (about a minute the first time)"
	@$(PY) -m pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.project: $(VENV)/.packages pyproject.toml
	@echo "setup: installing the project itself"
	@$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
