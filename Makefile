# `make demo` runs the main job, `make test` every check. Each makes an environment of its own.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .venv-demo
EPIDEMIC := examples/epidemic/epidemic.pln
# Whatever the environment says: each process of the tests would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-ci test-long soak browser schedulers checks lint types arrows kernels \
  bytecode unit mutants bench site site-version lock audit clean

# Only what requirements.lock names, by its hashes; the four distributions of this repository are
# built without network: the product, the studies of papers, the tools for developers, the plugin of
# Snakemake.
PROJECTS := pyproject.toml packages/papers/pyproject.toml packages/devtools/pyproject.toml \
  packages/snakemake/pyproject.toml
$(VENV)/.made: $(PROJECTS) requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation \
	  --editable . --editable ./packages/devtools --editable ./packages/papers \
	  --editable ./packages/snakemake
	touch $@

# Newest versions within the bounds of all four distributions, for every Python from 3.11 on, with hashes.
lock:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --generate-hashes --extra dev --no-header \
	  --no-emit-package bursar --no-emit-package bursar-devtools \
	  --output-file requirements.lock $(PROJECTS)
	printf 'hatchling\neditables\n' | $(VENV)-lock/bin/uv pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --extra charts --no-header --no-emit-package bursar \
	  --constraint requirements.lock --output-file requirements-demo.lock pyproject.toml -
	rm -rf $(VENV)-lock

# Known faults of what is pinned. Without the data this fails with one loud line: it is no pass.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet pip-audit
	$(VENV)-audit/bin/python tools/audit.py
	rm -rf $(VENV)-audit

# The product and what its charts need: a third of what the tests need. Modules are compiled when
# they are first imported, most never.
$(DEMO)/.made: pyproject.toml requirements-demo.lock
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --no-compile --no-deps --require-hashes \
	  --requirement requirements-demo.lock
	$(DEMO)/bin/python -m pip install --quiet --no-compile --no-deps --no-build-isolation --editable .
	touch $@

# Measures a few of 72 jobs, plans all and the one that gathers them, runs and bills them.
demo: $(DEMO)/.made
	$(DEMO)/bin/bursar plan $(EPIDEMIC) --probe 2 --fresh
	$(DEMO)/bin/bursar run $(EPIDEMIC) --probe 16 --fresh
	@echo 'Look at report.html and files/epidemic.png in that folder; bursar bill RUN itemises the cost.'

test: browser schedulers checks unit

# What needs one processor each, side by side.
checks: $(VENV)/.made
	$(MAKE) --no-print-directory --jobs 4 --output-sync lint types arrows kernels bytecode

# The page is looked at in a real browser: installed where we may, else those tests are skipped.
browser:
	@{ command -v chromium && command -v chromedriver; } > /dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
	  { apt-get install -qq -y chromium chromium-driver > /dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -qq -y chromium chromium-driver > /dev/null 2>&1; }; }; } || \
	echo '*** No chromium here, and it cannot be installed: the tests of the page in a browser are LEFT OUT. ***'

# Slurm, Grid Engine and an ssh server, for tests on real ones: installed where we may, else those tests are skipped.
# Services of theirs stay off (policy-rc.d): the tests start their own, in folders of their own.
schedulers:
	@PATH="$$PATH:/usr/sbin:/sbin"; export PATH DEBIAN_FRONTEND=noninteractive; \
	absent() { for program in "$$@"; do command -v $$program > /dev/null || return 0; done; return 1; }; \
	slurm() { absent slurmctld slurmd sbatch munged; }; \
	sshd() { absent sshd ssh ssh-keygen; }; \
	gridengine() { absent sge_qmaster sge_execd qsub; }; \
	add() { apt-get install -qq -y --no-install-recommends "$$@" > /dev/null 2>&1 < /dev/null || \
	        { apt-get update -qq && apt-get install -qq -y --no-install-recommends "$$@"; } > /dev/null 2>&1 < /dev/null; }; \
	if { slurm || gridengine || sshd; } && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  policy=/usr/sbin/policy-rc.d; \
	  if [ ! -e $$policy ]; then \
	    trap "rm -f $$policy" EXIT; trap 'exit 130' INT TERM; \
	    printf '#!/bin/sh\nexit 101\n' > $$policy && chmod +x $$policy; \
	  fi; \
	  ! slurm || add slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins || :; \
	  ! gridengine || add gridengine-master gridengine-exec gridengine-client || :; \
	  ! sshd || add openssh-server openssh-client || :; \
	fi; \
	! slurm || echo '*** No Slurm here, and it cannot be installed: the tests on real Slurm clusters are LEFT OUT. ***'; \
	! gridengine || echo '*** No Grid Engine here, and it cannot be installed: the tests on a real one are LEFT OUT. ***'; \
	! sshd || echo '*** No ssh server here, and it cannot be installed: the tests of sites of kind "ssh" are LEFT OUT. ***'

