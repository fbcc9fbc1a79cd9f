# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One more than processors, because tests wait for the programs that they start; at most eight.
WORKERS ?= $(shell n=$$(( $$(getconf _NPROCESSORS_ONLN) + 1 )); echo $$(( n < 8 ? n : 8 )))
# uv needs seconds where pip needs a minute.
INSTALL = $(if $(shell command -v uv),uv pip install --quiet --python $(BIN)/python $(1) ||) $(BIN)/pip install --quiet $(1)
EXTRA := build/integration/venv
NATIVE := CMakeLists.txt pyproject.toml $(wildcard cmake/*) $(wildcard csrc/*/*)

.PHONY: demo test run-tests native-tests integration optional-tests slow-tests benchmark-tests packages sanitize lint lint-pages venv wheel bench clean

demo: $(VENV)/.installed
	rm -rf demo.gpuprof demo.html
	$(BIN)/gpuprof demo

# Two steps at once keep the processors busy: pip downloads while the native tests are built. Each build may use all
# processors; MAKEFLAGS would limit it to one of the two jobs.
test:
	$(MAKE) -j2 venv native-tests
	$(MAKE) -j2 lint run-tests

run-tests: venv
	# Several processes share the processors: OpenMP's threads must not spin while they wait.
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m "not slow and not needs" -n $(WORKERS) --dist worksteal --durations=15

# A Python test runs them, and rebuilds what has changed.
native-tests: $(VENV)/.tools
	PATH="$(abspath $(BIN)):$$PATH" cmake --preset default >/dev/null
	MAKEFLAGS= $(BIN)/cmake --build build/default -- --quiet

# What `make test` leaves out, as it takes downloads or minutes: the sanitizers, the tests of optional packages and those
# marked slow, the benchmarks in short, and wheels in clean environments. Packages are downloaded while the sanitized builds
# use the processors.
integration:
	$(MAKE) -j2 --output-sync=target sanitize optional-tests
	$(MAKE) slow-tests
	$(MAKE) benchmark-tests
	$(MAKE) packages

optional-tests: $(EXTRA)/.ready
	$(EXTRA)/bin/python -m pytest -m needs --require-optional --durations=5

slow-tests: venv
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m "slow and not needs" -n $(WORKERS) --dist worksteal --durations=15

benchmark-tests: venv
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/benchmarks -n $(WORKERS) --dist loadfile --durations=5

packages: $(EXTRA)/.ready
	$(EXTRA)/bin/python -m pytest tests/integration --require-optional -o faulthandler_timeout=1800 --durations=0 --durations-min=1

# The native tests under the address and thread sanitizers, on machines of any size.
sanitize: venv
	GPUPROF_SANITIZERS=1 $(BIN)/python -m pytest -o faulthandler_timeout=1800 tests/native

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_language.py
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.?pp' 'tests/native/*.?pp')
	if command -v npm >/dev/null; then $(MAKE) lint-pages; else echo "no Node.js: JavaScript is not linted"; fi

# The JavaScript of the pages. Only this needs Node.js.
lint-pages: node_modules/.package-lock.json
	npm run --silent lint

node_modules/.package-lock.json: package-lock.json
	npm ci --silent
	touch $@

# The figures of the README; needs an idle machine.
bench: venv
	$(BIN)/python benchmarks/overhead.py

# For this Python and for systems with this C library or a newer one.
wheel: $(VENV)/.tools
	MAKEFLAGS= $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

venv: $(VENV)/.ready

$(VENV)/.tools:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call INSTALL,"scikit-build-core>=0.10" "pybind11>=3.0" "cmake>=3.20" ninja)
	touch $@

# What a user installs: no linters and no tests.
$(VENV)/.installed: $(NATIVE) | $(VENV)/.tools
	MAKEFLAGS= $(call INSTALL,--no-build-isolation --editable ".[demo]")
	touch $@

$(VENV)/.ready: $(NATIVE) | $(VENV)/.tools
	MAKEFLAGS= $(call INSTALL,--no-build-isolation --config-settings=cmake.define.GPUPROF_WERROR=ON --editable ".[dev]")
	touch $@ $(VENV)/.installed

# The optional packages, on top of those of $(VENV): its folder is one more that Python looks into.
$(EXTRA)/.ready: $(VENV)/.ready
	$(BIN)/python -m venv $(EXTRA)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$($(EXTRA)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/development.pth"
	$(EXTRA)/bin/pip install --quiet "gpuprof-native[integration]"
	touch $@

clean:
	rm -rf build dist node_modules demo.gpuprof demo.html
