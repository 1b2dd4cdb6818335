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

# The third: the site, the tutorials and the release.
VENV_DOCS ?= .venv-docs
BIN_DOCS := $(VENV_DOCS)/bin
LOCK_DOCS := constraints-docs.txt
STAMP_DOCS := $(VENV_DOCS)/.installed-$(shell cat $(LOCK) $(LOCK_DOCS) pyproject.toml | sha256sum | cut -c1-16)

.PHONY: demo serve-demo test test-device test-timm lint types bench mutants soak fuzz docs docs-test pictures dist clean \
	setup

setup: $(STAMP)
	@$(BIN)/python -c "import driftgate, pathlib, sys; sys.exit(pathlib.Path(driftgate.__file__).parents[2] != pathlib.Path.cwd())" 2>/dev/null \
		|| $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .

$(STAMP):
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q -c $(LOCK) -e ".[lab,serve,lite,export,ray,tensorboard,dev]"
	touch $@

demo: setup
	$(BIN)/driftgate demo

serve-demo: setup
	$(BIN)/driftgate serve --demo

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
	$(BIN_TIMM)/python -m pytest -m timm tests/test_timm.py

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

# Long: real kills of every method, and 20,000 steps. What they showed is in docs/reliability.md.
soak: setup
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/soak.py

# Long: INPUTS inputs for every reader and for the methods, in one piece; START goes on where another piece ended.
INPUTS ?= 100000
START ?= 0
fuzz: setup
	$(BIN)/python benchmarks/fuzz.py --inputs $(INPUTS) --start $(START)
	$(BIN)/python benchmarks/many.py

$(STAMP_DOCS):
	$(PYTHON) -m venv --clear $(VENV_DOCS)
	$(BIN_DOCS)/python -m pip install -q -c $(LOCK) -c $(LOCK_DOCS) -e ".[lab,docs,release]"
	touch $@

docs: $(STAMP_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN_DOCS)/mkdocs build --quiet --strict
	@echo "The site is in site/: open site/index.html."

docs-test: docs
	$(BIN_DOCS)/python docs/tools/notebooks.py

pictures: $(STAMP_DOCS)
	$(BIN_DOCS)/python docs/tools/pictures.py

dist: $(STAMP_DOCS)
	rm -rf dist build
	$(BIN_DOCS)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN_DOCS)/twine check --strict dist/*
	bash .ci/try-wheel dist $(PYTHON)

clean:
	rm -rf .venv* runs site dist build
