# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shell script that the timer starts: a comparison, which starts the agent only if something differs."""

from __future__ import annotations

from .._engine.backends import PROGRAMS
from .._system.process import SYSTEM_PATH
from .paths import Paths


def resync_script(paths: Paths) -> str:
    """Return the text of the script."""
    return _RESYNC.format(
        config=paths.config,
        drop_ins=paths.drop_ins,
        expected=paths.expected,
        commands=paths.commands,
        due=paths.due,
        last_sync=paths.last_sync,
        program=paths.program,
        path=SYSTEM_PATH,
        programs=" ".join(PROGRAMS),
    )


_RESYNC = """\
#!/bin/sh
# Managed by the Ansible collection kubenode.ip_masq.
# Compares the configuration and the active rules with what the agent verified last, and starts the agent only if they
# differ. Any error here starts the agent, too.
LC_ALL=C
PATH=${{PATH:+$PATH:}}{path}
export LC_ALL PATH
# SIGTERM, from a restart of the service or at its time limit, ends the comparison, and the agent starts.
trap : TERM

mode=${{1-}}
# The files that the agent reads; only regular ones, since reading a named pipe would block.
set --
irregular=
for file in {config} \\
    {drop_ins}/*.json {drop_ins}/*.yaml {drop_ins}/*.yml \\
    /proc/net/ip_tables_names /proc/net/ip6_tables_names; do
    if [ -f "$file" ]; then
        set -- "$@" "$file"
    elif [ -e "$file" ] || [ -L "$file" ]; then
        irregular=yes
    fi
done
set -f

# What the choice of the backend depends on: where each program is. After it the number of files: an additional file has
# no checksum.
programs() {{
    for name in {programs}; do
        command -v "$name"
    done
    echo "$1 files"
}}

# The same, and the output of the commands.
observe() {{
    programs "$1"
    while read -r command; do
        $command </dev/null
        echo "status $?"
    done <{commands}
}}

case $mode in
checksums)
    # For the agent, which passes the output of the commands on standard input.
    [ ! "$irregular" ] || exit 1
    {{
        programs $#
        cat
    }} | b2sum -- "$@" -
    ;;
'')
    # Now and then the agent checks everything, also what this comparison does not cover.
    if [ ! "$irregular" ] && [ -f {expected} ] && [ -f {commands} ] && [ -f {due} ] &&
        [ -f {last_sync} ] && read -r due <{due} && read -r now _ </proc/uptime && [ "${{now%.*}}" -lt "$due" ] &&
        {{ observe $# | b2sum --check --strict --status {expected}; }} 2>/dev/null &&
        printf '' >{last_sync}; then
        exit 0
    fi
    # A restart means another run, not half of this one: the agent finishes first, and reports.
    trap '' TERM
    exec {program} sync
    ;;
*)
    echo "usage: $0 [checksums]" >&2
    exit 2
    ;;
esac
"""
