# RegionKeeper: two commands matter, `make up` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help up install installed ready lint tidy test test-browser test-compat test-spark test-drills test-monitoring test-upgrade soak soak-cluster soak-page soak-real soak-splits soak-tablets kill-points power-cuts torture fuzz mutated-frames bench bench-plan bench-security bench-spark bench-store bench-tablets clean dist docs lock install-locked sbom audit

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

# Each is written only after a complete install, so that an interrupted one is done again.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: setup.cfg requirements.py constraints.txt | $(BIN)/python
	@echo "== installing what RegionKeeper needs into $(VENV) (once; a few minutes)"
	$(BIN)/python requirements.py spark > $(VENV)/requirements.txt
	$(PIP) install -c constraints.txt -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "== installing what the tests need"
	$(BIN)/python requirements.py spark connect dev > $(VENV)/requirements-dev.txt
	$(PIP) install -c constraints.txt -r $(VENV)/requirements-dev.txt
	@touch $@

# After a change of a compiled module; until this has run, all of them run interpreted (coord/compiled.py).
COMPILED := $(shell $(PYTHON) coord/compiled.py)
$(VENV)/compiled: setup.cfg setup.py pyproject.toml coord/compiled.py $(COMPILED) | $(BIN)/python
	@echo "== installing RegionKeeper, and compiling its hot modules (a minute or two; RK_PURE=1 leaves it interpreted)"
	$(PIP) install --no-deps -e .
	@touch $@

# Packages are installed while the hot modules are being compiled: neither needs the other.
AT_ONCE := $(MAKE) --no-print-directory -j 2
installed: $(VENV)/installed $(VENV)/compiled
	@:

install:  ## make .venv with `rk` in it
	@$(AT_ONCE) installed
	@$(BIN)/rk --version

up:  ## start a whole cluster on this machine, in the foreground (UP="--servers 8" for options)
	@$(AT_ONCE) installed
	@exec $(BIN)/rk up $(UP)

lint: $(VENV)/installed-dev  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

tidy: $(VENV)/installed-dev  ## figures of the source tree: sizes, rooms, import circles, docstrings, assertions
	@$(BIN)/python -m tests.support.tidy

docs: $(VENV)/installed-dev  ## write the generated pages of docs/ (a test compares them with their sources)
	@$(BIN)/python -m tests.support.docs

FORM := from coord.compiled import form; print(form())
ready:
	@$(AT_ONCE) lint installed
	@form="$$($(BIN)/python -c '$(FORM)')"; echo "== the hot modules run $$form"; test "$$form" = compiled \
	|| test "$$form" = "interpreted: RK_PURE is set" || ! command -v cc > /dev/null || { echo "cc is here, so they should have been compiled:" \
	"$(BIN)/python -m pip install -v --no-deps -e . shows why they were not"; exit 1; }

test: ready  ## lint and all tests; simulations and transcripts of the compiled modules also interpreted
	@exec $(BIN)/python -m tests.parts $(VENV)

bench-store: $(VENV)/installed $(VENV)/compiled  ## the store against ZooKeeper, with the load generator of ../shared/bench (BENCH="--full")
	$(BIN)/python -m benchmarks.store $(BENCH)

test-browser: $(VENV)/installed-dev $(VENV)/compiled  ## the live page in Debian's chromium
	$(BIN)/python -m pytest -q tests/browser

HEAP_MINUTES ?= 10
soak-page: $(VENV)/installed-dev $(VENV)/compiled  ## the live page of 100,000 regions for HEAP_MINUTES (10): fails if the browser's heap grows
	$(BIN)/python -m benchmarks.browser --heap-minutes $(HEAP_MINUTES)

# Long forms of tests have no limit of their own; setup.cfg has that of all others.
LONG := -o timeout=0 -o faulthandler_timeout=0
DRILL_RUNS ?= 5
test-drills: $(VENV)/installed-dev $(VENV)/compiled  ## each drill DRILL_RUNS (5) times under load, with `rk health` beside clients
	RK_DRILL_RUNS=$(DRILL_RUNS) $(BIN)/python -m pytest $(LONG) tests/e2e/test_drills.py tests/e2e/test_drills_members.py

SOAK_MINUTES ?= 60
SOAK_PROCESSES ?= 1
SPLITS_MINUTES ?= 10
soak: $(VENV)/installed-dev  ## simulate fresh seeds for SOAK_MINUTES (60) on SOAK_PROCESSES (1); names the failing ones
	$(BIN)/python -m tests.sim.store.soak --minutes $(SOAK_MINUTES) --processes $(SOAK_PROCESSES)

soak-cluster: $(VENV)/installed-dev  ## simulate whole clusters from fresh seeds for SOAK_MINUTES (60); failing runs become files
	$(BIN)/python -m tests.sim.cluster.soak --minutes $(SOAK_MINUTES) --processes $(SOAK_PROCESSES)

