# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that got the agent from a tarball or a package, and the role later.

``check.py unconfigured FILE``: installs it; nothing happens. With a tarball /usr is read-only from then on.
``check.py configured``: a config file makes it work.
``check.py adopted``: the role has changed nothing. ``check.py package``: removal, also with a broken interpreter, and
upgrades. ``check.py gone``: nothing is left.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import typing as t

import traces
from checks import (
    AGENT,
    CONFIG,
    DAMAGE,
    PACKAGED,
    PLACES,
    SERVICE,
    TIMER,
    check,
    check_counters,
    check_rules,
    counters,
    done,
    equal,
    eventually,
    in_sync,
    ours,
    packets,
    remembered,
    run,
    sh,
    shown,
    write,
)

MEMORY = "/var/tmp/package.json"
PACKAGES = "/var/tmp/ip-masq-agent_*.deb"
PATH = "ip-masq-agent.path"
TARGETS = ("multi-user.target", "timers.target", "paths.target")


def unconfigured(package: str) -> None:
    """The units run, and no rule is changed."""
    if package.endswith(".deb"):
        sh("dpkg", "--install", package)
    else:
        sh("tar", "--extract", "--file", package, "--directory", "/")
        sh("mount", "--rbind", "/usr", "/usr")
        sh("mount", "-o", "remount,bind,ro", "/usr")
        sh("systemctl", "daemon-reload")
        sh("systemctl", "start", *TARGETS)  # as a boot does
    state = {name: shown(TIMER, name)[name] for name in ("ActiveState", "UnitFileState")}
    equal("the timer is enabled and active", state, {"ActiveState": "active", "UnitFileState": "enabled"})
    ended = "ExecMainExitTimestampMonotonic"
    eventually("the timer has started the service", lambda: shown(SERVICE, ended)[ended] != "0")
    equal("no rule of ours", [rule for place in PLACES for rule in ours(place=place)], [])
    sh("systemctl", "restart", SERVICE)
    equal("started by hand: nothing to do", shown(SERVICE, "Result"), {"Result": "success"})
    check("the agent has not run", not glob.glob("/var/lib/ip-masq-agent/*"))
    packets("without a configuration", {"10.99.0.1": "pod", "203.0.113.7": "pod"})
    done()


def configured() -> None:
    """A file makes it work, at once and from then on."""
    eventually("in sync after the file was written", in_sync)
    check_rules("configured")
    DAMAGE["the chain is flushed"]()
    eventually("the timer repairs drift", in_sync, promised=2.0)
    packets("configured")
    equal("drift was counted", remembered()["drift_repaired"], 1)
    with open(MEMORY, "w", encoding="utf-8") as memory:
        json.dump({"files": files(), "counters": counters(), "last_change": remembered()["last_change"]}, memory)
    done()


def files() -> t.Dict[str, t.List[int]]:
    """Inode and time of each file that an installation writes."""
    found = [CONFIG, *glob.glob("/usr/local/sbin/ip-masq*"), *glob.glob("/etc/*/ip-masq*.conf")]
    found += glob.glob("/usr/sbin/ip-masq*") + glob.glob("/usr/lib/systemd/system/ip-masq*")
    found += glob.glob("/usr/local/lib/ip-masq-agent/**/*.py", recursive=True)
    found += glob.glob("/usr/lib/ip-masq-agent/**/*.py", recursive=True)
    found += [path for path in glob.glob("/etc/systemd/system/**/ip-masq*", recursive=True) if not os.path.isdir(path)]
    return {path: [os.lstat(path).st_ino, os.lstat(path).st_mtime_ns] for path in found}


def adopted() -> None:
    """The role found all as it would make it."""
    with open(MEMORY, encoding="utf-8") as handle:
        memory = json.load(handle)
    equal("no file was written", files(), memory["files"])
    check("there are files", len(memory["files"]) > 100, memory["files"])
    check_counters("adopted", memory["counters"])
    equal("no rule was changed", remembered()["last_change"], memory["last_change"])
    packets("adopted")
    if not glob.glob(PACKAGES):
        check("/usr was read-only all the time", os.statvfs("/usr").f_flag & os.ST_RDONLY)
        sh("mount", "-o", "remount,bind,rw", "/usr")
    done()


