# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent that is used all the time while it is upgraded.

``check.py before``: checks the older one and starts ``check.py watch``, which uses it until it is told to stop.
``check.py after VERSION``: stops that and checks what it saw, and the newer one.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import sys
import time
import typing as t

from checks import (
    AGENT,
    SERVICE,
    TIMER,
    agent,
    check,
    check_counters,
    check_rules,
    counters,
    done,
    equal,
    eventually,
    packets,
    remembered,
    run,
    sh,
    shown,
    status,
)

OLDER = "0.0.9"
WATCH = "upgrade-watch.service"
SEEN = "/run/upgrade-watch.json"
MEMORY = "/run/upgrade-before.json"
#: Long, because the machine may be busy, and the module holds the lock for a while.
PATIENT = ("--lock-timeout", "300")
#: Exit statuses of status: in sync, and while units are replaced.
USABLE = (0, 3)


def before() -> None:
    """The older agent works; it has counted something."""
    equal("version", agent("--version").stdout.strip(), "ip-masq-agent " + OLDER)
    check_rules("older agent")
    packets("older agent")
    equal("the older timer runs", shown(TIMER, "Description"), {"Description": "The older timer"})
    with open(MEMORY, "w", encoding="utf-8") as memory:
        json.dump({"counters": counters(), "last_change": remembered()["last_change"]}, memory)
    # KillMode: it ends what it is at when it is stopped.
    how = ("--property=KillMode=process", "--setenv=PYTHONPATH=" + os.environ["PYTHONPATH"])
    sh("systemd-run", "--quiet", "--unit", WATCH, *how, sys.executable, "-B", os.path.abspath(__file__), "watch")
    eventually("the watch looks on", lambda: os.path.exists(SEEN))


def watch() -> None:
    """Use the agent in every way until told to stop; remember what came of it."""
    stopped: t.List[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    seen: t.Counter[str] = collections.Counter()
    order: t.List[str] = []
    while not stopped:
        version = run(AGENT, "--version")
        synced = run(AGENT, *PATIENT, "sync")
        told = run(AGENT, "status", "--json")
        for what, done_, said in (
            ("--version", version, version.stdout.strip()),
            ("sync", synced, synced.stdout.strip()),
            ("status", told, json.loads(told.stdout)["version"] if told.returncode in USABLE else told.stdout),
        ):
            status_ = 0 if done_ is told and told.returncode in USABLE else done_.returncode
            seen["%s: exit status %d: %s%s" % (what, status_, said, done_.stderr.strip()[-500:])] += 1
        if version.stdout not in order[-1:]:
            order.append(version.stdout)
        with open(SEEN + ".new", "w", encoding="utf-8") as handle:
            json.dump({"seen": seen, "order": order}, handle)
        os.rename(SEEN + ".new", SEEN)
        if seen["--version: exit status 0: " + version.stdout.strip()] > 10 and len(order) > 1:
            time.sleep(1)  # the upgrade is over; what follows has nothing to change


def after(newer: str) -> None:
    """The newer agent is there, whole, and nothing else was there in between."""
    eventually(
        "the watch has met the newer agent", lambda: newer in watched()["order"][-1], seen=lambda: str(watched())
    )
    sh("systemctl", "stop", WATCH)
    saw = watched()
    print("    %s" % json.dumps(saw["seen"], indent=1).replace("\n", "\n    "))
    equal("one agent, then the other", saw["order"], ["ip-masq-agent %s\n" % each for each in (OLDER, newer)])
    wanted = {"sync: exit status 0: "}
    for version in (OLDER, newer):
        wanted |= {"--version: exit status 0: ip-masq-agent " + version, "status: exit status 0: " + version}
    equal("every use of it went well", set(saw["seen"]), wanted)
    check("it was used all the time", min(saw["seen"].values()) > 0 and sum(saw["seen"].values()) >= 15)

    with open(MEMORY, encoding="utf-8") as handle:
        memory = json.load(handle)
    check_counters("the upgrade", memory["counters"])
    equal("nothing else was changed either", remembered()["last_change"], memory["last_change"])
    equal("version", status()["version"], newer)
    timer = shown(TIMER, "Description", "ActiveState", "NeedDaemonReload")
    wanted_timer = {"Description": "Resync IP masquerading at resyncInterval", "ActiveState": "active"}
    equal("the newer timer is loaded and runs", timer, dict(wanted_timer, NeedDaemonReload="no"))
    sh("systemctl", "start", SERVICE)
    check_rules("newer agent")
    packets("newer agent")


def watched() -> t.Dict[str, t.Any]:
    """What the watch has seen."""
    with open(SEEN, encoding="utf-8") as handle:
        return t.cast(t.Dict[str, t.Any], json.load(handle))


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch()
    elif sys.argv[1] == "before":
        before()
        done()
    else:
        after(sys.argv[2])
        done()
