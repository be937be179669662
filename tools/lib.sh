# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# What the scripts in tools/ share. Sourced by bash.
#
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2016 # variables for those who source it; apt's formats have variables of their own

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

# The mirror of this machine: among its package sources, the one of its own release, Debian's rather than a vendor's.
mirror() {
  if [ -n "${DEBIAN_MIRROR:-}" ]; then
    printf '%s\n' "$DEBIAN_MIRROR"
    return
  fi
  local codename found
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  found=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk -v release="$codename" '
      ($2 == release || $2 ~ /^(old)*stable$/) && $3 == "main" { if ($1 ~ /\/debian\/?$/) { print $1; exit } rest = rest ? rest : $1 }
      END { if (rest) print rest }' | head -n 1)
  [ -n "$found" ] || die "no Debian package source in this machine's apt configuration: set DEBIAN_MIRROR=URL"
  printf '%s\n' "$found"
}

# Proxies and certificates of this machine's apt hold for the image too, and whether it takes a mirror that stands still:
# mmdebstrap does not read apt.conf.
apt_options() {
  apt-config dump | grep -E '^Acquire::(https?::|Check-(Valid-Until|Date) )' | grep -v '""' || true
}

# Run apt-get or apt-cache with one release of Debian as its only source, and a state of its own below a folder; those
# of the machine are neither read nor written:   own_apt FOLDER RELEASE PROGRAM ARGUMENT...
own_apt() {
  local folder=$1 release=$2 program=$3
  shift 3
  mkdir -p "$folder"/{lists,cache/archives}/partial
  : >"$folder/status"
  printf 'deb %s %s main\n' "$(mirror)" "$release" >"$folder/sources.list"
  "$program" -q -o Dir::State::status="$folder/status" -o Dir::State::lists="$folder/lists" \
    -o Dir::Cache="$folder/cache" -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts=- \
    -o APT::Architecture=amd64 -o APT::Sandbox::User=root -o Acquire::Retries=3 "$@"
}
