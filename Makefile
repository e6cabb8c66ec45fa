# SPDX-License-Identifier: Apache-2.0
# Short names for what CMakePresets.json and tools/ do. `make demo` and `make test` are all a newcomer needs.
FUZZ_SECONDS ?= 60
COVERAGE_MIN ?= 90
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)

.PHONY: build deps deps-dev demo test sanitize fuzz bench bless format format-check lint coverage install clean

build:
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release $(if $(TARGET),--target $(TARGET))

deps:       ; @tools/deps.sh build
deps-dev:   ; @tools/deps.sh build dev

demo: deps
	@$(MAKE) --no-print-directory build TARGET=prezero_cli
	@tools/demo.sh build/prezero

test: deps
	@$(MAKE) --no-print-directory build
	@ctest --preset release --output-on-failure -j $(JOBS)

sanitize: deps-dev
	cmake --preset asan --log-level=WARNING && cmake --build --preset asan && ctest --preset asan -j $(JOBS)
	cmake --preset tsan --log-level=WARNING && cmake --build --preset tsan && ctest --preset tsan

fuzz: deps-dev
	cmake --preset fuzz --log-level=WARNING && cmake --build --preset fuzz
	tools/fuzz.sh build-fuzz $(FUZZ_SECONDS)

bench: build ; @tools/bench.sh build
bless: build ; @build/tests/test_golden --bless
format:      ; @tools/format.sh
format-check: ; @tools/format.sh --check
lint:        ; @tools/lint.sh

coverage: deps-dev
	cmake --preset coverage --log-level=WARNING && cmake --build --preset coverage
	tools/coverage.sh build-coverage $(COVERAGE_MIN)

install: build ; cmake --install build --prefix $(PREFIX)
clean:         ; rm -rf build build-*
