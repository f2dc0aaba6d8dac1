# Each target makes .venv and installs what it needs, from nothing; a second run starts at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install demo check test bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

install: $(INSTALLED)  ## make .venv and install everything

demo: $(INSTALLED)  ## plain DDP and Headway side by side on a network that changes twice; under 3 minutes
	$(BIN)/headway train --workers 4 --scenario demo --or-loopback --compare ddp,adaptive \
		--steps 90 --eval-every 30 --checkpoint-every 0

check: $(INSTALLED)  ## style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(INSTALLED)  ## all tests, on all cores
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

bench: $(INSTALLED)  ## the benchmarks; seven hours
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/lab.py
	$(BIN)/python benchmarks/collectives.py
	$(BIN)/python benchmarks/collectives_map.py
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/field.py
	$(BIN)/python benchmarks/long_run.py
	$(BIN)/python benchmarks/costs.py
	$(BIN)/python benchmarks/estimates.py
	$(BIN)/python benchmarks/front.py
	$(BIN)/python benchmarks/control.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/adaptive.py
	$(BIN)/python benchmarks/computing_share.py
	$(BIN)/python benchmarks/gossip.py
	$(BIN)/python benchmarks/gossip_learning.py
	$(BIN)/python benchmarks/gossip_rate.py
	$(BIN)/python benchmarks/train.py

clean:  ## remove .venv and all that was built
	rm -rf $(VENV) build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
