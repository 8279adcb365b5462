# Everything a contributor runs. The first target that needs it makes .venv and installs into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-numerics check bench bench-gpu support docs notebooks format lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## audit the toy world: a table, and saved audits in runs/demo
	$(BIN)/uds-lens demo

test: $(INSTALLED)  ## all tests and doctests, on every core (4 at most: each worker holds torch)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-long: $(INSTALLED)  ## what `make test` leaves out: every family in every test, pages in a browser, the pages of the docs, a sweep on a Slurm of one node (skips without slurm-wlm and munge), a whole study, training in two processes
	$(BIN)/python -m pytest -q -rs -m long --durations=5 -n auto --maxprocesses 4 --dist loadfile tests

test-numerics: $(INSTALLED)  ## the tests that train, as on other processors and on two threads; SETTINGS="avx2:1 own:2": only these
	$(BIN)/python tests/numerics.py $(SETTINGS)

check: $(INSTALLED)  ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(INSTALLED)  ## measure cost and memory of an audit (needs the shared data and models), and their growth; COMPARE=COMMIT: beside an earlier one
ifdef COMPARE
	$(BIN)/python benchmarks/compare_commits.py $(COMPARE)
else
	$(BIN)/python benchmarks/audit_cost.py
	$(BIN)/python benchmarks/memory_cost.py
	$(BIN)/python benchmarks/growth.py
endif

bench-gpu: $(INSTALLED)  ## the same on a GPU, with random models of 1B, 8B and (streamed) 70B proportions
	$(BIN)/python benchmarks/gpu.py

support: $(INSTALLED)  ## write docs/support.md from the tests of families and forms
	PYTHONPATH=tests $(BIN)/python -m pytest -q -m "" -p support_table \
	  tests/audit/test_parity.py tests/audit/test_breadth.py tests/audit/test_guards.py \
	  tests/audit/test_hooked_models.py tests/patching/test_engines.py tests/test_rows_alone.py

docs: $(INSTALLED)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir site

notebooks: $(INSTALLED)  ## run the notebooks and write their outputs (needs a Chrome or Chromium for the pictures)
	$(BIN)/python notebooks/execute.py

format: $(INSTALLED)  ## put the code (notebooks too) into its format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lock: $(INSTALLED)  ## write requirements.lock: the versions of constraints.txt with the hashes of their files
	$(PIP) uv==0.13.9
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
	  --constraints constraints.txt --custom-compile-command "make lock" \
	  --extra dev --extra docs --extra slurm --extra static --output-file requirements.lock pyproject.toml

clean:  ## remove .venv, caches and builds; results in runs/ stay
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Every file is checked against its hash. The build of torch for CPUs alone comes first where an index offers it; next
# to the package index's build, whose hash the index tells, pip would pass it over. The last step installs what the lock
# does not reach, such as the packages of CUDA that other builds pin.
$(INSTALLED): pyproject.toml constraints.txt requirements.lock requirements-cpu.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "uds_lens needs Python 3.10 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing into $(VENV); the first time this takes some minutes."
	@$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps -r requirements-cpu.lock 2>/dev/null || echo "torch: the build of the package index"
	$(PIP) --require-hashes --no-deps -r requirements.lock
	$(PIP) --no-build-isolation -c constraints.txt -e ".[dev,docs,slurm,static]"
	@touch $@