soak-real: $(VENV)/installed-dev $(VENV)/compiled  ## a real cluster under DDL, moves and kills for SOAK_MINUTES (60): what grows for ever? SOAK="--seed 7" for options
	$(BIN)/python -m tests.soak_real --minutes $(SOAK_MINUTES) $(SOAK)

soak-splits: $(VENV)/installed-dev $(VENV)/compiled  ## random splits and merges under clients and kills for SPLITS_MINUTES (10); SPLITS="--no-kills" for options
	$(BIN)/python -m tests.soak_splits --minutes $(SPLITS_MINUTES) $(SPLITS)

CUTS ?= 1000
power-cuts: $(VENV)/installed-dev  ## simulate CUTS (1000) power cuts on the files of a tablet's rows; make test does 100
	RK_PURE=1 RK_CUTS=$(CUTS) $(BIN)/python -m pytest -q $(LONG) tests/unit/regionserver/tablets/rows/test_power_cut.py

soak-tablets: $(VENV)/installed-dev  ## simulate hosts of tablets from fresh seeds for SOAK_MINUTES (60)
	$(BIN)/python -m tests.sim.tablets.soak --minutes $(SOAK_MINUTES) --processes $(SOAK_PROCESSES)

kill-points: $(VENV)/installed-dev $(VENV)/compiled  ## kill -9 of servers, leaders and masters between all steps of creations, changes of members, copies, deletions, splits and merges
	RK_ALL_POINTS=1 $(BIN)/python -m pytest -q $(LONG) tests/e2e/test_tablet_kill_points.py \
		tests/e2e/test_tablet_creation_points.py tests/e2e/test_tablet_member_points.py \
		tests/e2e/test_tablet_deletion_points.py \
		tests/e2e/test_splits.py tests/e2e/test_splits_tablets.py tests/e2e/test_merges_tablets.py

TORTURE_MINUTES ?= 10
torture: $(VENV)/installed-dev $(VENV)/compiled  ## real ensembles under real faults for TORTURE_MINUTES (10); TORTURE="--seed 17" for options
	$(BIN)/python -m tests.torture --minutes $(TORTURE_MINUTES) $(TORTURE)

# UPGRADE_FROM: the older commit; by default the newest tag, else the last commit of the feature level before this one's.
test-upgrade: $(VENV)/installed-dev  ## an older checkout and this one work together, are upgraded and taken back (UPGRADE_FROM=commit)
	$(BIN)/python -m pytest -q -s $(LONG) tests/upgrade

# Tools that look at the dependencies, apart from what they look at.
AUDIT := .venv-audit/bin
.venv-audit/installed: Makefile
	@echo "== an environment for the tools of lock, sbom and audit"
	test -x $(AUDIT)/python || $(PYTHON) -m venv .venv-audit
	$(AUDIT)/python -m pip --disable-pip-version-check install -q uv==0.13.9 cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

# uv reads no pip.conf: UV_DEFAULT_INDEX names an index of your own.
lock: .venv-audit/installed  ## write constraints.lock: the pins of constraints.txt with the hashes of all their files
	@head -2 constraints.lock > constraints.lock.new
	@$(AUDIT)/uv pip compile -q --no-deps --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		constraints.txt >> constraints.lock.new
	@mv constraints.lock.new constraints.lock

# Everything that is pinned, and nothing else: pip checks hashes only of requirements that name them all.
install-locked: $(BIN)/python  ## make .venv from constraints.lock; a file whose hash is another one is refused
	$(PIP) install --require-hashes --no-deps -r constraints.lock
	@touch $(VENV)/installed $(VENV)/installed-dev
	@$(MAKE) --no-print-directory installed
	@$(BIN)/rk --version

sbom: .venv-audit/installed  ## write dist/regionkeeper.cdx.json: what is installed beside us, with hashes (CycloneDX)
	@mkdir -p dist
	$(AUDIT)/cyclonedx-py requirements constraints.lock --output-reproducible --of JSON -o dist/regionkeeper.cdx.json

ifdef ADVISORIES
audit: $(VENV)/installed-dev
	$(BIN)/python -m tests.support.advisories $(ADVISORIES)
else
audit: .venv-audit/installed  ## known vulnerabilities of the pinned packages: asks https://pypi.org; offline: ADVISORIES=all.zip (SECURITY.md)
	$(AUDIT)/pip-audit --strict --disable-pip -r constraints.lock
endif

dist: $(VENV)/installed-dev $(VENV)/compiled sbom  ## sdist, wheel of this platform, and wheel that runs interpreted everywhere, in dist/
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" > /dev/null
	$(PIP) wheel -q --no-deps --no-build-isolation -w dist .
	RK_PURE=1 $(PIP) wheel -q --no-deps --no-build-isolation -w dist .

