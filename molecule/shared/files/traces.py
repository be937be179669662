# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Traces that a program can leave on a node: files, directories, units, rules.

``traces.py save``: remembers what there is. ``traces.py compare``: fails where there is anything else now.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import stat
import sys
import typing as t

import checks

MEMORY = "/tmp/traces.json"
#: What changes on any running node; and the lock that every iptables-legacy shares.
PASSING = {
    "/dev",
    "/proc",
    os.path.expanduser("~/.ansible"),
    "/run/lock",
    "/run/log",
    "/run/netns",
    "/run/sudo",
    "/run/user",
    "/run/utmp",
    "/run/xtables.lock",
    "/sys",
    "/tmp",
    "/var/lib/sudo",
    "/var/lib/systemd/random-seed",
    "/var/log",
    "/var/tmp",
}
#: Below these, what a file holds counts; elsewhere, that it is there.
READ = ("/etc/", "/run/", "/usr/local/", "/var/lib/")


def files() -> t.Iterator[str]:
    """Every file and directory, a line each."""
    for folder, folders, names in os.walk("/"):
        kept = []
        for name in sorted(folders + names):
            path = os.path.join(folder, name)
            # Of what systemd keeps at run time, only what others may put there.
            if path in PASSING or (folder == "/run/systemd" and name not in ("system", "transient")):
                continue
            about = os.lstat(path)
            line = "%s %o" % (path, about.st_mode)
            if stat.S_ISLNK(about.st_mode):
                line += " -> " + os.readlink(path)
            elif stat.S_ISDIR(about.st_mode):
                kept.append(name)
            elif stat.S_ISREG(about.st_mode) and path.startswith(READ):
                with open(path, "rb") as handle:
                    line += " " + hashlib.sha256(handle.read()).hexdigest()[:12]
            yield line
        folders[:] = kept


def units() -> t.Iterator[str]:
    """Every unit of ours that systemd knows, a line each."""
    for verb in ("list-units", "list-unit-files"):
        # Its exit status tells whether there are any.
        yield from checks.run("systemctl", verb, "--all", "--plain", "--no-legend", "ip-masq*").stdout.splitlines()


def rules() -> t.Iterator[str]:
    """Every rule and user-defined chain of every variant and family, and tables that only nft knows, a line each."""
    for family, names in (("ip", "ip_tables_names"), ("ip6", "ip6_tables_names")):
        try:
            with open("/proc/net/" + names, encoding="ascii") as known:
                legacy = sorted(known.read().split())
        except OSError:
            legacy = []
        for variant, tables in (("legacy", legacy), ("nft", ["filter", "mangle", "nat", "raw"])):
            for table in tables:
                command = "%stables-%s" % (family, variant)
                for line in checks.sh(command, "-w", "-t", table, "-S").splitlines():
                    if not line.startswith("-P "):
                        yield "%s %s: %s" % (command, table, line)
    for line in checks.sh("nft", "list", "tables").splitlines():
        if line.split()[-1] not in ("filter", "mangle", "nat", "raw"):
            yield line


def rules_of_ours() -> t.List[str]:
    """Those of them that name our chain or table."""
    return [line for line in rules() if "MASQ-AGENT" in line.upper().replace("_", "-")]


def traces() -> t.Dict[str, t.List[str]]:
    """All of them by kind, in order where order matters."""
    return {"files": sorted(files()), "units": sorted(units()), "rules": list(rules())}


def main() -> None:
    """Do what the command line says."""
    now = traces()
    if sys.argv[1] == "save":
        with open(MEMORY, "w", encoding="utf-8") as memory:
            json.dump(now, memory)
        checks.check("remembered %s" % {kind: len(lines) for kind, lines in now.items()}, now["files"])
    else:
        with open(MEMORY, encoding="utf-8") as memory:
            before = json.load(memory)
        for kind, lines in now.items():
            difference = [
                line
                for line in difflib.unified_diff(before[kind], lines, lineterm="", n=0)
                if not line.startswith(("---", "+++", "@@"))
            ]
            checks.check("%s: %d lines, as before" % (kind, len(lines)), not difference, "\n".join(difference))
    checks.done()


if __name__ == "__main__":
    main()
