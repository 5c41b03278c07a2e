# Every target sets up what it needs: a fresh clone with Python 3.10 and make is enough.
# `make help` lists the targets. ARGS is passed on to the program: make bench ARGS="--json".

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)
SOURCES := src tests examples benchmarks docs/make_api.py docs/make_site.py

.DEFAULT_GOAL := help
.PHONY: demo test test-slow lint format docs site bench clean help

demo: $(VENV)/.core  ## BFNO-NODE and NODE on digits, compared in a report (about a minute)
	$(BIN)/bfno demo $(ARGS)

# Two workers of one thread each: threads of two programs on two cores would wait for each other.
test: lint  ## lint, types, unit tests, doctests, and the code and commands of all documents
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(VENV)/.dev  ## every test, the slow ones too
	$(BIN)/python -m pytest -m "slow or not slow" $(ARGS)

lint: $(VENV)/.dev  ## ruff (rules and format) and pyright
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(VENV)/.dev $(VENV)/.peers  ## write docs/api.md and the figures of the documents anew
	$(BIN)/python docs/make_api.py
	$(BIN)/python examples/draw_figures.py --folder docs/figures
	$(BIN)/python -m benchmarks.work docs/figures/work-against-precision.png

site: $(VENV)/.dev  ## build the documents as a searchable site, build/site/index.html
	$(BIN)/python docs/make_site.py

bench: $(VENV)/.dev $(VENV)/.peers  ## measure against the peers, side by side in one run
	$(BIN)/bfno bench $(ARGS)

clean:  ## remove caches and what the demo wrote; the environment stays
	rm -rf demo demo-* build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

# Set-up. Each stamp is renewed when the declared dependencies change. torch goes in first, alone
# and by its exact version: an open range can pull a CUDA build of several gigabytes.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e '.[train,report,flows]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev,log]'
	@touch $@

$(VENV)/.peers: $(VENV)/.core
	$(PIP) -e '.[peers]'
	@touch $@
