# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

SHELL := /bin/bash
PYTHON := .venv/bin/python
# For one run: make test-unit ARGS="-k cidr -x"   make test-molecule SCENARIOS="default" BACKENDS="nftables"
ARGS ?=
SCENARIOS ?=
export BACKENDS
# Of make test-molecule: whose packages the newest node has; default: those of Debian 13. NEWEST=sid: what comes next.
NEWEST ?=
export NEWEST
# Of make test-strange: which random nodes.
SEEDS ?= 1-100
# Of make test-faults: parts of names of faults; default: all.
FAULTS ?=
# Of make test-vm: whose kernels; default: those of Debian 11, 12 and 13, and the newest.
RELEASES ?=
# Jobs of tests that run at a time; default: one more than there are CPUs. JOBS=1 shows output as it comes.
JOBS ?=
export JOBS
# The key of gpg that signs the checksums of `make dist`.
SIGNING_KEY ?=
export SIGNING_KEY

.DEFAULT_GOAL := help
.PHONY: help setup setup-nodes demo test test-unit test-kernel test-strange test-faults test-vm test-selinux test-apparmor test-molecule versions sanity lint bench release dist clean

help: ## this list
	@echo "On a Debian 12 or 13 machine, as root or with sudo. Every target sets up what it needs first."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  make test-unit ARGS="-k cidr -x"           arguments for pytest; so for test-kernel'
	@echo '  make test-molecule SCENARIOS="default"     some scenarios instead of all; so with BACKENDS="nftables"'
	@echo '  make test JOBS=1                           one thing at a time, output as it comes; default: CPUs + 1'

setup: ## install packages (apt), .venv, and the built collection into .cache
	@tools/setup

setup-nodes:
	@tools/setup --nodes

demo: setup-nodes ## three systemd nodes, the module on each, real packets, who saw which address
	@tools/demo

test: ## everything below, side by side; what fails does not hide the rest
	@tools/setup --nodes --pythons --vm
	@$(PYTHON) tools/test kernel vm unit sanity lint versions molecule # the longest job first, the many short ones last

lint: setup ## ruff, shellcheck, ansible-lint (production), REUSE, changelog, docsite, galaxy-importer
	@$(PYTHON) tools/test lint

sanity: setup ## ansible-test sanity on the installed artefact, with every Python there is; ARGS=VENV: of another ansible-core
	@$(PYTHON) tools/test sanity -- $(ARGS)

test-unit: setup ## pytest; node-side code also on the oldest and newest Python there is
	@$(PYTHON) tools/test unit -- $(ARGS)

test-kernel: setup-nodes ## pytest: real rules and packets in network namespaces
	@$(PYTHON) tools/test kernel -- $(ARGS)

test-strange: setup ## random nodes, real packets beside verify; kube-proxy moves on as many: make test-strange SEEDS=1-2000
	@cd tests && $(if $(filter 0,$(shell id -u)),,sudo )../$(PYTHON) -m strange.run --seeds $(SEEDS) --program $(SEEDS) --ipv6 $(SEEDS) --realistic --jobs $(or $(JOBS),2) --keep-going
	@cd tests && $(if $(filter 0,$(shell id -u)),,sudo )../$(PYTHON) -m moves.run --seeds $(SEEDS) --jobs $(or $(JOBS),2)

test-vm: ## tests that ask the kernel itself, on the kernels of Debian 11, 12, 13 and sid in qemu; RELEASES="sid" ARGS="FILE -k WORD"
	@tools/setup --vm
	@$(if $(filter 0,$(shell id -u)),,sudo )$(PYTHON) tools/test-vm $(RELEASES:%=--release %) -- $(ARGS)

test-selinux: ## the agent's life on Debian 12 with SELinux enforcing, in qemu; counts what is denied
	@tools/setup --vm
	@$(if $(filter 0,$(shell id -u)),,sudo )$(PYTHON) tools/test-vm --lsm selinux

test-apparmor: ## the same with AppArmor
	@tools/setup --vm
	@$(if $(filter 0,$(shell id -u)),,sudo )$(PYTHON) tools/test-vm --lsm apparmor

test-molecule: setup-nodes ## scenarios on three systemd nodes: Debian 11, 12 (iptables-legacy), 13; again with nftables
	@$(PYTHON) tools/test molecule -- $(SCENARIOS)

test-faults: setup-nodes ## one fault at a time on three systemd nodes, 2,500 in an hour: make test-faults FAULTS="/var/lib ufw"
	@cd tests && $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=BACKENDS )PYTHONPATH=.:../tools ../$(PYTHON) -B -m faults.run $(FAULTS)

versions: ## every ansible-core, every Python on nodes: the table in docs/versions.md; ARGS="--missing" goes on
	@tools/setup --pythons
	@$(PYTHON) tools/versions $(ARGS)

bench: setup-nodes ## the figures, ours and others', in one table
	@tools/bench

release: setup ## the tree of a release: make release VERSION=1.1.0 sets the version and writes the changelog
	@$(PYTHON) tools/release $(VERSION)

dist: ## a release in dist/: collection, agent as tarball, .deb and .rpm, SBOM, checksums; see docs/releases.md
	@tools/setup --dist
	@.cache/dist-tools/bin/python tools/dist $(ARGS)

clean: ## remove nodes, node images, .venv, .cache and all that was built
	@tools/clean
