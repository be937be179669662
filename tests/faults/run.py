# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Try faults on three systemd nodes, side by side: ``PYTHONPATH=tests:tools python -m faults.run [WORD...]``.

A word is a part of the names of scenarios; default: all. BACKENDS="auto nftables" in the environment: with each of
these backends; default: auto. It prints what is not as it is to be at once, a table at the end, and how many passed.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time
import typing as t

from runner import CACHE, ENV, ROOT, say

from . import paths
from .plants import FAULTS
from .scenario import Outcome

RELEASES = ("bullseye", "bookworm", "trixie")
WORLD = "/usr/local/lib/ip-masq-world"
LAB = "faults"
LOG = CACHE / "faults.log"

#: kind and name of a scenario -> release -> what came of it
Outcomes = t.DefaultDict[t.Tuple[str, str], t.Dict[str, t.Dict[str, t.Any]]]


def _tools(*argv: t.Any, **env: str) -> None:
    with LOG.open("a", encoding="utf-8") as log:
        done = subprocess.run(
            list(map(str, argv)),
            cwd=ROOT,
            env=dict(ENV, **env),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        sys.exit("%s: exit status %d; see %s" % (" ".join(map(str, argv)), done.returncode, LOG))


def _install(backend: str) -> None:
    """Boot nodes, and have the role install the agent."""
    names = {"MOLECULE_PROJECT_DIRECTORY": str(ROOT), "MOLECULE_LAB": LAB, "MOLECULE_BACKEND": backend}
    _tools("tools/nodes", "up", LAB)
    books = [ROOT / "molecule/faults" / name for name in ("prepare.yml", "converge.yml")]
    inventory = ROOT / "molecule/shared/inventory.yml"
    _tools("tools/with-cgroup2", "ansible-playbook", "-i", inventory, *books, **names)


def _node(release: str, backend: str, *words: str) -> subprocess.Popen[str]:
    """Start the program on a node."""
    prefix = subprocess.run(
        [ROOT / "tools/nodes", "prefix"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    pid = (CACHE / "nodes" / ("%s-%s-node-%s" % (prefix, LAB, release))).read_text(encoding="ascii")
    inside = ("nsenter", "--target", pid, "--all", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
    names = ["IP_MASQ_AGENT_BACKEND=" + backend, "PYTHONPATH=" + WORLD]
    names += ["%s=%s" % one for one in os.environ.items() if one[0] == "FAULTS_RUN_LIMIT"]
    program = ("python3", "-B", "-m", "faults.on_node", *words)
    return subprocess.Popen([*inside, *names, *program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _read(release: str, program: subprocess.Popen[str], outcomes: Outcomes) -> None:
    assert program.stdout is not None
    for line in program.stdout:
        try:
            outcome = json.loads(line)
        except ValueError:
            outcome = Outcome("node", "the program of the test", False, line.strip(), [])._asdict()
        outcomes[(outcome["kind"], outcome["name"])][release] = outcome
        with LOG.open("a", encoding="utf-8") as log:
            log.write("%s %s\n" % (release, line.strip()))
        if outcome["good"] is False:
            say("%-8s %s, %s: %s" % (release, outcome["kind"], outcome["name"], outcome["says"]))
            for detail in outcome["details"]:
                say("           " + detail)


def _side_by_side(backend: str, outcomes: Outcomes, *words: str) -> None:
    programs = {release: _node(release, backend, *words) for release in RELEASES}
    readers = [threading.Thread(target=_read, args=(*one, outcomes)) for one in programs.items()]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        for program in programs.values():
            program.terminate()
            program.wait()


def table(outcomes: Outcomes) -> t.Tuple[int, int]:
    """Print what came of each scenario. Return how many passed and failed."""
    width = max(len("%s, %s" % key) for key in outcomes)
    counts: t.Counter[t.Optional[bool]] = collections.Counter()
    for key, found in outcomes.items():
        cells = []
        for release in RELEASES:
            outcome = found.get(release, {"good": None, "says": "-"})
            counts[outcome["good"] if outcome["says"] != "-" else "absent"] += 1  # type: ignore[index]
            cells.append(("NOT OK: " if outcome["good"] is False else "") + outcome["says"])
        say("%s  %s" % (("%s, %s" % key).ljust(width), "  ".join(cell.ljust(18) for cell in cells)))
    if counts[None]:
        say("%d cannot be had on this machine: its containers have no such controller of control groups" % counts[None])
    return counts[True], counts[False]


def _cannot() -> None:
    say("")
    say("Cannot be had: %d faults at each of %d paths on each release" % (len(FAULTS), len(paths.CANNOT)))
    for path, reason in paths.CANNOT.items():
        say("  %-40s %s" % (path, reason))


def _stop(number: int, _frame: object) -> None:
    sys.exit("interrupted by %s" % signal.Signals(number).name)


def main(words: t.Sequence[str]) -> int:
    """Run all of it, and sum up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    LOG.write_text("", encoding="utf-8")
    passed = failed = 0
    for backend in os.environ.get("BACKENDS", "").split() or ["auto"]:
        outcomes: Outcomes = collections.defaultdict(dict)
        started = time.monotonic()
        try:
            _install(backend)
            say("--- backend %s: installed after %d s" % (backend, time.monotonic() - started))
            _side_by_side(backend, outcomes, "try", *words)
            if not words or "boot" in words:
                _side_by_side(backend, outcomes, "before-boot")
                _tools("tools/nodes", "reboot", LAB)
                _side_by_side(backend, outcomes, "after-boot")
        finally:
            _tools("tools/nodes", "down", LAB)
        say("--- backend %s: %d s; %s" % (backend, time.monotonic() - started, ", ".join(RELEASES)))
        good, bad = table(outcomes)
        passed, failed = passed + good, failed + bad
    _cannot()
    say("%d passed, %d failed" % (passed, failed or int(not passed)))
    return int(failed > 0 or not passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
