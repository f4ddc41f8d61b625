# Two commands for a newcomer: `make run` and `make test`. .venv is created on first use.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: run reproduce test test-all test-apple-sdk sanitize fuzz check format golden bench figures nano rankers clean
.DEFAULT_GOAL := run

run: .venv/installed-run
	$(BIN)/openafm quickstart

# The report from data to use: 60 to 90 minutes; SIZE=tiny takes 20 and shows no effect. Repeat it to continue.
SIZE ?= micro
reproduce: .venv/installed-test
	$(BIN)/openafm reproduce --size $(SIZE)

test: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -m "not long and not slow and not gpu"

test-all: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -m "not gpu"

# Apple's tests of its SDK on this engine. SUITE is a checkout or a URL to clone; SWAPPED=1 replaces the SDK by openafm. The
# last line of the output has the counts.
test-apple-sdk: .venv/installed-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m openafm.apple_sdk.suite $(if $(SUITE),--suite "$(SUITE)") $(if $(SWAPPED),--swapped)

# Client libraries of other projects against `openafm serve`, in an environment of their own; those that do not install are
# skipped with the reason.
CLIENTS := anthropic "instructor>=1.13" langchain-openai litellm llm ollama openai
.PHONY: test-clients
test-clients: .venv/installed-test
	$(PYTHON) -m venv .venv/clients
	for name in $(CLIENTS); do timeout 300 .venv/clients/bin/pip install -q "$$name" || echo "$$name does not install here"; done
	mkdir -p .venv/clients/node && cd .venv/clients/node && { npm install --silent openai || echo "no Node client here"; }
	OMP_NUM_THREADS=1 OPENAFM_CLIENTS_PYTHON=.venv/clients/bin/python OPENAFM_CLIENTS_NODE=.venv/clients/node \
		$(BIN)/pytest -rs tests/serving/test_client_libraries.py

# The native runtime under sanitizers: memory and undefined behavior, then threads.
NATIVE := tests/runtime/native
sanitize: export OMP_NUM_THREADS = 1
sanitize: .venv/installed-test
	$(call sanitized,address$(comma)undefined$(comma)float-cast-overflow)
	ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		OPENAFM_CACHE=build/sanitize CXX="$(call sanitizing,address$(comma)undefined$(comma)float-cast-overflow)" \
		$(BIN)/pytest -q -p no:cacheprovider $(NATIVE)/test_kernels.py $(NATIVE)/test_native_sequences.py
	$(call sanitized,thread)

comma := ,
# -O1 halves the compile time and keeps line numbers.
sanitizing = $(CXX) -O1 -g -fsanitize=$(1) -fno-sanitize-recover=all
# The library, and a driver without Python that calls it.
define sanitized
	export OPENAFM_CACHE=build/sanitize CXX="$(call sanitizing,$(1))"; \
	library=$$($(BIN)/python -c 'from openafm.runtime.native.build import built_library; print(built_library().path)') && \
	$$CXX -std=c++17 -Wall -Wextra -Isrc/openafm/runtime/native/source $(NATIVE)/sanitize.cpp "$$library" -pthread \
		-o build/sanitize/driver && \
	TSAN_OPTIONS=halt_on_error=1 build/sanitize/driver
endef

# 20,000 mutated files over every format, two minutes of CPU time; the suite runs a short form.
fuzz: .venv/installed-test
	OMP_NUM_THREADS=1 OPENAFM_FUZZ_FILES=20000 $(BIN)/pytest -n 2 tests/fuzz

check: .venv/installed-test
	$(BIN)/ruff format --check src tests benchmarks examples .ci
	$(BIN)/ruff check src tests benchmarks examples .ci
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_words.py
	$(BIN)/python .ci/check_test_names.py
	$(BIN)/python .ci/check_dependencies.py
	$(BIN)/python -m pip check

format: .venv/installed-test
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

golden: .venv/installed-test
	OPENAFM_UPDATE_GOLDEN=1 $(BIN)/pytest tests/recipes/test_golden.py tests/tokenizer

bench: .venv/installed-test
	for script in $(filter-out benchmarks/figures.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script --quick --json || [ $$? -eq 3 ] || exit 1; done

# The full form of every benchmark, one after the other: about a day of a quiet machine. Repeat it to continue.
# ARGUMENTS is a TOML file for those that need data or a peer; see `benchmarks/figures.py --help`.
figures: .venv/installed-test
	$(BIN)/python benchmarks/figures.py $(if $(ARGUMENTS),--arguments "$(ARGUMENTS)")

# A day on one core: trains, scores and bundles the shipped model from scratch. Resumes after a kill. NATURAL is a folder of
# requests that people wrote.
nano: .venv/installed-run
	nice -n 19 $(BIN)/python -m openafm.recipes.shipping $(if $(NATURAL),--natural "$(NATURAL)")

# An hour on one core: trains the rankers of the shipped model, which `make nano` keeps.
rankers: .venv/installed-run
	$(BIN)/python -m openafm.recipes.shipping.ranker --out src/openafm/shipped/nano/ranker $(if $(NATURAL),--natural "$(NATURAL)")
	$(BIN)/python -m openafm.recipes.shipping.spans --out src/openafm/shipped/nano/spans $(if $(NATURAL),--natural "$(NATURAL)")

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "openafm needs Python 3.11 or newer; name one: make PYTHON=python3.12 run" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed-run: pyproject.toml | .venv/bin/python
	$(BIN)/pip install -q -e ".[corpus,metrics,plots]"
	touch $@

.venv/installed-test: pyproject.toml | .venv/bin/python
	$(BIN)/pip install -q -e ".[test]"
	touch $@
