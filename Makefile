# Two commands for a newcomer: `make run` and `make test`. Everything lives in .venv and is made on first use.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: run test test-all test-apple-sdk sanitize check format golden bench nano clean
.DEFAULT_GOAL := run

run: .venv/installed-run
	$(BIN)/openafm quickstart

test: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow and not gpu"

test-all: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not gpu"

# Apple's own tests of its SDK, above our engine. SUITE names a checkout of it, or where to clone one; SWAPPED=1 runs them with
# openafm in place of the SDK. The last line counts.
test-apple-sdk: .venv/installed-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m openafm.apple_sdk.suite $(if $(SUITE),--suite "$(SUITE)") $(if $(SWAPPED),--swapped)

# The native runtime under the compiler's sanitizers: memory and undefined behaviour, then threads. Each is compiled first.
NATIVE_TESTS := tests/runtime/native/test_kernels.py tests/runtime/native/test_native_sequences.py
sanitize: export OMP_NUM_THREADS = 1
sanitize: .venv/installed-test
	$(call sanitized,address$(comma)undefined,libasan,ASAN_OPTIONS=detect_leaks=0,$(NATIVE_TESTS))
	$(call sanitized,thread,libtsan,TSAN_OPTIONS=halt_on_error=1,$(NATIVE_TESTS) -k "beside or sequence")

comma := ,
# $(1) what to look for, $(2) the sanitizer's library, $(3) its options, $(4) the tests.
define sanitized
	export OPENAFM_CACHE=build/sanitize CXX="$(CXX) -g -fsanitize=$(1) -fno-sanitize-recover=all"; \
	$(BIN)/python -c 'from openafm.runtime.native.build import built_library; built_library()' && \
	env $(3) LD_PRELOAD="$$($(CXX) -print-file-name=$(2).so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(BIN)/pytest -q -p no:cacheprovider $(4)
endef

check: .venv/installed-test
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed-test
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

golden: .venv/installed-test
	OPENAFM_UPDATE_GOLDEN=1 $(BIN)/pytest tests/recipes/test_golden.py tests/tokenizer

bench: .venv/installed-test
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script --quick --json || [ $$? -eq 3 ] || exit 1; done

# Hours: trains, scores and bundles the model that ships with the package anew. Killed at any point, it goes on.
nano: .venv/installed-run
	$(BIN)/python -m openafm.recipes.ship

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "openafm needs Python 3.11 or newer; name one: make PYTHON=python3.12 run" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed-run: pyproject.toml | .venv/bin/python
	$(BIN)/pip install -q -e ".[metrics,plots]"
	touch $@

.venv/installed-test: pyproject.toml | .venv/bin/python
	$(BIN)/pip install -q -e ".[test]"
	touch $@
