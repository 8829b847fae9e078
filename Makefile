# `make demo` looks at a real checkpoint and leaves a report; `make test` runs the tests; `make check` reads the code.
# Each makes .venv on its first call and finds it ready on the next. pip's own settings and environment are respected.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REPORT := runs/demo/report.html
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

.DELETE_ON_ERROR:
.PHONY: demo test check clean help

help:
	@echo "make demo   a report on a real checkpoint: $(REPORT)"
	@echo "make test   the tests"
	@echo "make check  ruff, ruff format, mypy"
	@echo "make clean  remove $(VENV) and caches; run folders stay"

demo: $(VENV)/.demo
	$(BIN)/attnprobe importance demo --output-dir $(dir $(REPORT)) --overwrite
	@echo "Open in a browser: $(CURDIR)/$(REPORT)"

test: $(VENV)/.test
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist attnprobe.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnprobe needs Python 3.11 or newer, not " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made $(INPUTS)
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.made $(INPUTS)
	$(INSTALL) --editable '.[test,demo]'
	@touch $@ $(VENV)/.demo
