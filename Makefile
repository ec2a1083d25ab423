# Every target makes its own virtual environment; python3, pip and make are all a machine needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PEERS  := $(VENV)/.peers
ARGS   ?=
# Many tests wait for processes, so there are three times as many workers as cores, up to a number that memory allows. tests/conftest.py orders the files.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 8 ? 3 * cores : 24)))

.DEFAULT_GOAL := help
.PHONY: help demo kube-demo test soak chaos kube-chaos fuzz check format docs recording screenshots bench lock clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml requirements/image.lock
	@echo "Installing Phalanx and the packages it runs with in $(VENV), only this once: about half a minute ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements/image.lock
	@$(PIP) --no-deps --editable .
	@touch $@

$(READY): $(INSTALLED) requirements/dev.lock
	@echo "Installing the packages of the tests in $(VENV), only this once: about a minute ..."
	@$(PIP) --require-hashes -r requirements/dev.lock
	@touch $@

demo: $(INSTALLED) ## Start a cluster, run a gang, kill one of its processes, and watch it recover
	$(BIN)/python examples/demo.py

kube-demo: $(READY) ## Start a Kubernetes control plane, schedule a TFJob, evict it, and kill the scheduler in a bind
	$(BIN)/python -m examples.kube_demo

test: $(READY) ## Run every test, PostgreSQL and Kubernetes included (ARGS="-k name" narrows)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

soak: $(READY) ## Simulate clusters with every fault until stopped (ARGS="--seed 7" begins there)
	$(BIN)/python -m phalanx.sim --seeds 0 $(ARGS)

chaos: $(READY) ## Kill, freeze and cut off the parts of a real cluster, and check what its tasks wrote (ARGS="--seed 7 --minutes 60")
	$(BIN)/python -m chaos $(ARGS)

kube-chaos: $(READY) ## Kill Kubernetes schedulers, or let gangs and nodes come and go, and check the API objects (ARGS="--kills 100", ARGS="--minutes 10")
	$(BIN)/python -m chaos.kubernetes $(ARGS)

fuzz: $(READY) ## Send mutants of manifests to a server (ARGS="--mutants 10000 --seed 1")
	$(BIN)/python -m tests.fuzz.manifests $(ARGS)

check: $(READY) ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## Rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Write what docs/ takes from the code: the state machine, the settings, the commands, the events
	$(BIN)/python -m docs.diagram
	$(BIN)/python -m docs.settings
	$(BIN)/python -m docs.commands
	$(BIN)/python -m docs.events
	$(BIN)/python -m docs.demo
	$(BIN)/python -m docs.events

recording: $(READY) ## Run the demos and record them for the docs: transcripts and picture
	$(BIN)/python -m docs.demo --record
	$(BIN)/python -m docs.kube_demo

screenshots: $(READY) ## Take pictures of the dashboard in both themes, for the docs (needs chromium)
	$(BIN)/python -m docs.screenshots

$(PEERS): $(READY) requirements/bench.lock
	-$(PIP) --require-hashes -r requirements/bench.lock
	@touch $@

bench: $(PEERS) ## Measure the core, the planner, every store, the server and a cluster (ARGS="core" narrows)
	$(BIN)/python -m benchmarks $(ARGS)

lock: $(READY) ## Write requirements/*.lock anew from pyproject.toml
	$(PIP) uv
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --all-extras --group dev -o requirements/dev.lock pyproject.toml
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --extra kubernetes --extra postgres -o requirements/image.lock pyproject.toml
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --group bench -o requirements/bench.lock
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --group go -o requirements/go.lock

clean: ## Remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
