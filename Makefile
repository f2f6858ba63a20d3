# Two commands set everything up on a bare machine with Python >= 3.11 and make: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Idle OpenMP threads that spin instead of sleeping make a busy machine several times slower.
export OMP_WAIT_POLICY = PASSIVE

.PHONY: demo test docs release-check browser lint types unit format clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.base

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	touch $@ $(VENV)/.base

demo: $(VENV)/.base
	$(BIN)/calibrant demo

# The type checker has one process, so it runs beside the suite.
test: lint
	+$(MAKE) --no-print-directory -j 2 types unit

# The site, in site/. A warning, such as a link that leads nowhere, is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d $(VENV)/doctrees docs site
	@echo "Open site/index.html."

# What a release needs: a wheel and a source package in dist/, both installed into an empty environment and tried there.
EMPTY = $(VENV)/empty
release-check: | $(BIN)/python
	rm -rf dist $(EMPTY)
	$(PIP) install -q build twine
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(EMPTY)
	set -e; for package in dist/*; do \
		$(EMPTY)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt --force-reinstall $$deps $$package; \
		cd $(EMPTY); \
		bin/python -c 'import calibrant; assert "site-packages" in calibrant.__file__; print("calibrant", calibrant.__version__)'; \
		bin/calibrant demo --measure --out .; bin/calibrant measure demo.npz; \
		cd - >/dev/null; deps=--no-deps; \
	done

# A browser for the tests of the report, where the system has none. Needs root or sudo for that; without, the tests that need it
# are skipped and say so.
AS_ROOT = $(shell test "$$(id -u)" = 0 && echo env || { sudo -n true 2>/dev/null && echo sudo; })
APT = $(AS_ROOT) DEBIAN_FRONTEND=noninteractive apt-get -qy -o Acquire::Retries=1 -o Acquire::http::Timeout=30
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name && exit 0; done; \
	if command -v apt-get >/dev/null && test -n "$(AS_ROOT)" && $(APT) update \
		&& $(APT) install --no-install-recommends chromium fonts-dejavu-core; then command -v chromium; \
	else echo "No browser can be installed here: the tests that need one will be skipped."; fi

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks examples docs/conf.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/conf.py

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

format: $(VENV)/.dev
	$(BIN)/ruff check --fix src tests benchmarks examples docs/conf.py
	$(BIN)/ruff format src tests benchmarks examples docs/conf.py

clean:
	rm -rf $(VENV) site docs/examples docs/reference .mypy_cache .ruff_cache .pytest_cache
