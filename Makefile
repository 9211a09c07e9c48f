PYTHON ?= python3
PYTHON_OLDEST ?= $(PYTHON)

BIN := .venv/bin
OLDEST := .venv-oldest/bin
INSTALL := pip install --quiet --disable-pip-version-check
# Debian's pip does not know dependency groups, which came with 25.1.
PIP := 'pip>=25.1'

# Most tests wait most of the time; the others have the machine for themselves.
SIDE_BY_SIDE := --numprocesses=2 --dist=loadfile -m 'not crowded'

.PHONY: help demo check check-oldest soak fuzz otelcol prometheus bench reliability docs format clean
.DELETE_ON_ERROR:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: .venv/installed ## one sample of this machine and a small workload under W&B's names; needs no backend
	@$(BIN)/python examples/workload.py --seconds 30 & workload=$$!; \
	trap 'kill $$workload 2>/dev/null' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	$(BIN)/otel-sysmetrics sample --pid $$workload

# pytest comes last: its summary is the line that a CI reads.
check: .venv/installed-dev ## everything that CI checks: format, lint, types, imports, docs, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	@# Where it has a logo (from 2.16) it has an option against it.
	@$(BIN)/lint-imports $$($(BIN)/lint-imports --help | grep -o -e --no-logo)
	@$(BIN)/otel-sysmetrics catalog --format markdown | diff -u docs/metrics.md - || { echo "docs/metrics.md is stale: make docs"; exit 1; }
	@# Without otelcol and Prometheus their tests are skipped, or fail where REQUIRE_BUILDS=1.
	@[ -n "$$OTELCOL" ] || collector-config/build-otelcol || true
	@[ -n "$$PROMETHEUS" ] || collector-config/build-prometheus || true
	$(BIN)/pytest $(SIDE_BY_SIDE)
	$(BIN)/pytest -m crowded

check-oldest: .venv-oldest/installed ## the tests on the oldest dependencies that are supported
	$(OLDEST)/pytest $(SIDE_BY_SIDE)
	$(OLDEST)/pytest -m crowded

soak: .venv/installed-dev ## 100,000 sampling cycles with faults: nothing may grow; a backend that is away for 2 minutes; SEED=… repeats one, CYCLES=… makes it shorter
	$(BIN)/python -m tests.soak --cycles $(or $(CYCLES),100000) $(if $(SEED),--seed $(SEED))
	RELIABILITY_OUTAGE=120 $(BIN)/pytest tests/test_faults.py -k "backend and restarted"

fuzz: .venv/installed-dev ## a million inputs for the parsers of foreign text; INPUTS=… makes them fewer, SEED=… repeats them
	FUZZ_TURNS=25 FUZZ_INPUTS=$(or $(INPUTS),1000000) $(BIN)/pytest tests/test_fuzz.py -v $(if $(SEED),--hypothesis-seed=$(SEED))

otelcol: ## build the OpenTelemetry Collector that the tests use; needs Go
	@collector-config/build-otelcol

prometheus: ## build the Prometheus that the tests use; needs Go
	@collector-config/build-prometheus

bench: .venv/installed-dev ## run the benchmarks
	@for benchmark in benchmarks/*.py; do echo "== $$benchmark"; $(BIN)/python "$$benchmark" || exit; done

reliability: .venv/installed-dev ## let everything fail around a process and write docs/reliability.md; needs otelcol
	@RELIABILITY_TABLE=docs/reliability.md REQUIRE_BUILDS=1 $(BIN)/pytest tests/test_faults.py

docs: .venv/installed ## write docs/metrics.md from the catalogue
	@$(BIN)/otel-sysmetrics catalog --format markdown >docs/metrics.md.new
	@mv docs/metrics.md.new docs/metrics.md

format: .venv/installed-dev ## format the sources and fix what ruff can fix
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

clean: ## remove the environments and caches in this folder, not the cached otelcol and Prometheus
	rm -rf .venv .venv-oldest build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: pyproject.toml
	@echo "Installing otel-sysmetrics into .venv (about ten seconds)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m $(INSTALL) $(PIP)
	@$(BIN)/python -m $(INSTALL) --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing the development tools into .venv (about ten seconds)"
	@$(BIN)/python -m $(INSTALL) --editable . --group dev
	@touch $@

.venv-oldest/installed: pyproject.toml tests/oldest.txt
	@echo "Installing otel-sysmetrics with its oldest dependencies into .venv-oldest (about ten seconds)"
	@[ -x $(OLDEST)/python ] || $(PYTHON_OLDEST) -m venv --clear .venv-oldest
	@$(OLDEST)/python -m $(INSTALL) $(PIP)
	@$(OLDEST)/python -m $(INSTALL) --editable . --group test --constraint tests/oldest.txt
	@touch $@
