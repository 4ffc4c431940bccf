# perfkit: everything a developer does. Each target sets up what it needs, on a machine with Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch is timed and tested with one thread: OpenMP threads that spin against a neighbour slow it a hundredfold.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-all check bench gpu-check readme clean

help:  ## Show this.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt pip
	$(BIN)/python -m pip install -q -c constraints.txt --group dev -e '.[torch,lightning,tensorboard]'
	@touch $@

$(VENV)/.bench: $(VENV)/.ready
	$(BIN)/python -m pip install -q -c constraints.txt --group bench
	@touch $@

demo: $(VENV)/.ready  ## Train a small model with planted mistakes, find them, measure what each correction gains.
	$(BIN)/perfkit demo

test: $(VENV)/.ready  ## The tests, without the long ones.
	$(BIN)/python -m pytest -m "not slow"

test-all: $(VENV)/.ready  ## All tests.
	$(BIN)/python -m pytest

check: $(VENV)/.ready  ## Lint, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench  ## Run the benchmarks against the peers and rewrite the table in benchmarks/README.md.
	$(BIN)/python -m benchmarks

gpu-check:  ## On a machine with a GPU and its own torch: every test that needs one.
	$(PYTHON) -m pytest tests/gpu -m gpu

readme: $(VENV)/.ready  ## Put the output of a real demo into README.md.
	$(BIN)/python tests/test_readme.py

clean:  ## Remove what the targets above have made.
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache
