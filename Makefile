# `make help` lists the targets. All of them run on a machine that has only git and make (Debian 12 or newer, Ubuntu 24.04).
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help run stop clean install images test test-cdi test-newcomer test-core test-packages reliability bench lint format lock

BIN := .venv/bin
SHELL_FILES := deploy/run deploy/lock .ci/run images/base/setup-base images/tools/etc/profile.d/gpucampus.sh
MARKED := docker or hub or browser or images or gcc or reliability or newcomer

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

run: ## Bring what is missing, start proxy, sign-in and hub; Ctrl-C ends the hub only
	@deploy/run up

stop: ## End the hub, the proxy and the sign-in, and remove the servers' containers; homes stay
	@deploy/run stop

clean: ## make stop, then remove what the project made: images, network, state, packages; homes only with HOMES=1
	@deploy/run clean

install: ## Put the hub on this machine as systemd services behind nginx; docs/howto/install.md
	@deploy/run packages
	@$(BIN)/python -m deploy.install

images: ## Build the variants of images/catalog.toml that are not current; VARIANT=cu126 names one, MIRROR=tuna where its pip fetches from
	@deploy/run packages
	@GPUCAMPUS_IMAGE_MIRROR=$(MIRROR) $(BIN)/python -m deploy.build_images $(VARIANT)

test: test-core ## Run all tests; those of engine, hub and browser start a private Docker Engine (root)
	@deploy/run test-tools
	@$(BIN)/python -m deploy.node_packages
	@$(BIN)/python -m deploy.build_images --fetch
	$(BIN)/python -m pytest -m "($(MARKED)) and not (reliability or newcomer)"

test-cdi: test-packages ## Run the tests of CDI alone, on a Docker Engine that knows it (part of `make test`)
	@deploy/run test-tools
	$(BIN)/python -m pytest -m docker -k cdi tests/engine

reliability: test-packages ## Kill, cancel and starve a hub at every engine call; writes the table of docs/explanation/reliability.md
	@deploy/run test-tools
	$(BIN)/python -m tests.reliability

test-newcomer: test-packages ## Try README's commands on fresh Debian machines, killed in every step; half an hour, needs the network
	@deploy/run test-tools newcomer
	$(BIN)/python -m pytest -s -m newcomer tests/newcomer

bench: test-packages ## Measure placement: 64 machines of 8 GPUs, up to 10,000 claims waiting
	$(BIN)/python -m tests.bench.bench_place

test-core: test-packages ## Run the tests that need neither root nor Docker nor a compiler
	@GPUCAMPUS_EXAMPLES=$${GPUCAMPUS_EXAMPLES:-quick} $(BIN)/python -m pytest -n auto -m "not ($(MARKED))"

test-packages:
	@deploy/run packages dev

lint: test-packages ## Check style, types, import directions, shell scripts, Dockerfiles
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases --exclude idle_culler_config deploy
	$(BIN)/lint-imports
	$(BIN)/shellcheck $(SHELL_FILES)
	$(BIN)/shfmt --indent 4 --case-indent --diff $(SHELL_FILES)
	$(BIN)/hadolint images/*/Dockerfile
	@# H052: the page of a starting server reloads itself only where scripts are off
	$(BIN)/djlint --quiet --lint --profile jinja --ignore H052 spawner/pages/templates

format: test-packages ## Bring Python and shell files into the one form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/shfmt --indent 4 --case-indent --write $(SHELL_FILES)

lock: test-packages ## Make all locks anew from their .in files (the CPU wheel of PyTorch from UV_FIND_LINKS or its index)
	@PATH="$(CURDIR)/$(BIN):$$PATH" deploy/lock
