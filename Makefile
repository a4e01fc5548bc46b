# One virtual environment, .venv, for everything here. The targets below make what they need.
#
#   make lab         JupyterLab with gpushare, on this machine's GPUs or on simulated ones
#   make test        everything that CI runs: lint, types, import contracts, tests
#   make test-fast   the tests without the slow ones
#   make demo        the main job, headless: two people, three notebooks, two GPUs
#   make bench       measure, and write docs/benchmarks.md
#   make lint        ruff, mypy and the import contracts
#   make clean       remove .venv and what was built
#
# make lab ARGS=--no-browser     arguments for JupyterLab
# make test PYTEST="-k finder"   arguments for pytest
# make … PYTHON=python3.12       the Python to make .venv with (3.11 or later)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell for p in python3 python3.11 python3.12 python3.13; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$p"; break; }; done)
endif

TORCH := torch==2.13.0
TORCH_CPU := --extra-index-url https://download.pytorch.org/whl/cpu

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALLED_FROM := pyproject.toml jupyter_gpushare/_version.py $(wildcard etc/*/* etc/*/*/*)

.PHONY: help lab test test-fast demo bench lint clean
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

$(VENV)/.made:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or later with venv found. Install one (apt install python3 python3-venv)," >&2; \
		echo "or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@if ! $(PYTHON) -m venv --clear $(VENV); then \
		echo "Could not make $(VENV). On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; fi
	@touch $@

# The CPU build of torch is a tenth of the size; with a GPU the default build is the right one.
$(VENV)/.torch: $(VENV)/.made
	@echo "Installing $(TORCH) (once) …"
	@if [ -e /dev/nvidiactl ]; then $(PIP) install '$(TORCH)'; \
	else $(PIP) install --no-deps $(TORCH_CPU) '$(TORCH)' && $(PIP) install '$(TORCH)'; fi
	@touch $@

$(VENV)/.lab: $(VENV)/.torch $(INSTALLED_FROM)
	@echo "Installing jupyter_gpushare with JupyterLab …"
	@$(PIP) install --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.lab $(INSTALLED_FROM)
	@command -v cc >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y gcc libc6-dev; } \
	|| { echo "The tests compile a small C library: install a C compiler (apt install gcc libc6-dev)" >&2; exit 1; }
	@echo "Installing what the tests need …"
	@$(PIP) install --editable '.[dev]'
	@touch $@

lab: $(VENV)/.lab
	@$(BIN)/python scripts/lab.py $(ARGS)

demo: $(VENV)/.lab
	@$(BIN)/python scripts/demo.py $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest $(PYTEST)

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" $(PYTEST)

clean:
	rm -rf $(VENV) .lab build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

bench: $(VENV)/.lab
	$(BIN)/python benchmarks/run.py --json docs/benchmarks.json --markdown docs/benchmarks.md
