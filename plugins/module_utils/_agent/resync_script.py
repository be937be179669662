# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shell script that the timer starts: nothing more than a comparison while nothing differs."""

from __future__ import annotations

from .paths import RUN_DIR, Paths


def resync_script(where: Paths) -> str:
    """The script that the timer starts: nothing more than a comparison while nothing differs."""
    return _RESYNC.format(config_dir=where.config_dir, run_dir=RUN_DIR, program=where.program)


_RESYNC = """\
#!/bin/sh
# Managed by the Ansible collection kubenode.ip_masq.
# Compares the configuration and the active rules with what the agent verified last, and starts the agent only where
# they differ. Whatever goes wrong here leads to the agent, never past it.
LC_ALL=C
export LC_ALL
# A restart of the service means another run, not half of this one: it ends first, and says what it did.
trap '' TERM

mode=${{1-}}
# The files that the agent reads, as it reads them: regular ones, for a named pipe would be waited for.
set --
irregular=
for file in {config_dir}/config \\
    {config_dir}/config.d/*.json {config_dir}/config.d/*.yaml {config_dir}/config.d/*.yml \\
    /proc/net/ip_tables_names /proc/net/ip6_tables_names; do
    if [ -f "$file" ]; then
        set -- "$@" "$file"
    elif [ -e "$file" ] || [ -L "$file" ]; then
        irregular=yes
    fi
done
set -f

# What the commands say, behind the number of files: one more is one that has no checksum.
observe() {{
    echo "$1"
    while read -r command; do
        $command </dev/null
        echo "status $?"
    done <{run_dir}/commands
}}

case $mode in
checksums)
    # For the agent, which says what it has seen the commands say.
    [ ! "$irregular" ] || exit 1
    {{
        echo $#
        cat
    }} | b2sum -- "$@" -
    ;;
'')
    # Once in a while the agent looks at everything, also at what this comparison does not cover.
    if [ ! "$irregular" ] && [ -f {run_dir}/expected ] && [ -f {run_dir}/commands ] && [ -f {run_dir}/due ] &&
        read -r due <{run_dir}/due && read -r now _ </proc/uptime && [ "${{now%.*}}" -lt "$due" ] &&
        observe $# 2>/dev/null | b2sum --check --strict --status {run_dir}/expected 2>/dev/null &&
        printf '' >{run_dir}/last-sync; then
        exit 0
    fi
    exec {program} sync
    ;;
*)
    echo "usage: $0 [checksums]" >&2
    exit 2
    ;;
esac
"""