lint: $(VENV)/.made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.made
	$(BIN)/mypy

arrows: $(VENV)/.made
	$(BIN)/lint-imports --no-logo

# Machine code for the tests, which several processes would else compile at the same moment.
KERNELS := lists+minmin levels+serial+bags+clusters+flows
kernels: $(KERNELS:%=kernels-%)

kernels-%: $(VENV)/.made
	$(BIN)/python -m tests.kernels $(subst +, ,$*)

# What the processes that share the tests read when they begin; what cannot be read, `unit` tells.
BYTECODE := .pytest_cache/bytecode
bytecode: $(BYTECODE)

$(BYTECODE): $(VENV)/.made $(shell find src packages tests benchmarks -name '*.py')
	$(BIN)/python -m pytest --collect-only > /dev/null 2>&1 || :
	@mkdir -p $(@D) && touch $@

# Long files first, by tests/durations.json: without a tail in which one process works alone.
# Up to three tests that fail are tried once more, alone; what passes then is named as unstable.
# Half of the tests' time is waiting, for schedulers and services: two processes for each processor.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)
SHARED = $(BIN)/python tools/second_try.py -n $(WORKERS) --dist loadfile --no-loadscope-reorder
unit: $(VENV)/.made
	$(SHARED)

# What continuous integration runs beside the default tests: tests of some seconds each, of whose
# promises the default run holds one quick instance, and properties with all their examples, of
# which the default run draws a third.
test-ci: schedulers site $(VENV)/.made
	BURSAR_EXAMPLES=all $(SHARED) -m 'ci or hypothesis and not long' --timeout 600

# Random rounds and soaks that the default run leaves out, one after the other: they measure
# real schedulers, which a neighbour would slow down.
test-long: schedulers $(VENV)/.made
	BURSAR_EXAMPLES=all $(BIN)/python -m pytest -m long --timeout 3600

# A random sample of changed code, which the tests must notice: 440 mutants, a quarter of an hour
# and more. Interrupted, it goes on where it was; docs/concepts/fault-simulation.md lists what
# survives. Only this target needs mutmut, so requirements.lock does not pin it.
MUTANTS := --count 440 --seed 1
mutants: $(VENV)/.made
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[mutants]'
	$(BIN)/python -m tests.mutants $(MUTANTS)

# A thousand rounds of kill -9 on runs, services and both test clusters; hours. Stopped, it goes on
# where it was. One round again: python -m tests.soak TARGET --seed SEED --only NUMBER
SOAK ?= soak.jsonl
soak: schedulers $(VENV)/.made
	$(BIN)/python -m tests.soak local --rounds 500 --json $(SOAK)
	$(BIN)/python -m tests.soak service --rounds 300 --json $(SOAK)
	$(BIN)/python -m tests.soak slurm --rounds 150 --json $(SOAK)
	$(BIN)/python -m tests.soak gridengine --rounds 50 --json $(SOAK)

# The documentation as a site in site/, which also opens from a file; a link or anchor that leads
# nowhere is an error. Runs the notebooks, too. Only this target needs MkDocs and Jupyter, 215 MB,
# so requirements.lock does not pin them.
site: $(VENV)/.made
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	$(BIN)/python -m pytest -m 'not long' tests/test_site.py tests/examples/test_notebooks.py

# One version of the site among others, committed to the branch that is served (gh-pages).
site-version: $(VENV)/.made
	@[ -n "$(VERSION)" ] || { echo 'make site-version VERSION=0.1'; exit 2; }
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" \
	  mike deploy --update-aliases $(VERSION) latest
	$(BIN)/mike set-default latest

# Every benchmark, then the tables of benchmarks/README.md. `make bench SIZE=--quick` takes a tenth
# of the time; BENCHMARKS='dispatch flows' runs these only.
BENCHMARKS ?= dispatch engine_scale many_workers python_calls long_calls starting whole_command service \
  compare_dispatch dask_site planning \
  fronts replay cluster directory ledger strategies classad matching flows forecasts forecast_breadth deciding copies snakemake_plans snakemake_executors transfers datagrid provisioning waits settlement web_framework dashboard following
SIZE ?=
bench: schedulers $(VENV)/.made
	mkdir -p benchmarks/results
	@failed=; for name in $(BENCHMARKS); do \
	  echo "== $$name"; \
	  $(BIN)/python benchmarks/$$name.py $(SIZE) --json benchmarks/results/$$name.json || \
	  failed="$$failed $$name"; \
	done; \
	$(BIN)/python benchmarks/tables.py; \
	[ -z "$$failed" ] || { echo "*** FAILED:$$failed ***"; exit 1; }

clean:
	rm -rf $(VENV) $(VENV)-demo $(VENV)-lock $(VENV)-audit .cache site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
