# Two commands matter: `make demo` and `make test`. Both set up the virtual environment first; the demo needs less of it.
#
# PYTHON  the interpreter to build the environment with, 3.11 or later (found when not given)
# WORKERS how many processes run the tests, many of which wait for other processes; a file's tests stay together
# BENCH_ARGS  --quick: a short look instead of a measurement

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 4
PYTEST_ARGS ?=
STAMP := $(VENV)/.kalda-installed
DEMO_STAMP := $(VENV)/.kalda-demo-installed
SETUP_STEPS ?= 4
COMPILED := $(filter-out %/__init__.py,$(wildcard src/kalda/records/*.py src/kalda/*/*.pxd)) \
    src/kalda/base/samples.py src/kalda/broker/system_clock.py

.PHONY: setup demo docs test lint lint-style lint-types lint-floors bench release clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py .ci/setup $(COMPILED)
	@$(MAKE) --no-print-directory SETUP_STEPS=5 $(DEMO_STAMP)
	@SETUP_STEPS=5 .ci/setup "$(VENV)" dev
	@touch $@

$(DEMO_STAMP): pyproject.toml setup.py .ci/setup $(COMPILED)
	@SETUP_STEPS=$(SETUP_STEPS) .ci/setup "$(VENV)" demo "$(PYTHON)"
	@touch $@

# What development needs has all that the demo needs.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	@rm -rf .demo
	$(BIN)/kalda demo --dir .demo

docs: setup
	PYTHONPATH=src $(BIN)/mkdocs build

# With bytecode: else each process compiles all tests, and rewrites their assertions.
test: setup
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: lint-style lint-types lint-floors

lint-style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: setup
	$(BIN)/mypy --strict src/kalda
	$(BIN)/mypy --strict docs/examples

lint-floors: setup
	$(BIN)/lint-imports --no-cache

bench: setup
	@for file in bench/[a-z]*.py; do echo "== $$file"; $(BIN)/python "$$file" $(BENCH_ARGS) || exit 1; done

# What is published of a tagged commit, in dist/. RELEASE_ARGS=--untagged tries it with any commit.
release: setup
	$(BIN)/python -m pip install -q 'kalda[release]'
	$(BIN)/python packaging/release.py $(RELEASE_ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo
	find src -name '*.so' -delete
