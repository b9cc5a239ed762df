# Two commands do everything on a machine with Python 3.11+ and make: `make run` and `make test`.
# Every target sets up what it needs in .venv with pip, and does nothing twice.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Looked for once, not wherever it is named.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
endif
VENV := .venv
BIN := $(VENV)/bin
LABEL_STUDIO := .surespan/label-studio-$(shell sed -n 's/^LABEL_STUDIO_VERSION = "\(.*\)".*/\1/p' backend/demo/install.py)/installed.txt
# What `make run` hands to surespan demo, for example: make run DEMO="--port 8081"
DEMO ?=
# Processes of `make test`: the end-to-end tests have one of them, the other tests the rest.
WORKERS ?= 2
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# The tests start many processes and several collect them: what Python compiles once is kept, whatever is set outside.
unexport PYTHONDONTWRITEBYTECODE
say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

# A stamp per set of extras: pip runs again only when pyproject.toml has changed.
# Extras are separated by $(comma): make takes a plain comma for the end of an argument.
comma := ,
define install
	@if [ -z "$(PYTHON)" ]; then \
		echo "Surespan needs Python 3.11 or newer, and none was found."; \
		echo "Install it (for example: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3"; \
		exit 1; fi
	@[ -x $(BIN)/python ] || { echo "creating $(VENV) with $(PYTHON)"; \
		$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot create virtual environments; on Debian: apt-get install python3-venv"; exit 1; }; }
	@echo "installing surespan$(1) into $(VENV) (the first time takes a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(1)' \
		|| { echo "pip could not install the packages: see its message above; is a package index reachable?"; exit 1; }
	@touch $@
endef

$(VENV)/.installed: pyproject.toml
	$(call install,)

$(VENV)/.installed-test: pyproject.toml
	$(call install,[test])
	@touch $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml
	$(call install,[test$(comma)bench])
	@touch $(VENV)/.installed $(VENV)/.installed-test

.PHONY: help setup run kernels check quick test suite coverage lint bench docs image soak clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(VENV)/.installed ## create .venv and install surespan into it
	$(call say,set-up is complete: $(BIN)/surespan --help)

run: $(VENV)/.installed ## Label Studio, the backend and two sample projects on this machine; Ctrl-C stops them
	$(call say,surespan demo (the first time installs Label Studio, a few minutes))
	@exec $(BIN)/surespan demo $(DEMO)

lint: $(VENV)/.installed-test ## ruff (rules and format) and mypy --strict
	$(call say,ruff)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	$(call say,mypy)
	@$(BIN)/mypy

# Numba keeps what it compiles: once for all processes of the tests, instead of once in each.
kernels: $(VENV)/.installed-test ## compile the kernels of conformal ahead of the first use
	$(call say,kernels)
	@$(BIN)/python -c 'from conformal.trellis.warmup import warm_up; warm_up()'

# No mark here starts a server: neither Label Studio, nor a browser, PostgreSQL or `surespan serve`.
# Nor does one train for long: `make check` is for those who wait.
QUICK := not slow and not heavy and not e2e and not postgresql and not crash and not statistical

# mypy has one process: beside the tests it costs less time than before them.
check: $(VENV)/.installed-test ## lint, types and the tests without real servers, in minutes
	@$(MAKE) --no-print-directory -j 2 lint quick

quick: kernels ## the tests without real servers
	$(call say,pytest: $(QUICK))
	@$(BIN)/pytest -q -m "$(QUICK)" $(PARALLEL)

# Without Label Studio the end-to-end tests are skipped, except in continuous integration, where they fail.
$(LABEL_STUDIO): | $(VENV)/.installed-test
	@$(BIN)/surespan demo --install-only || [ "$${CI:-}" != true ]

# Types beside the tests here too: end-to-end tests often wait, and leave a core free.
test: $(LABEL_STUDIO) kernels ## lint, types and the whole test suite
	@$(MAKE) --no-print-directory -j 2 lint suite

suite: $(LABEL_STUDIO) kernels ## the whole test suite
	$(call say,pytest)
	@$(BIN)/pytest -m "not slow" $(PARALLEL)

# Apart from `make test`: watching every branch costs a quarter more processor time (docs/results/suite.md).
coverage: $(LABEL_STUDIO) kernels ## the whole test suite, and which branches it takes: fails below the floor
	$(call say,pytest with branch coverage)
	@$(BIN)/pytest --cov --cov-report=term -m "not slow" $(PARALLEL)

bench: $(VENV)/.installed-bench ## print the speed claims as ratios measured in one run; FULL=1 at full size
	@$(BIN)/python benchmarks/_all.py $(if $(FULL),--full)

docs: $(VENV)/.installed ## write the reference pages that are made from the code
	@$(BIN)/python -m backend.commands.reference docs/reference

image: $(VENV)/.installed-test ## build the image and run the services of docker-compose.yml from it, by buildah
	$(call say,image; docs/results/containers.md says what this shows)
	@$(BIN)/python packaging/image/check.py

$(VENV)/.installed-soak: pyproject.toml
	$(call install,[test$(comma)ray])
	@touch $(VENV)/.installed $(VENV)/.installed-test

soak: $(VENV)/.installed-soak $(LABEL_STUDIO) ## the long trials, left out of make test
	$(call say,long trials; their figures go to docs/results)
	@$(BIN)/pytest -m slow -s
	$(call say,property tests with more examples)
	@HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -m "not slow" tests/conformal tests/backend

clean: ## remove .venv and everything generated
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
