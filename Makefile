# Two commands on a fresh machine: `make demo` and `make test`. Everything else is a part of them.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: demo test setup check lint types contracts tests bench docs mutants clean

demo: $(VENV)/.ready
	$(BIN)/fcil demo --out fcil-demo

test: check tests

setup: $(VENV)/.ready

# torch first and alone, with its pin: anything that asked for it later could pull a CUDA build.
$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]" -c constraints.txt
	touch $@

check: lint types contracts

lint: $(VENV)/.ready
	$(BIN)/ruff format --check src tests examples experiments
	$(BIN)/ruff check src tests examples experiments

types: $(VENV)/.ready
	$(BIN)/mypy

contracts: $(VENV)/.ready
	$(BIN)/lint-imports

tests: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

bench: $(VENV)/.ready
	$(BIN)/fcil bench

docs: $(VENV)/.ready
	$(BIN)/pytest -q tests/test_docs.py

# Changes the heart in a thousand small ways; the tests should notice. Lists those they do not.
mutants: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut results

clean:
	rm -rf $(VENV) fcil-demo runs
