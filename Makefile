# `make demo` and `make test` are all it takes on a machine with python3 (3.11 or newer).
# PYTHON chooses the interpreter, VENV where the virtual environment lies.

PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
SETUP := setup.cfg pyproject.toml constraints.txt
# Of ten thousand modules some are imported, and are compiled then: compiling all takes half of the time.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Tests run side by side, so each of them computes on one thread.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Neighbours stay in one process, which has what they share computed already.
BOTH_CORES := -n 2 --dist worksteal
# Tests start dozens of processes: each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

DEMO_PLAN := z=64,dp=rest,recompute=full,overlap=oar+ors+oag

# How `make demo` ends; a test runs the commands.
define SHOWN

Shown: a step predicted, AxoNN's weak scaling predicted beside what was published (share of the peak), and a
small GPT trained on two ranks here, its steps beside their prediction from a calibration of this machine.

Next:
  $(BIN)/simgpt search gpt-5b -m perlmutter -n 64 --stack simgpt --batch 256
  $(BIN)/simgpt why gpt-80b -m frontier -n 8192 --stack simgpt --plan $(DEMO_PLAN) --batch 8192
  $(BIN)/simgpt predict llama-3.1-70b -m 64x8xH100,8xNDR -n 512 --stack megatron-core --plan tp=8,pp=4,dp=rest,mbs=1,sp=true --batch 1024
endef
export SHOWN

.PHONY: demo dist wheels docs check checks test tests test-all all-tests test-gpu gpu-check mutate fuzz bench lint format clean

demo: $(VENV)/.installed-run
	$(BIN)/simgpt predict gpt-80b -m frontier -n 8192 --stack simgpt --plan $(DEMO_PLAN) --batch 8192
	$(BIN)/simgpt validate seeds --only axonn-weak-frontier
	$(BIN)/simgpt run tiny-2m --plan dp=2,precision=fp32 --ranks 2 --batch 16 --steps 20
	@echo "$$SHOWN"

# Types are checked on one core, and tests now and then wait for each other: run both at once.
BESIDE_LINT = $(MAKE) --no-print-directory --jobs 2 lint

# Under three minutes on two cores: the files of tests/check.txt.
check: $(VENV)/.installed-test
	$(BESIDE_LINT) checks

checks: $(VENV)/.installed-test
	$(PYTEST) $(BOTH_CORES) -m "not gpu and not slow" @tests/check.txt

# What CI runs: all quick tests.
test: $(VENV)/.installed-test
	$(BESIDE_LINT) tests

tests: $(VENV)/.installed-test
	$(PYTEST) $(BOTH_CORES) -m "not gpu and not slow"

# Hours. CI runs it each night and keeps its record (tools/test_record.py).
test-all: $(VENV)/.installed-test
	$(BESIDE_LINT) all-tests

all-tests: $(VENV)/.installed-test
	$(PYTEST) $(BOTH_CORES) -m "not gpu" --junitxml=build/test-all.xml

# On a machine with a GPU: tests, calibration, validation and throughput, within 25 minutes and without
# a network once what the tests need is installed.
gpu-check: $(VENV)/.installed-test
	$(BIN)/python -m tools.gpu_check

test-gpu: $(VENV)/.installed-test
	$(PYTEST) -m gpu

# Random mutations of named packages, or of what changed since a commit, and those that no test notices:
# `make mutate PATHS=simulator/costs NUMBER=50`, `make mutate SINCE=v0.3.0`.
NUMBER ?= 50
mutate: $(VENV)/.installed-mutate
	$(BIN)/python -m tools.mutate $(PATHS) --number $(NUMBER) $(if $(SINCE),--since $(SINCE)) $(if $(SEED),--seed $(SEED))

fuzz: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simgpt.fuzz --inputs 10000 --seeds 11,12,13

# On a quiet machine, an hour and a half: this checkout and another commit in turns. AGAINST is that commit,
# without it the last release or else the commit before; ONLY chooses: predict, sweep, why/a, ...
bench: $(VENV)/.installed-run
	$(BIN)/python -m tools.bench_against $(AGAINST) $(addprefix --only ,$(ONLY)) $(BENCH)

# The documentation as a site, in build/site; any warning is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What a release is: built, its description checked, and the wheel used where nothing else is.
dist: $(VENV)/.installed-release
	rm -rf dist build
	$(BIN)/python -m build --quiet --outdir dist
	$(BIN)/twine check --strict dist/*
	rm -rf build/fresh && $(PYTHON) -m venv build/fresh
	build/fresh/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/fresh && bin/python -c "from simulator.engine.core import is_built; assert is_built()" && \
		bin/simgpt --version && bin/simgpt predict gpt-5b -m frontier -n 512 --stack simgpt --batch 512 \
		--plan z=16,dp=rest,recompute=full

# Wheels with the compiled core for this machine's system; on Linux in containers, which takes Docker.
wheels: $(VENV)/.installed-release
	$(BIN)/python -m cibuildwheel --output-dir dist

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamps keep a second `make` from installing again.
$(VENV)/.installed-run: $(SETUP) | $(BIN)/python
	$(INSTALL) -e '.[run]'
	@touch $@

$(VENV)/.installed-test: $(SETUP) | $(BIN)/python
	$(INSTALL) -e '.[run,test,cluster]'
	@touch $@ $(VENV)/.installed-run

$(VENV)/.installed-mutate: $(SETUP) | $(VENV)/.installed-test
	$(INSTALL) -e '.[run,test,cluster,mutate]'
	@touch $@

$(VENV)/.installed-docs: $(SETUP) | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.installed-release: $(SETUP) | $(BIN)/python
	$(INSTALL) -e '.[release]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("simgpt needs Python 3.11 or newer; choose one with \
	make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
