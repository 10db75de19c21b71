# SPDX-License-Identifier: LGPL-2.1-or-later
# Each of the processes that run tests would compile all of them.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
.PHONY: all demo quick check check-thorough check-system lint test test-quick test-system test-others bench clean install install-files deb docs man completions

all: check

# Install two real servers through D-Bus, configure them, and call their tools over stdio and HTTP.
demo:
	@packaging/setup.sh run
	@.venv/bin/python -m tests.demo

# While changing the code: lint, types and the tests that start no process, in a minute or two.
quick:
	@packaging/setup.sh check
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint test-quick

# Everything that has to hold before a change lands.
check:
	@packaging/setup.sh check
	@$(MAKE) --no-print-directory lint test

# The same with other and more examples wherever tests make them up; takes hours.
check-thorough:
	@PYTEST_ADDOPTS="--hypothesis-profile=thorough --timeout=3600" $(MAKE) --no-print-directory check

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

# All tests side by side, as most wait most of the time.
# With T=PATH or T=WORDS (as for pytest -k) only these.
test:
ifdef T
	.venv/bin/python -m pytest $(if $(wildcard $(firstword $(subst ::, ,$(T)))),$(T),-k "$(T)")
else
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-system test-others
endif

test-quick:
	.venv/bin/python -m pytest -q -m "not process" tests/unit --numprocesses=2 --dist=worksteal

test-system:
	.venv/bin/python -m pytest tests/system --numprocesses=2 --dist=loadfile

test-others:
	.venv/bin/python -m pytest --ignore=tests/system --numprocesses=4 --dist=loadfile --no-loadscope-reorder

# The packages on a booted Debian, which takes root: "make test" skips this without.
check-system:
	@packaging/setup.sh check
	MCPD_REQUIRE_SYSTEM=1 .venv/bin/python -m pytest tests/system

# Measure; kept in bench/results.md. With PART=bridge only this part, which prints.
bench:
	@packaging/setup.sh check
	@.venv/bin/python -m bench $(PART)

# Man pages and completions, in build/; "make install" takes them along.
docs: man completions

man:
	@$(docs_python) -c 'import argparse_manpage' 2>/dev/null && command -v scdoc >/dev/null || \
		{ echo 'make man: argparse-manpage or scdoc is missing; "packaging/setup.sh check" installs both' >&2; exit 1; }
	@PYTHONPATH=. $(docs_python) packaging/gen-man.py build/man

completions:
	@$(docs_python) packaging/gen-completions.py build/completions

docs_python = $(firstword $(wildcard .venv/bin/python) python3)

# Where everything goes; a package sets DESTDIR.
prefix = /usr
libexecdir = $(prefix)/libexec
pythondir = $(prefix)/lib/python3/dist-packages
docdir = $(prefix)/share/doc/mcpd
zshcompletiondir = $(prefix)/share/zsh/site-functions
python = /usr/bin/python3
# Whose members may do everyday things to the system's servers without a password: wheel, or sudo on Debian.
privileged_group = wheel
install_map = DESTDIR='$(DESTDIR)' prefix='$(prefix)' libexecdir='$(libexecdir)' pythondir='$(pythondir)' \
	docdir='$(docdir)' zshcompletiondir='$(zshcompletiondir)' python='$(python)' privileged_group='$(privileged_group)' packaging/install.sh

install:
	@$(install_map) python share files

# Without the Python package, for what installs that by itself, and without what packaging/servers.sh brings.
install-files:
	@$(install_map) files

# The Debian packages, built in a Debian trixie of their own: build/deb/*.deb. Needs root.
deb:
	@packaging/debian/build.sh

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
