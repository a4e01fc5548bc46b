# One virtual environment, .venv, for everything here. The targets below make what they need.
#
#   make lab         JupyterLab with gpushare, on this machine's GPUs or on simulated ones
#   make test        everything that CI runs: lint, types, import contracts, all tests
#   make test-fast   an answer in three minutes: the tests that take less than a second, and no browser
#   make test-long   the tests that CI leaves out, because together they take minutes; and those
#                    with random examples, with new ones (CI has the same at each run)
#   make test-power  which of a sample of faults, put into the product one by one, do the tests find?
#   make test-ray    sweeps and elastic training with real Ray and torch, on this machine and on hosts of
#                    its own (as root); Ray and what it needs take 500 MB in .venv
#   make test-afresh  the tour and all demos, in environments that only their own targets made
#                    (5 min, with Ray; part of test-long)
#   make test-slurm  jobs of a real Slurm on hosts of its own (as root, with Debian's slurm-wlm and munge)
#   make test-podman  the images of etc/deploy/docker, built and used by DockerSpawner, with podman in place of
#                    docker (as root, 5 min; Debian's podman, and a Debian of debootstrap as their base)
#   make test-ui     the tests in a browser only
#   make matrix      the built package with old and new versions of Python, JupyterLab, Notebook,
#                    JupyterHub and the rest, each in an environment of its own; MATRIX=oldest: one
#   make wheels      does all that the package needs have wheels, for CPython 3.11 to 3.15?
#   make tour        each line of README's tour, headless
#   make demo        the main job, headless: two people, three notebooks, two GPUs
#   make demo-parking  three notebooks with live variables share one GPU for a (short) day
#   make demo-turns  a long training, others' short cells and a script that makes way for them, on one
#                    GPU, and a picture of it (2 min)
#   make demo-qos    a training that grows slower keeps its deadline by a larger share of the GPU, and a
#                    picture of it (1 min)
#   make demo-pool   notebooks, a sweep and an elastic training share nine GPUs of three hosts, and a
#                    picture of it (2 min; needs Ray, which it installs)
#   make demo-serve  a model server and two notebooks share one GPU, and a picture of it (1 min)
#   make demo-slurm  a job of a real Slurm that holds GPUs for two notebooks ends, another takes over, and a
#                    picture of it (2 min; as root, with slurm-wlm and munge)
#   make bench       measure, and write docs/benchmarks.md
#   make bench-hub   measure a class of 200 on one node manager, and write docs/benchmarks-hub.md
#   make bench-hosts  people on several hosts, by where they start; docs/benchmarks-hosts.md (1 h)
#   make bench-pool  how long the pool takes to say where, with 100 hosts of 8 GPUs; JSON (15 s)
#   make soak        random faults on a node manager for SOAK_MINUTES=20, with SOAK_SEED if given
#   make soak-pool   the same on five hosts and their pool, with 200 people (as root)
#   make soak-serve  the same on a server that sleeps, with 10,000 requests (15 min)
#   make fuzz        FUZZ_INPUTS=1000000 inputs into everything that reads what others wrote
#   make hostile     one user does his worst: what do others notice? (as root, 6 min)
#   make churn       leases come and go at speed for CHURN_MINUTES=60: does anything grow?
#   make bench-ledger  a year of a class of 40 in the ledger: how large is it? (10 min or more)
#   make bench-peers  compare with genv and others, and write docs/comparison.md (12 min)
#   make bench-ui    measure the panel in a browser, and write docs/benchmarks-ui.md (8 min)
#   make bench-all   all these pages anew, one after the other, and a line in docs/trend.jsonl
#   make predictor   train the predictors that come with the package, and write docs/predictor-card.md
#                    (5 min; scripts/predictor_runs.py measures the runs anew)
#   make bench-trend the ratios of docs/trend.md only (3 min)
#   make replay      how many more people can work: replay made-up sessions, write docs/replay.md
#   make docs        the site of docs/, in build/docs; warnings are errors
#   make pictures    make docs/images anew
#   make lint        ruff, mypy, the import contracts; eslint, prettier, stylelint, tsc
#   make ui          build the JupyterLab side (the others do so when its sources changed)
#   make dist        wheels and sdists in dist/: the light client, and the rest with the UI built anew
#   make clean       remove .venv and what was built
#
# make lab ARGS=--no-browser     arguments for JupyterLab
# make test PYTEST="-k finder"   arguments for pytest; PLAYWRIGHT="-g queue" for Playwright
# make … PYTHON=python3.12       the Python to make .venv with (3.11 or later)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$p"; break; }; done)
endif

