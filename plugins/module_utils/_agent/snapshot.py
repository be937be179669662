# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resync script, and the snapshot that it compares, so that a resync with nothing to do starts no Python.

The script computes checksums of the configuration files and of the output of the recorded commands. While they match,
everything is as the agent verified it. These files are in the runtime directory and do not outlive the boot.
"""

from __future__ import annotations

import contextlib
import os
import time
import typing as t

from .._engine.backend import Counted
from .._engine.backend_choice import PROGRAMS
from .._errors import NodeError
from .._system import files
from .._system.process import SYSTEM_PATH, Outcome, Runner
from .._system.xtables_lock import PATH as XTABLES_LOCK
from .paths import METRICS_NAME, Paths

#: Seconds after which the agent checks everything again: leftovers in other variants, another choice of backend.
FULL_CHECK_EVERY = 3600


#: Family, action on leaks, and a listing of rules that have counters.
Listings = t.Sequence[t.Tuple[str, str, Counted]]


class Metrics(t.NamedTuple):
    """The metrics of a sync, and what is read for those of a resync without work; see ``live_metrics``."""

    text: str
    listings: Listings


class RecordingRunner:
    """A ``Runner`` that keeps the last outcome of each command."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._outcomes: t.Dict[t.Tuple[str, ...], Outcome] = {}

    def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        done = self._outcomes[tuple(argv)] = self._run(argv, stdin=stdin, timeout=timeout)
        return done

    def output_of(self, commands: t.Iterable[t.Sequence[str]]) -> t.Optional[str]:
        """Return what the script reads from these commands; None if one of them was not run."""
        text = status = ""
        for command in commands:
            done = self._outcomes.get(tuple(command))
            if done is None:
                return None
            text += status + done.stdout
            # A shell reports a signal as 128 plus its number.
            status = "status %d\n" % (done.rc if done.rc >= 0 else 128 - done.rc)
        return text


def discard(paths: Paths) -> None:
    """Remove the snapshot, so that the next resync starts the agent.

    If the file cannot be removed, the script cannot record its own success either, and starts the agent too.
    """
    with contextlib.suppress(NodeError):
        files.remove(paths.expected)


def take(
    run: Runner,
    paths: Paths,
    commands: t.Sequence[t.Sequence[str]],
    output: t.Optional[str],
    is_current: t.Callable[[], bool],
    metrics: t.Optional[Metrics] = None,
) -> None:
    """Take a snapshot of what was verified.

    :param commands: programs whose output must stay the same; no word of them may contain white space.
    :param output: their output when the rules were verified.
    :param is_current: whether the files, read again, are still those of the effective policy.
    :raises NodeError: it cannot be written, or the script cannot be run.
    """
    if output is None or any(len(word.split()) != 1 for command in commands for word in command):
        return
    taken = run([paths.resync, "checksums"], stdin=output)
    # A file that cannot be read has no checksum, and its change would not be detected.
    if taken.rc != 0 or not taken.stdout or not is_current():
        return
    files.make_directory(paths.run_dir, 0o700)
    if metrics:
        files.write(paths.last_metrics, metrics.text.encode("utf-8"))
        lines = [" ".join((family, action, one.kinds, *one.command)) for family, action, one in metrics.listings]
        files.write(paths.counted, "".join(line + "\n" for line in lines).encode("utf-8"))
    files.write(paths.commands, "".join(" ".join(command) + "\n" for command in commands).encode("utf-8"))
    now = int(float(files.lines("/proc/uptime")[0].split()[0]))
    files.write(paths.due, b"%d\n" % (now + FULL_CHECK_EVERY))
    files.write(paths.expected, taken.stdout.encode("utf-8", "surrogateescape"))


def mark_sync(paths: Paths) -> float:
    """Record that a resync succeeded just now, and return the time: seconds since the epoch.

    :raises NodeError: the file cannot be written. OSError: its time cannot be set.
    """
    files.write(paths.last_sync, b"", folder=0o700)
    # The time that the kernel gives a new file lags some milliseconds behind the clock.
    now = time.time()
    os.utime(paths.last_sync, (now, now))
    return now


def last_sync(paths: Paths) -> t.Optional[float]:
    """Return when a resync last succeeded: seconds since the epoch; None if none did since boot."""
    about = files.status(paths.last_sync)
    return about.st_mtime if about else None


def resync_script(paths: Paths) -> str:
    """Return the shell script that the timer starts. It starts the agent only if something differs."""
    done = _METRICS.format(paths=paths, name=METRICS_NAME) if paths.metrics_dir else "exit 0"
    programs = " ".join(PROGRAMS)
    return _RESYNC.format(paths=paths, lock=XTABLES_LOCK, path=SYSTEM_PATH, programs=programs, done=done)


#: What follows a comparison without a difference, where metrics are wanted.
_METRICS = "exec {paths.program} metrics {paths.run_dir} {paths.metrics_dir} {name}"

_RESYNC = """\
#!/bin/sh
# Managed by the Ansible collection kubenode.ip_masq.
# Compares the configuration and the active rules with what the agent verified last, and starts the agent only if they
# differ. Any error here starts the agent too.
LC_ALL=C
PATH=${{PATH:+$PATH:}}{path}
export LC_ALL PATH
# SIGTERM, from a restart of the service or at its time limit, ends the comparison, and the agent starts.
trap : TERM

mode=${{1-}}
# The files that the agent reads; only regular ones, since reading a named pipe would block.
set --
irregular=
for file in {paths.config} \\
    {paths.drop_ins}/*.json {paths.drop_ins}/*.yaml {paths.drop_ins}/*.yml \\
    /proc/net/ip_tables_names /proc/net/ip6_tables_names {lock}; do
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

# The same, and the output of the commands. The last takes the place of the shell, which saves 3 % of a comparison; its
# status is not needed: without its rules it prints nothing.
observe() {{
    programs "$1"
    {{
        read -r command
        while read -r next; do
            $command </dev/null
            echo "status $?"
            command=$next
        done
    }} <{paths.commands}
    exec $command </dev/null
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
    if [ ! "$irregular" ] && [ -f {paths.expected} ] && [ -f {paths.commands} ] && [ -f {paths.due} ] &&
        [ -f {paths.last_sync} ] && read -r due <{paths.due} && read -r now _ </proc/uptime &&
        [ "${{now%.*}}" -lt "$due" ] &&
        {{ observe $# | b2sum --check --strict --status {paths.expected}; }} 2>/dev/null &&
        printf '' >{paths.last_sync}; then
        {done}
    fi
    # A restart means another run, not half of this one: the agent finishes first, and reports.
    trap '' TERM
    exec {paths.program} resync
    ;;
*)
    echo "usage: $0 [checksums]" >&2
    exit 2
    ;;
esac
"""
