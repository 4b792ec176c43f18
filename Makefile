# Every target makes the virtualenv if it is not there. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-kafka test-spark test-spark-jars test-connect azurite chaos fuzz lint format bench docs clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make the virtualenv, with every extra

$(READY): pyproject.toml constraints.txt scripts/setup
	@echo "Setting up $(VENV) (once; it takes a minute or two) ..."
	@scripts/setup $(VENV) $(PYTHON)
	@touch $@

demo: $(READY) ## run Penstock end to end on this machine
	@$(BIN)/penstock demo

# Tests start hundreds of Python processes; without bytecode on disk each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(READY) ## run the tests, but for those that take long
	@scripts/check-java
	@$(PYTEST) -m "not slow and not chaos"

test-all: $(READY) ## run all tests
	@scripts/check-java
	@$(PYTEST) -m "not chaos"

test-kafka: $(READY) ## run the tests that need a Kafka broker, against a real one
	@scripts/check-java
	@jars= && [ -n "$$PENSTOCK_KAFKA" ] || jars=$$(scripts/kafka-jars $(VENV)) && \
	PENSTOCK_KAFKA_JARS=$$jars $(BIN)/python -m pytest tests/metalog tests/engine/kafka tests/cli/test_import.py -k "kafka or import" \
	-m "not chaos"

VERSION ?= 4.1

test-spark: ## run the Spark tests on another Spark: make test-spark VERSION=4.1 (3.5, 4.0, 4.1, 4.2, 4.3)
	@scripts/check-java
	@scripts/test-spark $(VERSION) $(PYTHON)

test-spark-jars: ## read our tables with Delta's and Iceberg's own jars: make test-spark-jars VERSION=4.1 (3.5 to 4.2)
	@scripts/check-java
	@jars=$$(scripts/table-jars $(VERSION)) && \
	PENSTOCK_TABLE_JARS=$$jars scripts/test-spark $(VERSION) "$(PYTHON)" tests/spark/jars

test-connect: ## run the tests of Spark Connect, with what it needs
	@scripts/check-java
	@scripts/test-spark connect $(PYTHON)

AZURITE := azurite@3.37.0

azurite: ## install Azurite, for the tests of the Azure store
	@npm install --prefix .cache/$(AZURITE) --no-audit --no-fund --ignore-scripts --omit=optional $(AZURITE)

chaos: $(READY) ## run the long forms of the proofs too
	@scripts/check-java
	@$(BIN)/python -m pytest --manifests native --manifests opendata

fuzz: $(READY) ## throw broken bytes at the decoders, for a minute
	@$(BIN)/python -m fuzz

lint: $(READY) ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY) ## let ruff format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## measure, side by side with peers
	@$(BIN)/python -m bench

docs: $(READY) ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in site/index.html"

clean: ## remove the virtualenv and everything that was built
	rm -rf $(VENV) .cache build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
