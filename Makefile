# The single entry: every target sets up the environment it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCK := constraints.txt
# The environment is rebuilt when the lock file or the list of dependencies changes: their hash is in the stamp's name,
# so the stamp depends on no file (a fresh clone has new dates, and must not rebuild a cached environment).
STAMP := $(VENV)/.installed-$(shell cat $(LOCK) pyproject.toml | sha256sum | cut -c1-16)
# The second environment: timm needs torchvision, which has no build for the light torch of the first one. It is large
# (5.5 GB), so it is rebuilt only when its own lock file changes.
VENV_TIMM ?= .venv-timm
BIN_TIMM := $(VENV_TIMM)/bin
LOCK_TIMM := constraints-timm.txt
STAMP_TIMM := $(VENV_TIMM)/.installed-$(shell sha256sum $(LOCK_TIMM) | cut -c1-16)

.PHONY: demo test test-device test-timm lint types bench mutants clean setup

setup: $(STAMP)
	@$(BIN)/python -c "import driftgate, pathlib, sys; sys.exit(pathlib.Path(driftgate.__file__).parents[2] != pathlib.Path.cwd())" 2>/dev/null \
		|| $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .

$(STAMP):
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q -c $(LOCK) -e ".[lab,lite,ray,tensorboard,dev]"
	touch $@

demo: setup
	$(BIN)/driftgate demo

test: setup
	$(BIN)/python -m pytest

$(STAMP_TIMM):
	$(PYTHON) -m venv --clear $(VENV_TIMM)
	$(BIN_TIMM)/python -m pip install -q -r $(LOCK_TIMM)
	touch $@

# The contract on a real device: make test-device DEVICE=cuda (or mps, or strict: the tests' own).
DEVICE ?= strict
test-device: setup
	DRIFTGATE_DEVICE=$(DEVICE) $(BIN)/python -m pytest tests/contract

test-timm: $(STAMP_TIMM)
	$(BIN_TIMM)/python -m pip install -q --no-deps --no-build-isolation -e .
	$(BIN_TIMM)/python -m pytest -m timm

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/gmm_step.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/methods.py

mutants: setup
	$(BIN)/python benchmarks/mutants.py

clean:
	rm -rf .venv* runs
