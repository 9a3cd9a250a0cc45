# Everything sets itself up first. `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
DEMO_FOLDER ?= demo

# Where it is set, every Python that starts compiles all that it imports; tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test tests test-quick soak lint style types other-types contracts compiled format docs sql bench lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-11s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@scripts/setup

demo: setup ## Run the whole flow on a recording of real messages and draw demo/timeline.svg
	@$(BIN)/waterclock demo --folder $(DEMO_FOLDER)

# What is checked without running leaves a core to the tests, which often wait; tests first, as make begins with the first.
test: setup ## Run lint, types, import contracts and every test
	@$(MAKE) --no-print-directory --jobs=2 tests lint

tests: compiled
	@scripts/test-all

# Tests of each part's heart, all cheap. What needs a process, a server or many examples is left to `make test`.
QUICK := $(addprefix tests/,sql figures ingest/mapping aio/test_names.py test_message.py project/test_public_names.py \
	test_quoting.py test_time.py test_urls_of_files.py) \
	$(addprefix tests/batching/,rate/test_adaptive.py rate/test_rate_aware.py rate/test_rules.py rate/test_scenarios.py \
	test_batch_bytes.py test_by_source.py event_time/test_event_time.py event_time/test_state.py event_time/test_scenarios.py) \
	$(addprefix tests/tables/,claiming/test_conditions.py claiming/test_receiving.py connections/test_transactions.py \
	finishing/test_acking.py finishing/test_attempts.py finishing/test_backoff.py groups/test_exclusive_groups.py \
	options/test_options.py putting/test_putting.py putting/test_unique_keys.py schedules/test_schedules.py) \
	$(addprefix tests/topics/,reading/test_subscriptions.py test_topic.py writing/test_appending.py \
	writing/test_group_commit.py writing/test_producers.py)

test-quick: setup ## Run the cheap tests of each part, on SQLite: a minute
	@$(BIN)/pytest -m "not slow" --databases sqlite -n auto --dist loadscope $(QUICK)

soak: setup ## Run the long soaks, and every property on thousands of examples
	@HYPOTHESIS_PROFILE=soak $(BIN)/pytest -m "slow or hypothesis" --timeout 3600

lint: style types other-types contracts ## Check style, types and import contracts

style: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

# With Node's own small space for new objects, collecting garbage takes a seventh of the time.
types: setup
	@NODE_OPTIONS=--max-semi-space-size=256 $(BIN)/pyright

other-types: setup
	@$(BIN)/mypy --no-error-summary

contracts: setup
	@$(BIN)/lint-imports

# Else each process that needs them first compiles the same at the same time, for 45 s.
compiled: setup
	@$(BIN)/python scripts/compile-kernels || [ $$? = 2 ]  # without a C compiler, Numba compiles the kernels

format: setup ## Rewrite the files in the house style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## Build the documentation into site/
	@$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

sql: setup ## Record the statements that run, and write docs/sql.md anew
	@$(BIN)/python -m tests.sql.write

bench: setup ## Measure, and write benchmarks/results/*.json
	@$(BIN)/python -m benchmarks

lock: setup ## Pin every dependency anew in requirements.lock
	@$$(command -v uv || find .tools -path '*/bin/uv') pip compile pyproject.toml --all-extras --group dev --universal \
	    --generate-hashes --python-version 3.11 --upgrade --quiet -o requirements.lock

clean: ## Remove everything that the other targets made
	@rm -rf .venv .tools $(DEMO_FOLDER) site dist benchmarks/scratch .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	@find src \( -name 'lib*.so' -o -name 'lib*.part' \) -delete
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
