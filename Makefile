# make lab    opens JupyterLab on the tour
# make test   everything: format, lint, types, floors, tests; what a browser saw is kept in build/shots
# make check  the quick part of it
# make sweeps counts every claim about crashes anew: the tables of the README (half an hour)
# make pictures takes the pictures of the README again, from the real thing (a minute)
# make format makes the first two happy
#
# Both `lab` and `test` make .venv here with the first Python >= 3.11 they find (PYTHON=... names one), and
# again when pyproject.toml or constraints.txt changed. PEERS=1, or CI=true, also installs and runs the peer.

.SUFFIXES:
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help lab test check sweeps pictures format clean static tests fast-tests

ifeq ($(CI),true)
PEERS := 1
endif
export PEERS

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
# Once for all: with PYTHONDONTWRITEBYTECODE every kernel and every child would compile the package anew, half a second.
COMPILED := $(BIN)/python -m compileall -q pidurable_nb
NEEDS := pyproject.toml constraints.txt .venv/.made
CHECKED := $(if $(filter 1,$(PEERS)),.venv/.peers,.venv/.test)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

lab: .venv/.lab
	@$(COMPILED)
	@$(BIN)/pidurable-nb lab $(ARGS)

test: static tests

check: static fast-tests

static: $(CHECKED)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports --no-logo --no-cache

# Two halves side by side, since most of the first is single processes that wait for others. ARGS picks tests by hand.
FIRST := $(filter-out tests/lab/ tests/cli/ %__pycache__/ tests/typing_cases/,$(wildcard tests/*/)) $(wildcard tests/test_*.py)
SECOND := tests/lab tests/cli

tests: $(CHECKED)
	@$(COMPILED)
ifeq ($(ARGS),)
	@echo "pytest $(SECOND), beside the rest of tests/"; \
	$(BIN)/python -m pytest -q $(SECOND) >.venv/.second.log 2>&1 & second=$$!; \
	$(BIN)/python -m pytest -q $(FIRST); first=$$?; \
	wait $$second; second=$$?; cat .venv/.second.log; exit $$((first | second))
else
	$(BIN)/python -m pytest -q $(ARGS)
endif

fast-tests: $(CHECKED)
	@$(COMPILED)
	$(BIN)/python -m pytest -q -m "not slow" $(ARGS)

sweeps: $(CHECKED)
	$(BIN)/python tests/sweeps.py

pictures: $(CHECKED)
	$(BIN)/python -m tests.pictures

format: .venv/.test
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A checkout that was moved or copied along with its .venv holds scripts and imports of the old place: made anew.
ifneq ($(shell cat .venv/.made 2>/dev/null),$(CURDIR))
.PHONY: .venv/.made
endif

# Asked of each candidate: a version manager may put a name on the path that only complains when it is run.
FIT := import sys; sys.exit(sys.version_info < (3, 11))

.venv/.made:
	@if [ -f $@ ]; then rm -rf .venv; fi; \
	for python in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python); do \
	    "$$python" -c '$(FIT)' >/dev/null 2>&1 || continue; \
	    if ! "$$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then bare="$$bare $$python"; continue; fi; \
	    if .venv/bin/python -c '$(FIT)' >/dev/null 2>&1 && .venv/bin/python -m pip --version >/dev/null 2>&1; then :; \
	    else echo "making .venv with $$python"; rm -rf .venv; "$$python" -m venv .venv || exit 1; fi; \
	    echo "$(CURDIR)" >$@; exit 0; \
	done; \
	if [ -n "$$bare" ]; then \
	    set -- $$bare; version=$$("$$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    echo "$$1 has no venv module: install it (Debian and Ubuntu: apt install python$$version-venv), then run make again" >&2; \
	else \
	    echo "no Python 3.11 or newer found: install one, or name it: make test PYTHON=/path/to/python3" >&2; \
	fi; exit 1

.venv/.lab: $(NEEDS)
	@echo "installing the notebook into .venv (a minute or two, once)"
	@$(INSTALL) -e '.[notebook]'
	@touch $@

# What people see is tested in a browser: one that is here, else the one that playwright brings, else the system's.
OWN_CHROMIUM := from playwright.sync_api import sync_playwright; import os, sys; p = sync_playwright().start(); \
    found = os.path.exists(p.chromium.executable_path); p.stop(); sys.exit(not found)
define chromium
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	    if command -v $$name >/dev/null 2>&1; then exit 0; fi; \
	done; \
	if $(BIN)/python -c '$(OWN_CHROMIUM)'; then exit 0; fi; \
	echo "installing chromium, for the tests of what people see (once)"; \
	if [ "$$(id -u)" = 0 ]; then \
	    $(BIN)/playwright install --with-deps chromium || (apt-get update -qq && apt-get install -y -qq chromium) && exit 0; \
	else \
	    $(BIN)/playwright install chromium && exit 0; \
	fi; \
	echo "no chromium could be installed; install one (Debian and Ubuntu: apt install chromium), then run make again" >&2; \
	exit 1
endef

.venv/.test: $(NEEDS)
	@echo "installing the notebook and the tools into .venv (a minute or two, once)"
	@$(INSTALL) -e '.[notebook,dev]'
	$(chromium)
	@touch $@ .venv/.lab

.venv/.peers: $(NEEDS)
	@echo "installing the notebook, the tools and the peer into .venv (a minute or two, once)"
	@$(INSTALL) -e '.[notebook,dev,peers]'
	$(chromium)
	@touch $@ .venv/.lab .venv/.test
