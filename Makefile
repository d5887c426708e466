# `make demo` runs the main job, `make test` every check. Each makes its own .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types arrows unit bench clean

$(VENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.made
	$(BIN)/bursar --version

test: lint types arrows unit

lint: $(VENV)/.made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.made
	$(BIN)/mypy

arrows: $(VENV)/.made
	$(BIN)/lint-imports --no-logo

unit: $(VENV)/.made
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
