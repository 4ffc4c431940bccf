# perfkit: everything a developer does. Each target sets up what it needs, on a machine with Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAKE_GPU := .venv-fake-gpu
# torch is timed and tested with one thread: OpenMP threads that spin against another process slow it a hundredfold.
export OMP_NUM_THREADS ?= 1
# Two files of tests at a time: most tests wait for a program they have started. A file stays together, since its tests
# share what takes long to make (a wheel, a browser, a trained run). A test that hangs where its time limit does not reach
# it, as in C, ends its process two minutes after the longest of these limits, and with a process of tests the run ends:
# after a new start xdist (3.8) waits for ever for the last tests.
TOGETHER := -n 2 --dist loadfile --max-worker-restart 0 -o faulthandler_timeout=1020 -o faulthandler_exit_on_timeout=true
# What takes longest is listed: `make test` stays below ten minutes on two cores.
TOGETHER += --durations=100 --durations-min=2

.PHONY: help demo test test-all test-long test-verdict test-lightning test-torch check docs bench bench-verdict gpu-check fake-gpu readme clean

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

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install -q -c constraints.txt --group docs
	@touch $@

$(VENV)/.suite: $(VENV)/.ready
	$(BIN)/python -m pip install -q -c constraints.txt --group suite
	@touch $@

$(VENV)/.peers: $(VENV)/.ready
	$(BIN)/python -m pip install -q -c constraints.txt --group peers
	@touch $@

demo: $(VENV)/.ready  ## Train a small model with planted mistakes, find them, measure what each correction saves.
	$(BIN)/perfkit demo

test: $(VENV)/.ready  ## The tests, without the long ones.
	$(BIN)/python -m pytest $(TOGETHER) -m "not slow and not long and not verdict"

test-all: $(VENV)/.bench $(VENV)/.docs $(VENV)/.suite  ## All tests, also those against peers.
	$(BIN)/python -m pytest $(TOGETHER) -m "not long and not verdict"

test-long: $(VENV)/.bench  ## The tests of many minutes: a million steps, a hundred kills, every fault, mutated files.
	$(BIN)/python -m pytest -m long

test-verdict: $(VENV)/.suite  ## Every program of the labelled suite: the right cause first, at the right line.
	$(BIN)/python -m pytest -m verdict tests/pathologies

# Lightning alone is another one: everything else comes from .venv and from this checkout.
test-lightning: $(VENV)/.ready  ## The Lightning tests against older versions from the package index.
	for v in 2.2.5 2.5.6; do d=$$(mktemp -d) && $(BIN)/python -m venv $$d && \
	s=$$($$d/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	printf '%s\n' $$(cd $(VENV)/lib/python3*/site-packages && pwd) $(CURDIR) > $$s/zz_base.pth && \
	$$d/bin/pip install -q --no-deps lightning==$$v pytorch-lightning==$$v && \
	$$d/bin/python -m pytest tests/integrations/test_lightning_*.py || exit 1; rm -rf $$d; done

test-torch:  ## The tests with another torch (3 to 6 GB): make test-torch VERSION=2.6.0 [PYTHON=python3.10].
	$(PYTHON) tests/other_torch.py "$(VERSION)" $(TOGETHER)

check: $(VENV)/.ready  ## Lint, format, types, and who may import whom.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs  ## Build the site of docs/ into docs/_build; a warning is an error.
	$(BIN)/sphinx-build -E -a -W --keep-going -n -q -b html docs docs/_build

bench: $(VENV)/.bench  ## Run the benchmarks next to the peers and rewrite the tables in benchmarks/README.md.
	$(BIN)/python -m benchmarks

bench-verdict: $(VENV)/.suite $(VENV)/.peers  ## Run both halves of the labelled suite: how often the verdict is right, and the peers'.
	$(BIN)/python -m benchmarks verdict verdict_peers

gpu-check:  ## On a machine with a GPU and its own torch: every test that needs one, and the benchmark of savings there.
	$(PYTHON) -m pytest tests/gpu -m gpu
	$(PYTHON) -m benchmarks gpu

# torch's CUDA build on a simulated runtime (tests/fake_gpu/README.md): 5 GB, about a minute to install and some to run.
# Those marked slow take minutes each: $(BIN)/python tests/fake_gpu/run.py -m pytest tests/gpu -m "semantics and slow"
fake-gpu: $(VENV)/.ready  ## Without a GPU: the tests of CUDA's semantics on a simulated runtime.
	$(BIN)/python tests/fake_gpu/build.py $(FAKE_GPU)
	FAKE_GPU_DEVICES=2 $(BIN)/python tests/fake_gpu/run.py -m pytest $(TOGETHER) tests/fake_gpu tests/gpu -m "(semantics or values) and not slow"

readme: $(VENV)/.ready  ## Put the output of a real demo into README.md, and of real runs into docs/tutorial.md.
	$(BIN)/python tests/test_readme.py
	$(BIN)/python -m tests.docs.tutorial

clean:  ## Remove what the targets above have made.
	rm -rf $(VENV) $(VENV)-torch-* $(FAKE_GPU) build dist *.egg-info .mypy_cache .ruff_cache docs/_build docs/_generated
