# Three commands are enough, and none needs a step before it:
#
#   make up      start a cluster on this machine, send and receive a first message, stay up until Ctrl-C
#   make quick   what to run before each commit: style, types, unit tests, 50 simulated seeds; some 50 s on two cores
#   make test    everything that must hold: style, types, unit, simulation, integration, interop and Spark tests, docs, the wheel
#
# They make .venv themselves. PYTHON=python3.12 chooses the Python that it is made with.

SHELL := /bin/sh
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help up quick test docs check style types unit simulated integrated native simulation interop interop-groups interop-stores interop-clients spark spark-demo wheel chart console compose kubernetes grafana oldest mysql celery bench bench-kinds bench-quick clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,7p'

up:
	@scripts/make-venv fast,metrics,grpc
	@scripts/make-native || echo "make-native: the build failed, the Python backend serves" >&2
	@$(BIN)/python scripts/up $(ARGS)

quick:
	@scripts/make-venv dev
	@scripts/make-native
	@$(BIN)/python scripts/quick

# The environment and what peers need first, then four lanes at the same time. Spark has one: its JVM waits most of the time.
test: style types native
	@scripts/setup-prometheus || echo "setup-prometheus: the tests of rules and dashboards are skipped" >&2
	@scripts/setup-databases || echo "setup-databases: the tests of deduplication are skipped" >&2
	scripts/setup-interop
	@scripts/make-venv docs
	@scripts/test-lanes unit='simulated docs survival wheel chart interop-groups' integration='integrated' interop='interop-clients interop-stores' spark='spark'

check: style types unit

style:
	@scripts/make-venv dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	@scripts/make-venv dev
	$(BIN)/mypy
	$(BIN)/mypy --config-file mypy_tests.ini tests

unit: simulated integrated

# Cores and simulated worlds: nothing is started, no port is used.
simulated: native
	$(PYTEST) -q tests/unit tests/simulation

# Brokers, NameServers, commands and what strangers do to them, on ports of this machine.
integrated: native
	@scripts/setup-prometheus || echo "setup-prometheus: the tests of rules and dashboards are skipped" >&2
	$(PYTEST) -q tests/integration tests/abuse

# Crashes, power losses and lost messages in every flow, SEEDS lives of each; the long run, an hour with 10,000.
SEEDS := 10000
simulation:
	@scripts/make-venv dev
	AEROBEE_SEEDS=$(SEEDS) $(PYTEST) -q tests/simulation

# The native backend, built when cargo is there; without it only the Python backend is tested, and that is said.
native:
	@scripts/make-venv dev
	@scripts/make-native

# kill -9, full disks, hostile bytes, overload: short runs of the scripts in tests/survival; docs/survival.md has the long ones.
survival: native
	@scripts/setup-namespaces || echo "setup-namespaces: the tests of real faults fail, and say why" >&2
	$(PYTEST) -q tests/survival

# Peers that are not ours: the Java client, broker and tools of RocketMQ 5.5.0, the C++ client. Fetched once.
interop:
	@scripts/make-venv dev
	scripts/setup-interop
	$(PYTEST) -q tests/interop

# The same in three parts that start separate clusters, so that no lane of `make test` is much longer than another. They
# need what scripts/setup-interop makes.
GROUPS := $(addprefix tests/interop/,test_controller_groups.py test_replication.py test_proxy.py test_grpc.py)
STORES := tests/interop/test_store_exchange.py

interop-groups: native
	$(PYTEST) -q $(GROUPS)

interop-stores: native
	$(PYTEST) -q $(STORES)

interop-clients: native
	$(PYTEST) -q tests/interop $(addprefix --ignore=,$(GROUPS) $(STORES))

# The source and the sink in a Spark of this machine. pyspark is a download of 450 MB and has a separate environment,
# .venv-spark. Needs Java 17.
spark: native
	@scripts/setup-spark
	.venv-spark/bin/python -m pytest -q tests/spark

# A million messages of a real data set through a cluster and Spark, with the lag of it as a page; ends by itself. ARGS='--messages 20000'
# for less. Its files are in spark-demo/.
spark-demo: native
	@scripts/setup-spark
	.venv-spark/bin/python scripts/spark-demo $(ARGS)

# The package in empty environments away from the repository, with and without cargo, with the README's first example.
wheel:
	@scripts/make-venv dev
	$(BIN)/python scripts/check-wheel

# The documentation site in site/: every warning is an error, and its search has to find what readers look for.
docs:
	@scripts/make-venv docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@scripts/make-venv dev
	$(PYTEST) -q tests/deploy/test_site.py

# The Helm chart: linted, rendered with each profile, held against Kubernetes' schemas and against what servers take.
chart:
	@scripts/make-venv dev
	$(PYTEST) -q tests/deploy/test_chart.py

# Every page and action of the console in a real Chromium, with axe-core on each page. Installs Chromium by apt (root), the rest by npm.
console:
	@scripts/make-venv dev
	scripts/test-console

# The image and deploy/compose.yaml on a dockerd of this checkout's own, with RocketMQ's Java client inside and outside (root).
compose: native
	scripts/setup-interop
	scripts/setup-prometheus
	$(PYTEST) -q tests/deploy/test_image.py tests/deploy/test_container.py tests/deploy/test_compose.py

# The chart in a real Kubernetes of one node, made of package registries' programs; 20 CPU minutes of builds the first time (root).
kubernetes: native
	scripts/setup-interop
	scripts/setup-kubernetes install
	$(PYTEST) -q -s tests/deploy/test_kubernetes.py

# The dashboards through Grafana's own Prometheus data source with a real Prometheus; 2 CPU minutes of a build the first time.
grafana: native
	scripts/setup-grafana
	$(PYTEST) -q tests/deploy/test_grafana.py

# The modules in aerobee/contrib with the lowest versions of their packages.
oldest: native
	@scripts/setup-databases || echo "setup-databases: the tests of the outbox are skipped" >&2
	$(BIN)/python scripts/test-oldest

# The outbox with MySQL. Its server comes from Debian unstable, which changes daily: not a part of `make test`.
mysql: native
	@scripts/setup-mysql
	$(PYTEST) -q tests/integration/contrib/test_outbox.py -k mysql_server

# A part of Celery's own integration tests over aerobee://, 5 minutes; scripts/test-celery --all runs all of them.
celery: native
	@scripts/setup-databases
	$(BIN)/python scripts/test-celery

# Beside RocketMQ, Redis and NATS on this machine; see bench/README.md. Nothing else should run meanwhile.
BENCH := $(BIN)/python bench
bench:
	@scripts/make-venv dev
	scripts/setup-bench
	$(BENCH)/compare.py --servers aerobee,aerobee-python --with rocketmq,null,redis,nats
	$(BENCH)/latency.py
	$(BENCH)/footprint.py
	$(BENCH)/clients.py --grpc 5000
	$(MAKE) bench-kinds
	$(BENCH)/report.py

# Transactions, delays, order, POP, filters.
bench-kinds:
	$(BENCH)/kinds/ordinary.py
	$(BENCH)/kinds/transaction.py
	$(BENCH)/kinds/timer.py levels --servers aerobee,aerobee-python,rocketmq
	$(BENCH)/kinds/timer.py pending
	$(BENCH)/kinds/orderly.py
	$(BENCH)/kinds/pop.py --servers aerobee,aerobee-python,rocketmq
	$(BENCH)/kinds/filter.py --servers aerobee,aerobee-python

bench-quick:
	@scripts/make-venv dev
	scripts/setup-interop
	$(BENCH)/compare.py --quick --shapes send-64,send-1,batch-64,pull-32 --name quick

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .interop
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