def package() -> None:
    """The package takes rules and state with it, and leaves the configuration."""
    (new,) = glob.glob(PACKAGES)
    if not os.path.exists(PACKAGED):  # where the tarball was
        sh("dpkg", "--install", new)
        write(CONFIG, "{}\n")
    eventually("in sync with the package", in_sync)
    equal("no file is where an administrator has files", administrators(), [])
    check("its modules are compiled", glob.glob("/usr/lib/ip-masq-agent/*/ip_masq_agent/_tasks/__pycache__/cli.*.pyc"))
    without_interpreter()
    sh("dpkg", "--remove", "ip-masq-agent")
    nothing_runs("removed")
    check("the configuration is still there", os.path.exists(CONFIG))
    check("the directory that was empty is still there", os.path.isdir("/usr/local/sbin"))
    sh("dpkg", "--install", new)
    eventually("installed again: in sync", in_sync)
    sh("systemctl", "disable", PATH)
    sh("dpkg", "--install", new)
    check("upgraded: the rules stay", ours())
    eventually("upgraded: in sync", in_sync)
    equal("upgraded: the timer is active", shown(TIMER, "ActiveState"), {"ActiveState": "active"})
    equal("upgraded: what was disabled stays so", shown(PATH, "UnitFileState"), {"UnitFileState": "disabled"})
    sh("dpkg", "--remove", "ip-masq-agent")
    nothing_runs("removed again")
    done()


def administrators() -> t.List[str]:
    """Files of ours in directories of the administrator, and links that lead nowhere."""
    found = glob.glob("/usr/local/sbin/ip-masq*") + glob.glob("/etc/systemd/system/ip-masq-agent*.*")
    found = [path for path in found if not os.path.isdir(path)] + glob.glob("/usr/local/lib/ip-masq-agent")
    return found + sh("find", "/etc/systemd", "-name", "ip-masq*", "-xtype", "l").split()


def without_interpreter() -> None:
    """The package stays where it cannot remove the rules."""
    before = traces.rules_of_ours()
    os.rename("/usr/bin/python3", "/usr/bin/python3.away")
    try:
        removed = run("dpkg", "--remove", "ip-masq-agent")
    finally:
        os.rename("/usr/bin/python3.away", "/usr/bin/python3")
    check("the removal fails", removed.returncode != 0, removed.stdout + removed.stderr)
    for words in ("rules are still active", "the interpreter is /usr/bin/python3", "remove the package again"):
        check("it says: " + words, words in removed.stderr, removed.stderr)
    status = sh("dpkg-query", "--show", "--showformat=${db:Status-Status}", "ip-masq-agent")
    equal("the package is still there", status, "installed")
    equal("its rules are", traces.rules_of_ours(), before)
    for unit in (TIMER, PATH):
        equal(unit + " runs", shown(unit, "ActiveState"), {"ActiveState": "active"})


def nothing_runs(what: str) -> None:
    """Neither rules, nor the program, nor units, nor state."""
    equal(what + ": rules", traces.rules_of_ours(), [])
    equal(what + ": the program", [path for path in (AGENT, PACKAGED) if os.path.exists(path)], [])
    modules = [path for path in ("/usr/lib/ip-masq-agent", "/usr/local/lib/ip-masq-agent") if os.path.exists(path)]
    equal(what + ": modules", modules, [])
    equal(what + ": units", list(traces.units()), [])
    equal(
        what + ": state",
        [path for path in ("/var/lib/ip-masq-agent", "/run/ip-masq-agent") if os.path.exists(path)],
        [],
    )


def gone() -> None:
    """Nothing is left on any node."""
    nothing_runs("gone")
    left = run("find", "/etc", "/run", "/usr", "/var/lib", "-name", "ip[-_]masq*").stdout.split()
    equal("gone: files", [path for path in left if not path.startswith("/usr/local/lib/ip-masq-world")], [])
    packets("nothing is masqueraded", {"10.99.0.1": "pod", "203.0.113.7": "pod"})
    done()


if __name__ == "__main__":
    steps: t.Dict[str, t.Callable[..., None]] = {
        "unconfigured": unconfigured,
        "configured": configured,
        "adopted": adopted,
        "package": package,
        "gone": gone,
    }
    steps[sys.argv[1]](*sys.argv[2:])