TORCH := torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
# By uv, or by pip where uv cannot. Nothing is compiled before it is imported: most never is.
INSTALL := $(BIN)/python scripts/packages.py
INSTALLED_FROM := pyproject.toml client/pyproject.toml hatch_build.py jupyter_gpushare/_version.py \
	labextension/install.json $(wildcard etc/*/* etc/*/*/*)

# jlpm is the yarn that comes with jupyter-builder; what its scripts call is in .venv too.
JLPM := PATH="$(CURDIR)/$(BIN):$$PATH" jlpm
UI := jupyter_gpushare/labextension/package.json
UI_SOURCES := $(shell find labextension/src labextension/style labextension/schema -type f \
	-not -path '*/__tests__/*' 2>/dev/null) labextension/package.json labextension/tsconfig.json
UI_MODULES := labextension/node_modules/.yarn-state.yml
UI_TEST_MODULES := labextension/ui-tests/node_modules/.yarn-state.yml

.PHONY: FORCE help jest-kept test-power lab test test-fast test-long test-ray test-slurm test-podman test-ui test-afresh matrix wheels tour demo demo-parking demo-turns demo-qos demo-pool demo-serve demo-slurm bench bench-hub bench-hosts bench-pool bench-ledger bench-peers soak soak-pool soak-serve fuzz churn hostile bench-ui bench-all bench-trend predictor replay docs pictures lint lint-python lint-ui ui dist chromium hosts clean
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

$(VENV)/.made:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or later with venv found. Install one (apt install python3 python3-venv)," >&2; \
		echo "or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@if ! $(PYTHON) -m venv --clear $(VENV); then \
		echo "Could not make $(VENV). On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; fi
	@touch $@

# After .builder: two of them at once would write into one environment.
$(VENV)/.torch: $(VENV)/.builder
	@echo "Installing $(TORCH) (once) …"
	@$(INSTALL) --torch '$(TORCH)'
	@touch $@

$(VENV)/.builder: $(VENV)/.made
	@$(INSTALL) 'jupyter-builder>=1.2,<2'
	@touch $@

# With it all that pyproject.toml's build-system asks for.
$(VENV)/.packager: $(VENV)/.builder
	@$(INSTALL) 'hatchling>=1.27' 'hatch-jupyter-builder>=0.9.1'
	@touch $@

define need_node
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null \
	|| { echo "The JupyterLab side is built with Node 20 or later, and there is none here: https://nodejs.org/en/download" >&2; exit 1; }
endef

# $(call npm_install,FOLDER): what FOLDER/yarn.lock says, no more; its story is told on failure
define npm_install
	$(need_node)
	@echo "Installing the npm packages of $(1) …"
	@cd $(1) && { told="$$(PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 $(JLPM) install --immutable 2>&1)" \
	|| { echo "$$told" | grep -v YN0013 >&2; exit 1; }; }
	@touch $@
endef

$(UI_MODULES): labextension/package.json labextension/yarn.lock labextension/.yarnrc.yml | $(VENV)/.builder
	$(call npm_install,labextension)

$(UI_TEST_MODULES): $(addprefix labextension/ui-tests/,package.json yarn.lock .yarnrc.yml) | $(VENV)/.builder
	$(call npm_install,labextension/ui-tests)

# A development build is replaced: hatch_build.py would refuse to pack it.
$(UI): $(UI_SOURCES) $(UI_MODULES) $(if $(wildcard $(dir $(UI))build_log.json),FORCE)
	$(need_node)
	@echo "Building the JupyterLab side …"
	@cd labextension && { told="$$($(JLPM) build:prod 2>&1)" || { echo "$$told" >&2; exit 1; }; }
	@touch $@

COMMA := ,
# $(call install,EXTRA): editable. pip would copy the built UI; a link shows the newest build.
define install
	@if [ -L $(VENV)/share/jupyter/labextensions/jupyter-gpushare ]; then \
		rm $(VENV)/share/jupyter/labextensions/jupyter-gpushare; fi
	@SKIP_JUPYTER_BUILDER=1 $(INSTALL) --editable ./client --editable '.[$(1)]'
	@$(BIN)/jupyter-builder develop --overwrite . >/dev/null 2>&1 \
	|| { echo "The built UI could not be linked: try $(BIN)/jupyter-builder develop --overwrite ." >&2; exit 1; }
	@touch $@
endef

$(VENV)/.lab: $(VENV)/.torch $(INSTALLED_FROM) | $(UI)
	@echo "Installing jupyter_gpushare with JupyterLab …"
	$(call install,demo$(COMMA)replay$(COMMA)serve)

$(VENV)/.dev: $(VENV)/.lab $(INSTALLED_FROM) | $(UI)
	@command -v cc >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y gcc libc6-dev; } \
	|| { echo "The tests compile a small C library: install a C compiler (apt install gcc libc6-dev)" >&2; exit 1; }
	@echo "Installing what the tests need …"
	$(call install,dev)

ui: $(UI)

lab: $(VENV)/.lab $(UI)
	@$(BIN)/python scripts/lab.py $(ARGS)

tour: $(VENV)/.lab $(UI)
	@$(BIN)/python scripts/tour.py

demo: $(VENV)/.lab $(UI)
	@$(BIN)/python scripts/demo.py $(ARGS)

demo-parking: $(VENV)/.lab $(UI)
	@$(BIN)/python scripts/demo_parking.py $(ARGS)

# What is played over doubles of the tests needs what those do.
$(VENV)/.doubles: $(VENV)/.lab
	@$(INSTALL) 'cuda-bindings>=12.8' 'pytest>=8.3'
	@touch $@

demo-turns: $(VENV)/.lab $(VENV)/.doubles $(UI)
	@mkdir -p build
	@$(BIN)/python scripts/demo_turns.py --svg build/turns.svg $(ARGS)

demo-qos: $(VENV)/.lab $(UI)
	@mkdir -p build
	@$(BIN)/python scripts/demo_qos.py --svg build/qos.svg $(ARGS)

# The three hosts are namespaces where iproute2 is installed and the user is root.
demo-pool: $(VENV)/.lab $(VENV)/.ray $(UI)
	@mkdir -p build
	@$(BIN)/python scripts/demo_pool.py --svg build/pool.svg $(ARGS)

# Over doubles of the driver and of NVML.
demo-serve: $(VENV)/.lab $(VENV)/.doubles $(UI)
	@mkdir -p build
	@$(BIN)/python scripts/demo_serve.py --svg build/serve.svg $(ARGS)

# As root, with Debian's slurm-wlm and munge; what the tests' bed imports needs pytest.
demo-slurm: $(VENV)/.lab $(VENV)/.doubles $(UI)
	@mkdir -p build
	@$(BIN)/python scripts/demo_slurm.py --svg build/slurm.svg $(ARGS)

lint: lint-python lint-ui
lint-python: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
# With the UI built, which writes where eslint reads; without .dev, so that it is done while pip installs that.
lint-ui: $(UI_MODULES) $(UI_TEST_MODULES) | $(UI)
	cd labextension && $(JLPM) lint:check
	cd labextension && $(JLPM) tsc -p tsconfig.test.json
	cd labextension/ui-tests && $(JLPM) types

# Debian's chromium: Playwright's own is not downloaded.
INSTALL_CHROMIUM := apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-liberation
chromium:
	@"$${CHROMIUM:-chromium}" --version >/dev/null 2>&1 \
	|| { [ -z "$${CHROMIUM:-}" ] && { if [ "$$(id -u)" = 0 ]; then bash -c '$(INSTALL_CHROMIUM)'; \
	else sudo -n bash -c '$(INSTALL_CHROMIUM)'; fi; } >/dev/null 2>&1 && chromium --version >/dev/null 2>&1; } \
	|| { echo "The tests in a browser need chromium: apt install chromium, or name it with CHROMIUM=/path/to/it" >&2; exit 1; }

# Tests of several hosts use network namespaces (as root) and a real sshd, some Debian's Slurm, one of kernels that of R;
# without them they are skipped.
# After chromium: two apts at once would wait for one lock.
INSTALL_HOSTS := apt-get update -qq && apt-get install -qq -y --no-install-recommends iproute2 openssh-server
INSTALL_SLURM := apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurm-wlm munge
INSTALL_BOOKS := apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurmdbd mariadb-server-core
INSTALL_R := apt-get update -qq && apt-get install -qq -y --no-install-recommends r-cran-irkernel
hosts: | chromium
	@if [ "$$(id -u)" = 0 ] && ! { command -v ip && [ -x /usr/sbin/sshd ]; } >/dev/null; then \
	bash -c '$(INSTALL_HOSTS)' >/dev/null 2>&1 \
	|| echo "Tests of several hosts are skipped: apt install iproute2 openssh-server failed." >&2; fi
	@if [ "$$(id -u)" = 0 ] && ! { command -v slurmctld && command -v munged; } >/dev/null; then \
	bash -c '$(INSTALL_SLURM)' >/dev/null 2>&1 \
	|| echo "Tests of Slurm are skipped: apt install slurm-wlm munge failed." >&2; fi
	@if [ "$$(id -u)" = 0 ] && ! command -v R >/dev/null; then bash -c '$(INSTALL_R)' >/dev/null 2>&1 \
	|| echo "The test of R's kernel is skipped: apt install r-cran-irkernel failed." >&2; fi

SUITES := $(BIN)/python scripts/suites.py --pytest="$(PYTEST)" --playwright="$(PLAYWRIGHT)"
# What jest says is told with the rest, at the end; so this target itself never fails.
JEST_SAID := build/jest.json
jest-kept: $(UI_MODULES) | $(UI)
	@mkdir -p $(dir $(JEST_SAID))
	@$(SUITES) --later=$(JEST_SAID) jest

# While packages are installed, the other core has the UI (npm, build, lint, jest), and apt waits for the network.
test:
	@mkdir -p build && touch build/began
	@$(MAKE) --no-print-directory -j3 -O lint-python lint-ui jest-kept hosts
	@$(SUITES) --began=build/began --earlier=$(JEST_SAID) pytest playwright

test-fast: $(VENV)/.dev $(UI)
	@$(SUITES) --pytest='-m "not slow and not long"' pytest jest

test-long: $(VENV)/.dev $(UI)
	@$(SUITES) --pytest='-m long' pytest
	@$(SUITES) --pytest='--hypothesis-profile=searching tests/policy tests/protocol tests/checkpoint' pytest
	@$(MAKE) --no-print-directory test-afresh

# Nothing of .venv: what their targets forget to install is missed there. DEMOS=demo-pool: only this one.
test-afresh: $(UI)
	@$(PYTHON) scripts/afresh.py $(DEMOS)

$(VENV)/.ray: $(VENV)/.lab $(INSTALLED_FROM) | $(UI)
	@echo "Installing Ray (once) …"
	$(call install,demo$(COMMA)pool$(COMMA)ray$(COMMA)replay)
	@$(INSTALL) 'ray[train,tune]>=2.40'
	@# Ray gives its agent 15 s to begin, in which a slow machine cannot compile what it imports.
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import ray.dashboard.agent' >/dev/null 2>&1 || true
	@touch $@

# Which of 60 faults do the tests find? (1 h; POWER_SEED=41 draws others)
POWER_SEED := 40
test-power: $(VENV)/.dev $(UI)
	@mkdir -p build && rm -f build/found.json
	@$(BIN)/python scripts/power.py draw build/faults.json --seed=$(POWER_SEED)
	@$(BIN)/python scripts/power.py reach build/faults.json build/reached.json -- \
		-q --workers=4
	@$(BIN)/python scripts/power.py find build/faults.json build/reached.json build/found.json
	@$(BIN)/python scripts/power.py table build/found.json

# One by one: each has several hosts, or several trainings, of its own.
test-ray: $(VENV)/.dev $(VENV)/.ray
	@$(BIN)/python -m pytest -q -m long tests/elastic tests/jobs

# make test has the short ones of these.
test-slurm: $(VENV)/.dev hosts
	@if [ "$$(id -u)" = 0 ] && ! { command -v slurmdbd && command -v mariadbd; } >/dev/null; then \
	bash -c '$(INSTALL_BOOKS)' >/dev/null 2>&1 \
	|| echo "The test of Slurm's accounting is skipped: apt install slurmdbd mariadb-server-core failed." >&2; fi
	@$(BIN)/python -m pytest -q -m "long or not long" tests/slurm

INSTALL_PODMAN := apt-get update -qq && apt-get install -qq -y --no-install-recommends podman runc debootstrap
test-podman: $(VENV)/.dev $(UI_TEST_MODULES)
	@if [ "$$(id -u)" = 0 ] && ! { command -v podman && command -v runc && command -v debootstrap; } >/dev/null; then \
	bash -c '$(INSTALL_PODMAN)' >/dev/null 2>&1 \
	|| echo "The test with containers is skipped: apt install podman runc debootstrap failed." >&2; fi
	@$(MAKE) --no-print-directory dist
	@$(BIN)/python -m pytest -q -m long tests/deploy/test_podman.py

test-ui: chromium $(VENV)/.lab $(UI) $(UI_TEST_MODULES)
	@$(SUITES) playwright

$(VENV)/.uv: $(VENV)/.builder
	@$(INSTALL) 'uv>=0.9'
	@touch $@

# As somebody has it who installed the package there. ARGS=--require: what is skipped has failed.
matrix: chromium dist $(UI_TEST_MODULES) $(VENV)/.uv
	@$(BIN)/python scripts/matrix.py --torch='$(TORCH)' $(ARGS) $(MATRIX)

wheels: dist $(VENV)/.uv
	@$(BIN)/python scripts/wheels.py $(ARGS)

# Needs what builds a package and nothing else: no torch, no tests.
dist: $(UI_MODULES) | $(VENV)/.packager
	@rm -rf dist jupyter_gpushare/labextension
	@$(MAKE) --no-print-directory ui
	@for project in client .; do told="$$(cd $$project && $(CURDIR)/$(BIN)/python -c \
		"import hatchling.build as b; b.build_sdist('$(CURDIR)/dist'); b.build_wheel('$(CURDIR)/dist')" 2>&1)" \
	|| { echo "$$told" >&2; exit 1; }; done; ls dist

clean:
	rm -rf $(VENV) .lab build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf jupyter_gpushare/labextension labextension/{lib,tsconfig.tsbuildinfo,coverage,node_modules,.yarn}
	rm -rf labextension/ui-tests/{node_modules,.yarn,test-results,playwright-report,screenshots}
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/docs
	@echo "Open build/docs/index.html"

pictures: export PICTURES := 1
# Into docs/images: the tests' own pictures of the main states, and the tour of `make lab`.
pictures: test-ui
	$(INSTALL) playwright
	$(BIN)/python docs/diagrams.py
	$(BIN)/python docs/screenshots.py
	$(BIN)/python docs/hub_screenshots.py

bench-ui: chromium $(VENV)/.lab $(UI) $(UI_TEST_MODULES)
	cd labextension/ui-tests && PYTHON="$(CURDIR)/$(BIN)/python" \
		MACHINE="$$($(CURDIR)/$(BIN)/python $(CURDIR)/benchmarks/machine.py)" \
		$(JLPM) playwright test -c bench.config.ts

bench-hub: $(VENV)/.dev
	$(BIN)/python benchmarks/hub_load.py --json docs/benchmarks-hub.json --markdown docs/benchmarks-hub.md

bench-hosts: $(VENV)/.dev
	$(BIN)/python benchmarks/pool_hosts.py --json docs/pool-hosts.json --markdown docs/benchmarks-hosts.md $(ARGS)

bench-pool: $(VENV)/.dev
	$(BIN)/python benchmarks/pool.py $(ARGS)

bench-ledger: $(VENV)/.dev
	$(BIN)/python benchmarks/ledger_year.py --json build/ledger-year.json

bench-peers: $(VENV)/.dev
	$(BIN)/python benchmarks/peers/compare.py --json docs/comparison.json
	$(BIN)/python benchmarks/peers/page.py

bench: $(VENV)/.lab
	$(BIN)/python benchmarks/run.py --json docs/benchmarks.json --markdown docs/benchmarks.md

# Every page of figures, one after the other, and a line in docs/trend.jsonl.
bench-all: bench bench-hub bench-ui bench-peers replay
	$(BIN)/python benchmarks/trend.py add

# What CI does each week: half the rounds, only what the trend needs of them.
predictor: $(VENV)/.dev
	$(BIN)/python scripts/predictor_card.py

bench-trend: $(VENV)/.lab
	@mkdir -p build/trend
	$(BIN)/python benchmarks/run.py --quick --only latency lease start cells --json build/trend/benchmarks.json
	$(BIN)/python benchmarks/trend.py add --docs build/trend

# Each prints its seed; SOAK_SEED=… or FUZZ_SEED=… plays it again.
SOAK_MINUTES ?= 20
FUZZ_INPUTS ?= 1000000
CHURN_MINUTES ?= 60
soak: $(VENV)/.dev
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES) $(if $(SOAK_SEED),--seed $(SOAK_SEED)) \
		--json build/soak.json --keep build/soak

soak-pool: $(VENV)/.dev
	POOL_STORM_MINUTES=$(SOAK_MINUTES) POOL_STORM_SEED=$(SOAK_SEED) \
		$(BIN)/python -m pytest -q -s -m long -k a_long_storm tests/pool/test_histories.py

SERVE_ROUNDS ?= 200
soak-serve: $(VENV)/.dev
	SERVE_STORM_ROUNDS=$(SERVE_ROUNDS) SERVE_STORM_SEED=$(SOAK_SEED) \
		$(BIN)/python -m pytest -q -s -m long tests/serve/test_storm.py

fuzz: $(VENV)/.dev
	$(BIN)/python benchmarks/fuzz.py --inputs $(FUZZ_INPUTS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) \
		--json build/fuzz.json

hostile: $(VENV)/.dev
	$(BIN)/python benchmarks/hostile.py --json build/hostile.json --walls docs/walls.json
	$(BIN)/python docs/generate.py

churn: $(VENV)/.dev
	$(BIN)/python benchmarks/churn.py --minutes $(CHURN_MINUTES) --json build/churn.json

# ARGS=--scale also replays a million cells on a thousand GPUs.
# It may be stopped: ARGS=--missing goes on with what docs/replay.json lacks, ARGS=--page only makes the page.
replay: $(VENV)/.dev
	$(BIN)/python benchmarks/replay.py --json docs/replay.json --markdown docs/replay.md --svg docs/replay.svg $(ARGS)
