# Two commands matter: `make demo` and `make test`. Both set up the virtual environment first.
#
# PYTHON  the interpreter to build the environment with, 3.11 or later (found when not given)
# WORKERS how many processes run the tests, many of which wait for other processes; a file's tests stay together
# BENCH_ARGS  --quick: a short look instead of a measurement

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
PYTEST_ARGS ?=
STAMP := $(VENV)/.kalda-installed
COMPILED := $(filter-out %/__init__.py,$(wildcard src/kalda/records/*.py src/kalda/*/*.pxd)) \
    src/kalda/base/samples.py src/kalda/broker/stopwatch.py src/kalda/broker/system_clock.py

.PHONY: setup demo docs test lint lint-style lint-types lint-floors bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py .ci/setup $(COMPILED)
	.ci/setup "$(VENV)" "$(PYTHON)"
	touch $@

demo: setup
	$(BIN)/python examples/demo.py

docs: setup
	PYTHONPATH=src $(BIN)/mkdocs build

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

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

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo
	find src -name '*.so' -delete
