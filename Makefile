# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One more than processors, since tests wait for the programs that they start; eight at most.
WORKERS ?= $(shell n=$$(( $$(getconf _NPROCESSORS_ONLN) + 1 )); echo $$(( n < 8 ? n : 8 )))
NATIVE := CMakeLists.txt pyproject.toml $(wildcard cmake/*) $(wildcard csrc/*/*)

.PHONY: demo test sanitize lint check-native venv bench clean

demo: venv
	rm -rf demo.gpuprof demo.html
	$(BIN)/gpuprof run --out demo.gpuprof examples/transformer.py
	$(BIN)/gpuprof summary demo.gpuprof
	$(BIN)/gpuprof flamegraph demo.gpuprof -o demo.html

test: venv lint
	# Several processes share the processors: OpenMP's threads must not spin while they wait.
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=15

# The native tests under the address and thread sanitizers, on machines of any size.
sanitize: venv
	GPUPROF_SANITIZERS=1 $(BIN)/python -m pytest tests/native

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.?pp' 'tests/native/*.?pp')

# The figures of the README; wants an otherwise idle machine.
bench: venv
	$(BIN)/python benchmarks/overhead.py

venv: $(VENV)/.ready

$(VENV)/.ready: $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "scikit-build-core>=0.10" "pybind11>=2.13" "cmake>=3.20" ninja
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[dev]"
	touch $@

clean:
	rm -rf build dist demo.gpuprof demo.html
