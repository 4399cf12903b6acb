# Everything from nothing: `make compare` and `make test` need Python 3.11 or newer and no more.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
READY := $(VENV)/.ready

.PHONY: compare test test-slow test-gpu check docs setup clean

setup: $(READY)

# torch first and by its exact pin: an open range would take a build with every accelerator library.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $@

compare: $(READY)
	$(BIN)/cosnorm compare --dataset digits --seeds 5 --out runs/digits

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright
	$(MAKE) docs

# Every page anew, a warning is an error: $(VENV)/site/index.html
docs: $(READY)
	$(BIN)/sphinx-build -EaqW --keep-going -d $(VENV)/doctrees docs $(VENV)/site

test: check
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not gpu"

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow and not gpu"

test-gpu:
	PYTHONPATH=src python3 -m pytest -m gpu

clean:
	rm -rf $(VENV) build dist runs
