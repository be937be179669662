# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# What the scripts in tools/ share. Sourced by bash.
#
# shellcheck shell=bash
# shellcheck disable=SC2034 # variables for those who source it

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE_DIR=$ROOT/.cache
VENV_DIR=$ROOT/.venv
COLLECTIONS_DIR=$CACHE_DIR/collections
INSTALLED_DIR=$COLLECTIONS_DIR/ansible_collections/kubenode/ip_masq
IMAGE_REPOSITORY=localhost/ip-masq-node
PATH=$PATH:/usr/sbin:/sbin

progress() { printf '%s\n' "--- $*" >&2; }
die() {
  printf '%s\n' "error: $*" >&2
  exit 1
}

# Run one command as root, through sudo where need be.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

# Use the tools of .venv and the installed collection, and keep what Ansible leaves behind inside the checkout.
use_venv() {
  export PATH=$VENV_DIR/bin:$PATH
  export ANSIBLE_CONFIG=$ROOT/ansible.cfg
  export ANSIBLE_HOME=$CACHE_DIR/ansible
  export PYTHONDONTWRITEBYTECODE=1
}
