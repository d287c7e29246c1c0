# The two commands a newcomer needs are `make quickstart` and `make test`.

SHELL := /bin/bash
CARGO ?= cargo
ifndef RUSTC_WRAPPER
ifneq ($(shell command -v sccache 2>/dev/null),)
export RUSTC_WRAPPER := sccache
export SCCACHE_CACHE_SIZE ?= 20G
endif
endif
# cargo asks the toolchain where things go; this follows it.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET_DIR)/release/longhaul

.PHONY: help quickstart test lint bench load deps build

help: ## Lists the targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: deps build ## Installs what is missing, builds, and shows a session that survives kill -9.
	$(BIN) quickstart

test: deps ## Runs every test.
	$(CARGO) test --workspace --features failpoints,longhaul-storage/conformance

lint: ## Format and clippy, as strict as the build on the server.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features failpoints,longhaul-storage/conformance -- -D warnings

bench: deps build ## Measures the figures of the README's table (about ten minutes).
	$(CARGO) bench --bench figures

load: build ## A load run in this process, 256 sessions and clients, with the log checked afterwards.
	$(BIN) load --sessions 256 --clients 256 --seconds 10

build: deps
	$(CARGO) build --release --bin longhaul

deps: ## Installs Debian packages that are missing (as root), or says what to install.
	@bash .ci/deps
