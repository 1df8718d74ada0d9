# RegionKeeper: two commands matter, `make up` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help up install lint test test-compat soak bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

# Written only after a complete install, so that an interrupted one is done again.
$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	@echo "== installing RegionKeeper and what it needs into $(VENV) (once; a few minutes)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[spark]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "== installing what the tests need"
	$(PIP) install -c constraints.txt -e '.[spark,dev]'
	@touch $@

install: $(VENV)/installed  ## make .venv with `rk` in it

up: $(VENV)/installed  ## start a whole cluster on this machine, in the foreground (UP="--servers 8" for options)
	@exec $(BIN)/rk up $(UP)

lint: $(VENV)/installed-dev  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## lint and all tests
	$(BIN)/python -m pytest

clean:  ## remove .venv and caches (not rk-data)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

.venv-compat/installed: tests/compat/constraints.txt
	@echo "== an environment for kazoo's own suite"
	test -x .venv-compat/bin/python || $(PYTHON) -m venv .venv-compat
	.venv-compat/bin/python -m pip --disable-pip-version-check install -c $< kazoo pytest pytest-timeout objgraph pyOpenSSL pyjks pure-sasl gevent eventlet setuptools
	@touch $@

test-compat: $(VENV)/installed-dev .venv-compat/installed  ## kazoo's own test suite against three nodes of our store
	$(BIN)/python -m tests.compat.kazoo_suite --python .venv-compat/bin/python
