# SPDX-License-Identifier: LGPL-2.1-or-later
.PHONY: all demo check lint test bench clean

all: check

# Install two real servers through D-Bus, configure them, and call their tools over stdio and HTTP.
demo:
	@packaging/setup.sh run
	@.venv/bin/python -m tests.demo

# Everything that has to hold before a change lands.
check:
	@packaging/setup.sh check
	@$(MAKE) --no-print-directory lint test

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

test:
	.venv/bin/python -m pytest

# Measure; kept in bench/results.md.
bench:
	@packaging/setup.sh check
	@.venv/bin/python -m bench

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
