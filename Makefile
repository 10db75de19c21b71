# SPDX-License-Identifier: LGPL-2.1-or-later
.PHONY: all demo check lint test bench clean install

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

# Where everything goes; a package sets DESTDIR.
prefix = /usr
libexecdir = $(prefix)/libexec
pythondir = $(prefix)/lib/python3/dist-packages
python = /usr/bin/python3

install:
	@DESTDIR='$(DESTDIR)' prefix='$(prefix)' libexecdir='$(libexecdir)' pythondir='$(pythondir)' python='$(python)' packaging/install.sh

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