clean:  ## remove .venv and caches (not rk-data)
	rm -rf $(VENV) coord/compiled.stamp .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find coord regions regionserver -name '*.so' -delete

.venv-compat/installed: tests/compat/constraints.txt
	@echo "== an environment for kazoo's own suite"
	test -x .venv-compat/bin/python || $(PYTHON) -m venv .venv-compat
	.venv-compat/bin/python -m pip --disable-pip-version-check install -c $< kazoo pytest pytest-timeout objgraph pyOpenSSL pyjks pure-sasl gevent eventlet setuptools
	@touch $@

# Every part runs, whatever became of those before it.
ON_BOTH_STORES := $(addprefix tests/e2e/test_,balancer.py masters_bulk.py masters_failover.py masters_standby.py region_server_alone.py up.py)
test-compat: $(VENV)/installed-dev $(VENV)/compiled .venv-compat/installed  ## kazoo's own suite (plain and over TLS), random frames, Java client and Curator, zkCli, Spark's masters on our store, all of them on the secured store of rk up, our masters and servers on ZooKeeper (RK_SEEDS=100 for more frames)
	@start=$$(date +%s); failed=""; \
	part() { echo "== $$1 ($$(($$(date +%s) - start)) s so far)"; name=$$1; shift; "$$@" || failed="$$failed $$name"; }; \
	part kazoo $(BIN)/python -m tests.compat.kazoo_suite --python .venv-compat/bin/python; \
	part kazoo-tls $(BIN)/python -m tests.compat.kazoo_suite --python .venv-compat/bin/python --tls; \
	part frames $(BIN)/python -m pytest -q tests/compat/test_frames.py; \
	part java $(BIN)/python -m pytest -q tests/compat/test_java.py; \
	part zkcli $(BIN)/python -m pytest -q tests/compat/test_zkcli.py; \
	part spark $(BIN)/python -m pytest -q tests/compat/test_spark_ha.py; \
	part secured $(BIN)/python -m pytest -q tests/compat/test_secured.py; \
	part zookeeper env RK_ON_ZOOKEEPER=1 $(BIN)/python -m pytest -q -k zookeeper $(ON_BOTH_STORES); \
	echo "== test-compat took $$(($$(date +%s) - start)) s; failed:$${failed:- nothing}"; test -z "$$failed"

test-spark: $(VENV)/installed-dev $(VENV)/compiled  ## Spark in processes of its own (standalone, spark-submit, Connect), with killed workers: bulk plans, tables
	$(BIN)/python -m pytest -q tests/spark

test-monitoring: $(VENV)/installed-dev $(VENV)/compiled  ## alert rules and dashboard with a real Prometheus through a crash (apt-get install prometheus)
	$(BIN)/python -m pytest -q tests/monitoring

bench: $(VENV)/installed-dev $(VENV)/compiled  ## regions: start, dead server, dead master, growth, beside HBase's times (BENCH="--full")
	$(BIN)/python -m benchmarks.assign $(BENCH)

bench-plan: $(VENV)/installed-dev  ## bulk plans: every engine beside plain ways, up to 1,000,000 regions (BENCH="--size 10k")
	$(BIN)/python -m benchmarks.plan $(BENCH)

bench-tablets: $(VENV)/installed-dev $(VENV)/compiled  ## tables with three replicas beside one shared copy: speed, failover, restart (BENCH="--full")
	$(BIN)/python -m benchmarks.tablets $(BENCH)

bench-security: $(VENV)/installed-dev $(VENV)/compiled  ## honest clients beside each attack; a secured cluster beside an open one (BENCH="--only beside")
	$(BIN)/python -m benchmarks.security $(BENCH)

bench-spark: $(VENV)/installed-dev $(VENV)/compiled  ## tables in Spark beside rk load and rk scan, 1,000,000 rows (BENCH="--rows 10000000 --memory 2g")
	$(BIN)/python -m benchmarks.spark $(BENCH)

FRAMES ?= 20000
mutated-frames: $(VENV)/installed-dev $(VENV)/compiled  ## FRAMES (20000) mutated frames for every port of an open and of a secured cluster; make test sends 1000
	RK_FRAMES=$(FRAMES) $(BIN)/python -m pytest -q -s $(LONG) -k memory tests/security/test_mutated_frames.py tests/security/test_stranger.py

FUZZ_SECONDS ?= 600
fuzz: $(VENV)/installed-dev  ## search for bytes that break a decoder, the state machine or a node (FUZZ_SECONDS=600)
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(PIP) install -q -c constraints.txt atheris || \
		echo "== no atheris for this Python: a slower search of our own"
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ)
