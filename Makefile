# Everything a person or a machine runs here.  Needs make and Python 3.11 to 3.14; each target
# first makes the virtual environment that it needs in $(VENV).

SHELL := /bin/sh
VENV ?= .venv
RUN := $(VENV)/bin/python

# The first interpreter that really starts and is of a version that we support.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' \
	>/dev/null 2>&1 && { echo "$$p"; break; }; done)

# Byte code is kept, whatever the caller's environment says: without it each broker that a test starts
# compiles the whole product (a second of CPU), and each run of pytest all tests (15 s).
unexport PYTHONDONTWRITEBYTECODE

SEED ?= 1
COUNT ?=
HOURS ?= 1

.PHONY: help demo test lint check ci bench sim soak mutants docs format clean

help:
	@echo "make demo    three brokers, real input, one killed in mid-stream, everything checked"
	@echo "make test    the everyday tests (unit, properties, scenarios, short system tests)"
	@echo "make check   format, lint, types, import contracts, then the everyday tests and those of the Spark check"
	@echo "make ci      what continuous integration runs (.ci/run)"
	@echo "make bench   what the machine, the ring and three brokers cost and carry here"
	@echo "make sim     the ring in the simulator: make sim SEED=7, make sim COUNT=300"
	@echo "make soak    fresh seeds of all stacks: make soak HOURS=2 (ledger in soak.jsonl)"
	@echo "make mutants generated bugs of the protocol: which does the simulator notice?"
	@echo "make docs    draws the generated pictures and tables of the documentation anew"
	@echo "make format  rewrite the sources in the one format"
	@echo "make clean   remove the virtual environment and everything generated"

demo: $(VENV)/.demo
	$(RUN) -m tools.demo

test: $(VENV)/.test
	$(RUN) -m tests.halves everyday

lint: $(VENV)/.test $(VENV)/.demo
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-cache
	@$(RUN) -m tests.architecture --sizes | grep subjects || true

check: lint
	$(RUN) -m pytest -m "not slow"

ci:
	bash .ci/run

bench: $(VENV)/.test
	$(RUN) -m tests.bench.machine
	$(RUN) -m tests.bench.ring --compare size ahead
	$(RUN) -m tests.bench.latency
	$(RUN) -m tests.bench.idle
	$(RUN) -m tests.bench.failover
	$(RUN) -m tests.bench.cluster

sim: $(VENV)/.test
	$(RUN) -m tests.sim $(if $(COUNT),--count $(COUNT),--seed $(SEED))

soak: $(VENV)/.test
	$(RUN) -m tests.sim --soak $(HOURS) --jobs 2 --ledger soak.jsonl

mutants: $(VENV)/.test
	$(RUN) -m tests.sim.mutation.run --run --jobs 2 --sample 300
	$(RUN) -m tests.sim.mutation.run --table

docs: $(VENV)/.test
	$(RUN) -m tests.architecture --write
	$(RUN) -m tests.protocol_tables --write
	$(RUN) -m tests.scenarios --write
	$(RUN) -m tests.metrics_page --write
	$(RUN) -m tests.verbs_page --write

format: $(VENV)/.test
	$(RUN) -m ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info demo-data .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { \
		echo "make: no Python 3.11, 3.12, 3.13 or 3.14 found; name one with make PYTHON=/path/to/python" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade pip

# One stamp for each set of extras, renewed when the project's metadata changes.
$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[verify]'
	@touch $@
